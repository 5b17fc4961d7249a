"""One open MiniSandbox: the owner's side of its first process.

Talks to `sandbox.init` over the sandbox's own socket; the helper is asked only to close it. Made by
`sandbox.mini.MiniBackend`, never directly.
"""

import asyncio
import itertools
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandbox import diff, files, gc, process, wire
from sandbox.errors import SandboxError, SandboxLostError, SandboxStartError
from sandbox.link import Link
from sandbox.output import Collector, PipeReader, exec_result
from sandbox.proxy import NetworkProxy, Refusal, environment, uses_proxy
from sandbox.session import MiniSession
from sandbox.types import GIB, MIB, ExecResult, Job, Limits, SandboxSpec, Usage
from sandbox.usage import read_usage
from sandbox.watch import Watch

if TYPE_CHECKING:
    from sandbox.handle import HelperHandle
    from sandbox.mini import MiniBackend

_BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    # Without capabilities nothing can be given to another owner, which tar tries for uid 0.
    "TAR_OPTIONS": "--no-same-owner",
}
_START_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 60.0
_KILL_TIMEOUT_S = 10.0
_REASON_WAIT_S = 2.0


class DiedEarlyError(SandboxStartError):
    """The first process ended without a word: killed from outside, perhaps while it waited in the pool."""


