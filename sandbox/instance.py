"""One open MiniSandbox: the owner's side of its first process.

Talks to `sandbox.init` over the sandbox's own socket; the helper is asked only to close it. Made by
`sandbox.mini.MiniBackend`, never directly.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandbox import diff, gc, process, wire
from sandbox.errors import SandboxError, SandboxLostError, SandboxStartError
from sandbox.first import KILL_TIMEOUT_S, FirstProcess
from sandbox.output import Collector, PipeReader, exec_result
from sandbox.proxy import NetworkProxy, Refusal, environment, uses_proxy
from sandbox.session import MiniSession
from sandbox.types import Changes, ExecResult, Limits, SandboxSpec, Usage
from sandbox.usage import read_usage
from sandbox.watch import Watch

if TYPE_CHECKING:
    from sandbox.handle import HelperHandle
    from sandbox.mini import MiniBackend

_START_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 60.0
_REASON_WAIT_S = 2.0


class DiedEarlyError(SandboxStartError):
    """The first process ended without a word: killed from outside, perhaps while it waited in the pool."""


class MiniSandbox(FirstProcess):
    """Implements `sandbox.types.Sandbox`."""

    def __init__(
        self,
        backend: "MiniBackend",
        helper: "HelperHandle",
        name: str,
        spec: SandboxSpec,
        sock: socket.socket,
    ) -> None:
        self._backend = backend
        self._helper = helper
        self._name = name
        self._spec = spec
        self._proxy = NetworkProxy(spec.allowed_hosts) if uses_proxy(spec) else None
        self._upper = -1
        self._outside_uid = -1
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._sessions: list[MiniSession] = []
        self._prepared: MiniSession | None = None
        self._closing = False
        self._end_reason = ""
        self._lost_reason = "the sandbox's first process ended"
        self._cgroups: dict[str, str] = {}
        self._disk: Path | None = None
        self._base: Path | None = None
        self._covered: tuple[str, ...] | None = None
        """Where other trees are mounted, if the upper layer holds all files; else None."""
        self._watch = Watch(self.end)
        super().__init__(sock, {**(environment() if self._proxy else {}), **spec.env})

    @property
    def id(self) -> str:
        """See `sandbox.types.Sandbox.id`."""
        return self._name

    @property
    def workdir(self) -> str:
        """Where commands and sessions start."""
        return self._spec.workdir

    @property
    def limits(self) -> Limits:
        """The limits it was opened with."""
        return self._spec.limits

    @property
    def alive(self) -> bool:
        """Whether it is not known to have ended."""
        return not self._closing and not self._gone.done() and not self._link.closed

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """What its programs asked the network for and did not get, as `allowed_hosts` does not name it."""
        return self._proxy.refused if self._proxy else ()

    # -- messages

    def on_other(self, message: wire.Message, fds: list[int]) -> None:
        """What only a start has to say; takes from `fds` what it keeps."""
        if "root" in message and self._upper < 0:
            self._upper = fds.pop(0)
            if self._proxy:
                self._proxy.start(socket.socket(fileno=fds.pop(0)))
            if message["complete"]:
                self._covered = tuple(message["covered"])
        elif "ready" in message and self._upper >= 0:
            self._outside_uid = int(message["outside_uid"])
            if not self._ready.done():
                self._ready.set_result(None)
        elif "outside" in message:
            self._cgroups = message["outside"]["cgroups"]
            self._disk = Path(message["disk"]) if message["disk"] else None
            self._base = Path(message["base"])
        elif "fatal" in message and not self._ready.done():
            self._ready.set_exception(SandboxStartError(message["fatal"]))
            self._ready.exception()

    def on_end(self) -> None:
        """See `FirstProcess.on_end`."""
        self._link.close()
        if self._link.problem:
            self.end(self._link.problem)
            self.mark_lost(self._link.problem)
            return
        # The helper, which reaps it, says why in a moment.
        reason = "the sandbox's first process ended"
        asyncio.get_running_loop().call_later(_REASON_WAIT_S, self.mark_lost, reason)

    def mark_lost(self, reason: str) -> None:
        """Fail everything that waits."""
        self._link.close()
        if not self._ready.done():
            self._ready.set_exception(DiedEarlyError(reason))
            self._ready.exception()  # nobody may wait yet, or any more; no warning about that
        self.fail_waiting(SandboxLostError(reason))

    async def why_lost(self) -> str:
        """See `FirstProcess.why_lost`."""
        await asyncio.wait({self._gone}, timeout=_REASON_WAIT_S)
        return "the sandbox was closed" if self._closing else self._lost_reason

    def mark_gone(self, reason: str = "") -> None:
        """The helper reaped it."""
        self._watch.stop()
        if self._proxy:
            self._proxy.stop()
        self._lost_reason = self._end_reason or reason or "the sandbox died"
        self.mark_lost("the sandbox was closed" if self._closing else self._lost_reason)
        if not self._gone.done():
            self._gone.set_result(None)

    def when_gone(self, action: Callable[[], None]) -> None:
        """Call `action` when the helper has reaped it."""
        self._gone.add_done_callback(lambda _gone: action())

    async def wait_ready(self) -> None:
        """Until the first process has built its root."""
        async with asyncio.timeout(_START_TIMEOUT_S):
            await self._ready
        self._watch.start(self._spec.limits, self._disk)

    def request_close(self) -> None:
        """See `FirstProcess.request_close`."""
        self._helper.request_close(self._name)

    def end(self, reason: str) -> None:
        """Kill it for going over a limit that is watched from outside; what waits fails with `reason`."""
        self._end_reason = reason
        self.request_close()

    # -- for sessions

    def make_pipe(self) -> tuple[int, int]:
        """A pipe whose ends may be reopened inside through /dev/stdout and the like."""
        try:
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise SandboxError(process.explain(error)) from error
        uid = self._outside_uid
        if uid != os.geteuid():
            os.fchown(write_end, uid, uid)
        return read_end, write_end

    # -- sandbox.types.Sandbox

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        output_limit_bytes: int | None = None,
    ) -> ExecResult:
        """See `sandbox.types.Sandbox.exec`."""
        collector = Collector(self.limits.output_bytes if output_limit_bytes is None else output_limit_bytes)
        started = time.monotonic()
        read_end, write_end = self.make_pipe()
        pipe = PipeReader(read_end)
        theirs = [wire.memory_file(stdin)] if stdin else []
        theirs += [write_end, write_end]
        child, timed_out, finished = 0, False, False
        try:
            child, exited = await self.spawn(
                argv,
                fds=tuple(theirs),
                targets=(0, 1, 2) if stdin else (1, 2),
                null=() if stdin else (0,),
                cwd=cwd or self.workdir,
                env=env,
            )
            pipe.start(collector.add)
            await asyncio.wait({exited}, timeout=timeout_s)
            if not exited.done():
                timed_out = True
                await self.kill(child, elapsed_s=time.monotonic() - started, shell=False)
                await asyncio.wait({exited}, timeout=KILL_TIMEOUT_S)
                if not exited.done():
                    raise SandboxLostError(f"{argv[0]} could not be killed")
            status = exited.result()
            finished = True
            pipe.drain()
        finally:
            if not finished and child:
                self.kill_soon(child, elapsed_s=time.monotonic() - started)
            pipe.close()
            for fd in set(theirs):
                os.close(fd)
        return exec_result(collector, status=None if timed_out else status, started=started)

    async def prepare_session(self) -> None:
        """See `sandbox.types.Sandbox.prepare_session`."""
        session = await self.open_session()
        await session.run(":", timeout_s=_START_TIMEOUT_S)
        self._prepared = session

    async def open_session(self) -> MiniSession:
        """See `sandbox.types.Sandbox.open_session`."""
        if self._prepared:
            session, self._prepared = self._prepared, None
            return session
        session = MiniSession(self)
        self._sessions.append(session)
        await session.start()
        return session

    async def diff(self, root: str) -> str:
        """See `sandbox.types.Sandbox.diff`."""
        return (await self.changes(root)).patch

    async def changes(self, root: str) -> Changes:
        """See `sandbox.types.Sandbox.changes`."""
        if self._upper < 0:
            raise SandboxLostError("the sandbox is closed")
        upper = os.dup(self._upper)
        try:
            find = partial(diff.find_changes, upper, root=root, scratch=self._helper.directory)
            if self._covered is None or self._base is None:
                return await asyncio.to_thread(find, self._spec.layers)
            layers = (*self._spec.layers, self._base)
            return await asyncio.to_thread(find, layers, complete=True, covered=self._covered)
        finally:
            os.close(upper)

    async def fork(self) -> "MiniSandbox":
        """See `sandbox.types.Sandbox.fork`."""
        if self._upper < 0:
            raise SandboxLostError("the sandbox is closed")
        # The parent directory: /tmp and /dev/shm lie beside the overlay's upper.
        area = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._upper)
        try:
            await self.ask({"op": "pause"})
            try:
                return await self._backend.open_from(self._spec, origin=self._name, area=area)
            finally:
                await self.ask({"op": "resume"})
        finally:
            os.close(area)

    async def usage(self) -> Usage:
        """See `sandbox.types.Sandbox.usage`."""
        return read_usage(self._cgroups)

    async def close(self) -> None:
        """See `sandbox.types.Sandbox.close`."""
        self._closing = True
        self.request_close()
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await asyncio.shield(self._gone)
        self._link.close()
        if self._proxy:
            await self._proxy.close()
        for session in self._sessions:
            await session.close()
        if self._upper >= 0:
            os.close(self._upper)
            self._upper = -1
        if self._disk:
            disk, self._disk = self._disk, None
            await asyncio.to_thread(gc.remove_tree, disk)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
