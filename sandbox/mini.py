"""MiniSandbox, the namespaces backend: the owner's side.

`MiniBackend` starts the helper and asks it for sandboxes; a `MiniSandbox` talks to its own first process
(`sandbox.init`) directly. Everything is asynchronous; one backend belongs to one event loop.
"""

import asyncio
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sandbox import diff, process, wire
from sandbox.errors import SandboxLostError, SandboxStartError, SandboxUnavailableError
from sandbox.link import Link
from sandbox.output import Collector, PipeReader
from sandbox.session import MiniSession
from sandbox.types import MIB, ExecResult, SandboxSpec

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
_HELPER = "import sys; sys.path.insert(0, sys.argv.pop()); from sandbox.helper import main; main()"


def default_state_dir() -> Path:
    """Where owners leave their names, for `sandbox.gc`."""
    return Path(tempfile.gettempdir()) / f"minisandbox-{os.geteuid()}"


class MiniSandbox:
    """Implements `sandbox.types.Sandbox`."""

    def __init__(self, backend: "MiniBackend", name: str, spec: SandboxSpec, sock: socket.socket) -> None:
        self._backend = backend
        self._name = name
        self._spec = spec
        self._env = {**_BASE_ENV, **spec.env}
        self._upper = -1
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
    def limits(self):
        """The limits it was opened with."""
        return self._spec.limits

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
            self._upper = fds.pop()
            if not self._ready.done():
                self._ready.set_result(None)
        elif "fatal" in message and not self._ready.done():
            self._ready.set_exception(SandboxStartError(message["fatal"]))
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
        self.mark_lost("the sandbox's first process ended")

    def mark_lost(self, reason: str) -> None:
        """Fail everything that waits."""
        self._link.close()
        if not self._ready.done():
            self._ready.set_exception(SandboxStartError(reason))
        for future in [*self._exits.values(), *self._replies.values(), *self._kills.values()]:
            if not future.done():
                future.set_exception(SandboxLostError(reason))
                future.exception()  # not every waiter is still there; no warning about that
        self._exits.clear()
        self._replies.clear()
        self._kills.clear()

    def mark_gone(self) -> None:
        """The helper reaped it."""
        self.mark_lost("the sandbox was closed" if self._closing else "the sandbox died")
        if not self._gone.done():
            self._gone.set_result(None)

    async def wait_ready(self) -> None:
        """Until the first process has built its root."""
        async with asyncio.timeout(_START_TIMEOUT_S):
            await self._ready

    # -- for sessions

    def make_pipe(self) -> tuple[int, int]:
        """A pipe whose ends may be reopened inside through /dev/stdout and the like."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        uid = self._backend.outside_uid
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
    ) -> tuple[int, asyncio.Future[int]]:
        """Start a program with `fds` as its descriptors `targets`. Returns its id and a future of its status."""
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
        }
        await self._link.send(message, fds)
        return child, exited

    async def kill(self, child: int, *, elapsed_s: float, shell: bool) -> None:
        """Kill what `child` started in the last `elapsed_s`; `child` too unless it is a `shell` to be asked."""
        if child not in self._exits:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kills[child] = done
        await self._link.send({"op": "kill", "id": child, "elapsed_s": elapsed_s, "shell": shell})
        await asyncio.wait({done, self._exits.get(child, done)}, timeout=_KILL_TIMEOUT_S)

    def kill_soon(self, child: int, *, elapsed_s: float) -> None:
        """`kill` from where nothing can be awaited (cancellation)."""
        if not self._link.closed and child in self._exits:
            try:
                self._link.send_now({"op": "kill", "id": child, "elapsed_s": elapsed_s, "shell": False})
            except (BlockingIOError, SandboxLostError):
                self._backend.request_close(self._name)  # it does not listen: end all of it

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
        output, truncated = collector.result()
        return ExecResult(
            output=output,
            exit_status=None if timed_out else status,
            timed_out=timed_out,
            truncated=truncated,
            duration_s=time.monotonic() - started,
        )

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

    async def read_file(self, path: str, *, limit_bytes: int = 16 * MIB) -> bytes:
        """See `sandbox.types.Sandbox.read_file`."""
        try:
            fd = await self._ask({"op": "read", "path": path})
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None
        if fd is None:
            raise SandboxLostError("no descriptor came back")
        return await asyncio.to_thread(diff.read_regular, fd, path, limit_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `sandbox.types.Sandbox.write_file`."""
        fd = wire.memory_file(data)
        try:
            await self._ask({"op": "write", "path": path, "mode": mode}, (fd,))
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)

    async def diff(self, root: str) -> str:
        """See `sandbox.types.Sandbox.diff`."""
        if self._upper < 0:
            raise SandboxLostError("the sandbox is closed")
        upper = os.dup(self._upper)
        try:
            return await asyncio.to_thread(diff.make_patch, upper, self._spec.layers, root)
        finally:
            os.close(upper)

    async def close(self) -> None:
        """See `sandbox.types.Sandbox.close`."""
        self._closing = True
        self._backend.request_close(self._name)
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await asyncio.shield(self._gone)
        self._link.close()
        for session in self._sessions:
            await session.close()
        if self._upper >= 0:
            os.close(self._upper)
            self._upper = -1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class MiniBackend:
    """Implements `sandbox.types.Backend`."""

    def __init__(self, *, state_dir: Path | None = None) -> None:
        self._state_root = state_dir or default_state_dir()
        self._directory: Path | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._sandboxes: dict[str, MiniSandbox] = {}
        self._names = itertools.count(1)
        self._hello: wire.Message = {}
        self._started: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        """See `sandbox.types.Backend.name`."""
        return "mini"

    @property
    def outside_uid(self) -> int:
        """Id outside of uid 0 inside."""
        return int(self._hello["outside_uid"])

    @property
    def facts(self) -> Mapping[str, object]:
        """What the helper found: shifted ids, cgroup version and controllers."""
        return self._hello

    async def __aenter__(self) -> Self:
        owner = os.getpid()
        # Several backends may live in one process (tests); each has its own directory.
        self._directory = Path(
            tempfile.mkdtemp(prefix=process.tag(owner) + ".", dir=_private_directory(self._state_root))
        )
        os.chmod(self._directory, 0o711)
        ours, theirs = wire.pair()
        with theirs:
            self._helper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _HELPER, str(theirs.fileno()), str(owner),
                 str(self._directory), str(Path(__file__).resolve().parent.parent)],
                pass_fds=(theirs.fileno(),), env={}, cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._started = asyncio.get_running_loop().create_future()
        self._link = Link(ours, self._on_message, self._on_end)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._started
        except BaseException:
            await self._stop()
            raise
        record = {"helper": process.tag(self._helper.pid), "cgroups": self._hello["cgroup_directories"]}
        (self._directory / "owner.json").write_text(json.dumps(record), encoding="utf-8")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes.values())))
        await self._stop()

    async def _stop(self) -> None:
        if self._link:
            self._link.close()  # end of file makes the helper clean up and end
        if self._helper:
            await asyncio.to_thread(self._helper.wait)
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _on_message(self, message: wire.Message, fds: list[int]) -> None:
        if "closed" in message:
            sandbox = self._sandboxes.pop(message["closed"], None)
            if sandbox:
                sandbox.mark_gone()
        elif self._started and not self._started.done():
            if "fatal" in message:
                self._started.set_exception(SandboxUnavailableError(message["fatal"]))
            else:
                self._hello = message
                self._started.set_result(None)
        for fd in fds:
            os.close(fd)

    def _on_end(self) -> None:
        if self._started and not self._started.done():
            self._started.set_exception(SandboxUnavailableError("the sandbox helper did not start"))
        # Its sandboxes died with it.
        for sandbox in list(self._sandboxes.values()):
            sandbox.mark_gone()
        self._sandboxes.clear()

    def request_close(self, name: str) -> None:
        """Ask the helper to kill one sandbox."""
        if self._link and not self._link.closed and name in self._sandboxes:
            try:
                self._link.send_now({"op": "close", "name": name})
            except BlockingIOError:
                asyncio.get_running_loop().call_later(0.01, self.request_close, name)
            except SandboxLostError:
                return  # on_end marks it

    async def open(self, spec: SandboxSpec) -> MiniSandbox:
        """See `sandbox.types.Backend.open`."""
        if not self._link or self._link.closed:
            raise SandboxUnavailableError("the sandbox helper is not running: use `async with MiniBackend()`")
        owner = process.tag(os.getpid())
        name = f"{owner}-{id(self):x}-{next(self._names)}"
        ours, theirs = wire.pair()
        with theirs:
            sandbox = MiniSandbox(self, name, spec, ours)
            self._sandboxes[name] = sandbox
            await self._link.send(_request(name, spec), (theirs.fileno(),))
        try:
            await sandbox.wait_ready()
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, TimeoutError):
                raise SandboxStartError("the sandbox did not start in time") from error
            raise
        return sandbox


def _private_directory(path: Path) -> Path:
    path.mkdir(mode=0o711, parents=True, exist_ok=True)
    if path.stat().st_uid != os.geteuid():
        raise SandboxUnavailableError(f"{path} belongs to somebody else; pass another state_dir")
    return path


def _request(name: str, spec: SandboxSpec) -> wire.Message:
    return {
        "op": "open",
        "name": name,
        "layers": [str(layer) for layer in spec.layers],
        "binds": [[str(bind.source), bind.target, bind.writable] for bind in spec.binds],
        "workdir": spec.workdir,
        "network": spec.network,
        "limits": {
            "memory_bytes": spec.limits.memory_bytes,
            "pids": spec.limits.pids,
            "disk_bytes": spec.limits.disk_bytes,
            "open_files": spec.limits.open_files,
        },
    }