class MiniSandbox:
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
        self._env = {**_BASE_ENV, **(environment() if self._proxy else {}), **spec.env}
        self._upper = -1
        self._outside_uid = -1
        self._ids = itertools.count(1)
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._replies: dict[int, asyncio.Future[int | None]] = {}
        self._kills: dict[int, asyncio.Future[None]] = {}
        self._cwds: dict[int, str] = {}
        self._sessions: list[MiniSession] = []
        self._closing = False
        self._end_reason = ""
        self._cgroups: dict[str, str] = {}
        self._disk: Path | None = None
        self._base: Path | None = None
        self._covered: tuple[str, ...] | None = None
        """Where other trees are mounted, if the upper layer holds all files; else None."""
        self._watch = Watch(self.end)
        self._link = Link(sock, self._on_message, self._on_end)

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
    def refused(self) -> tuple[Refusal, ...]:
        """What its programs asked the network for and did not get, as `allowed_hosts` does not name it."""
        return self._proxy.refused if self._proxy else ()

    # -- messages

    def _on_message(self, message: wire.Message, fds: list[int]) -> None:
        if "exit" in message:
            future = self._exits.pop(message["exit"], None)
            if future and not future.done():
                future.set_result(message["status"])
        elif "reply" in message:
            self._on_reply(message, fds)
            fds = []
        elif "killed" in message:
            self._cwds[message["killed"]] = message["cwd"]
            killed = self._kills.pop(message["killed"], None)
            if killed and not killed.done():
                killed.set_result(None)
        elif "ready" in message:
            self._upper = fds.pop(0)
            if self._proxy:
                self._proxy.start(socket.socket(fileno=fds.pop(0)))
            self._outside_uid = int(message["outside_uid"])
            if message.get("complete"):
                self._covered = tuple(message["covered"])
            if not self._ready.done():
                self._ready.set_result(None)
        elif "outside" in message:
            self._cgroups = message["outside"]["cgroups"]
            self._disk = Path(message["disk"]) if message["disk"] else None
            self._base = Path(message["base"])
        elif "fatal" in message and not self._ready.done():
            self._ready.set_exception(SandboxStartError(message["fatal"]))
            self._ready.exception()
        for fd in fds:
            os.close(fd)

    def _on_reply(self, message: wire.Message, fds: list[int]) -> None:
        future = self._replies.pop(message["reply"], None)
        if future is None or future.done():
            for fd in fds:
                os.close(fd)
        elif number := message.get("errno"):
            future.set_exception(OSError(number, os.strerror(number)))
        else:
            future.set_result(fds[0] if fds else None)

    def _on_end(self) -> None:
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
        for future in [*self._exits.values(), *self._replies.values(), *self._kills.values()]:
            if not future.done():
                future.set_exception(SandboxLostError(reason))
                future.exception()  # not every waiter is still there; no warning about that
        self._exits.clear()
        self._replies.clear()
        self._kills.clear()

    def mark_gone(self, reason: str = "") -> None:
        """The helper reaped it."""
        self._watch.stop()
        if self._proxy:
            self._proxy.stop()
        known = self._end_reason or reason or "the sandbox died"
        self.mark_lost("the sandbox was closed" if self._closing else known)
        if not self._gone.done():
            self._gone.set_result(None)

    async def wait_ready(self) -> None:
        """Until the first process has built its root."""
        async with asyncio.timeout(_START_TIMEOUT_S):
            await self._ready
        self._watch.start(self._spec.limits, self._disk)

    def end(self, reason: str) -> None:
        """Kill it for going over a limit that is watched from outside; what waits fails with `reason`."""
        self._end_reason = reason
        self._helper.request_close(self._name)

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

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        fds: tuple[int, ...],
        targets: tuple[int, ...],
        null: tuple[int, ...],
        cwd: str,
        env: Mapping[str, str] | None = None,
        fallback_cwd: str | None = None,
        terminal: str | None = None,
    ) -> tuple[int, asyncio.Future[int]]:
        """Start a program with `fds` as its descriptors `targets`, or on the `terminal` that
        `open_terminal` made. Returns its id and its status to come."""
        child = next(self._ids)
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exits[child] = exited
        message: wire.Message = {
            "op": "spawn",
            "id": child,
            "argv": list(argv),
            "env": {**self._env, **(env or {})},
            "cwd": cwd,
            "fallback_cwd": fallback_cwd,
            "targets": list(targets),
            "null": list(null),
            "terminal": terminal,
        }
        await self._link.send(message, fds)
        return child, exited

    async def kill(self, child: int, *, elapsed_s: float, shell: bool) -> None:
        """Kill what `child` started in the last `elapsed_s`, and it too unless a `shell` to be asked."""
        if child not in self._exits:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kills[child] = done
        await self._link.send({"op": "kill", "id": child, "since_s": _ago(elapsed_s), "shell": shell})
        waiting = {done, self._exits.get(child, done)}
        await asyncio.wait(waiting, timeout=_KILL_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)

    async def signal(self, child: int, elapsed_s: float, *, shell: int | None, tree: int | None) -> None:
        """Send a signal to `child`, and one to what it started in the last `elapsed_s`."""
        if child in self._exits:
            await self._link.send(
                {
                    "op": "signal",
                    "id": child,
                    "since_s": _ago(elapsed_s),
                    "shell": shell or 0,
                    "tree": tree or 0,
                }
            )

    async def jobs(self, shells: list[int], elapsed_s: float | None) -> tuple[Job, ...]:
        """What the shells left running, but for what started in the last `elapsed_s`."""
        since_s = None if elapsed_s is None else _ago(elapsed_s)
        fd = await self._ask({"op": "jobs", "shells": shells, "since_s": since_s})
        if fd is None:
            raise SandboxLostError("no descriptor came back")
        with open(fd, "rb") as file:
            return tuple(Job(int(pid), str(command)) for pid, command in json.load(file))

    def kill_soon(self, child: int, *, elapsed_s: float) -> None:
        """`kill` from where nothing can be awaited (cancellation)."""
        if not self._link.closed and child in self._exits:
            try:
                self._link.send_now({"op": "kill", "id": child, "since_s": _ago(elapsed_s), "shell": False})
            except (BlockingIOError, SandboxLostError):
                self._helper.request_close(self._name)  # it does not listen: end all of it

    def last_cwd(self, child: int) -> str:
        """Directory the shell was in when it was last interrupted, or ''."""
        return self._cwds.get(child, "")

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
                await asyncio.wait({exited}, timeout=_KILL_TIMEOUT_S)
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

    async def open_session(self) -> MiniSession:
        """See `sandbox.types.Sandbox.open_session`."""
        session = MiniSession(self)
        self._sessions.append(session)
        await session.start()
        return session

    async def _ask(self, message: wire.Message, fds: tuple[int, ...] = ()) -> int | None:
        number = next(self._ids)
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            await self._link.send({**message, "id": number}, fds)
            return await future
        finally:
            self._replies.pop(number, None)

    async def open_terminal(self) -> int:
        """The master end of a new pseudo-terminal inside; `sandbox.terminal` names and sizes it."""
        fd = await self._ask({"op": "terminal"})
        if fd is None:
            raise SandboxLostError("no descriptor came back")
        return fd

    async def read_file(self, path: str, *, limit_bytes: int = 16 * MIB) -> bytes:
        """See `sandbox.types.Sandbox.read_file`."""
        return await files.read(self._ask, path, limit_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `sandbox.types.Sandbox.write_file`."""
        await files.write(self._ask, path, data, mode)

    async def upload(self, source: Path, path: str) -> None:
        """See `sandbox.types.Sandbox.upload`."""
        await files.upload(self._ask, source, path)

    async def download(self, path: str, target: Path, *, limit_bytes: int = GIB) -> None:
        """See `sandbox.types.Sandbox.download`."""
        await files.download(self._ask, path, target, limit_bytes)

    async def diff(self, root: str) -> str:
        """See `sandbox.types.Sandbox.diff`."""
        if self._upper < 0:
            raise SandboxLostError("the sandbox is closed")
        upper = os.dup(self._upper)
        try:
            if self._covered is None or self._base is None:
                return await asyncio.to_thread(diff.make_patch, upper, self._spec.layers, root)
            layers = (*self._spec.layers, self._base)
            return await asyncio.to_thread(
                diff.make_patch, upper, layers, root, complete=True, covered=self._covered
            )
        finally:
            os.close(upper)

    async def fork(self) -> "MiniSandbox":
        """See `sandbox.types.Sandbox.fork`."""
        if self._upper < 0:
            raise SandboxLostError("the sandbox is closed")
        # The parent directory: /tmp and /dev/shm lie beside the overlay's upper.
        area = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._upper)
        try:
            await self._ask({"op": "pause"})
            try:
                return await self._backend.open_from(self._spec, origin=self._name, area=area)
            finally:
                await self._ask({"op": "resume"})
        finally:
            os.close(area)

    async def usage(self) -> Usage:
        """See `sandbox.types.Sandbox.usage`."""
        return read_usage(self._cgroups)

    async def close(self) -> None:
        """See `sandbox.types.Sandbox.close`."""
        self._closing = True
        self._helper.request_close(self._name)
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


def _ago(elapsed_s: float) -> float:
    """The time on CLOCK_BOOTTIME, which starts of processes are counted on, that long ago."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - elapsed_s
