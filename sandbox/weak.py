"""The Landlock mode: for machines where not even user namespaces are to be had. WEAKER than MiniSandbox.

Layers are copied to a private directory per sandbox, and Landlock lets commands read the host's programs and
write nowhere else; a system-call filter takes sockets, tracing and shared memory away. There is no root of
its own: paths of layers are mapped into the directory. `LOSSES` says what does not hold. Never chosen
silently: see `sandbox.fallback`. The processes are in `sandbox.weak_init`.
"""

import asyncio
import dataclasses
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from sandbox import diff, gc, landlock, process, wire
from sandbox.conformance_base import Need
from sandbox.errors import SandboxLostError, SandboxStartError, SandboxUnavailableError
from sandbox.handle import HelperHandle, owner_directory, record_plain_owner
from sandbox.instance import MiniSandbox
from sandbox.mini import MiniBackend, default_state_dir
from sandbox.types import Changes, SandboxSpec, Usage

_START_TIMEOUT_S = 120.0
_SUPERVISOR = "import sys; sys.path.insert(0, sys.argv.pop()); from sandbox.weak_init import main; main()"

LACKS: Mapping[Need, str] = {
    "root": "no root of its own: layers lie in a private directory, the host's /usr, /etc (in part), /dev "
    "and /proc are what they are outside; absolute paths of layers work in file calls, environment and "
    "working directory, not in commands",
    "limits": "memory is limited per process only; disk use is looked at twice a second; without root the "
    "process limit counts all processes of the user",
    "network": "no sockets at all but socket pairs, so no loopback for test suites that start servers",
    "processes": "command lines of all processes of the machine are visible, and how many descriptors "
    "this user's processes have open",
}
LOSSES: tuple[str, ...] = (
    *LACKS.values(),
    "existence, size and times of any file are visible to commands, contents only where allowed",
    "no pseudo-terminals, /dev/shm or System V IPC",
    "commands can end their own sandbox's first process",
    "one kernel facility (Landlock) is the wall; there is no second one behind it for files",
)
SAME_USER_LOSS = (
    "no user id of its own (not root): chmod, chown, changing times and attributes are refused everywhere"
)


class _Supervisor:
    """What the sandbox needs of `sandbox.handle.HelperHandle`: closing the pipe ends it."""

    def __init__(self, life: int) -> None:
        self._life = life

    def request_close(self, _name: str) -> None:
        """End the sandbox."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1


class WeakSandbox(MiniSandbox):
    """A sandbox of the Landlock mode."""

    def __init__(
        self,
        backend: "LandlockBackend",
        supervisor: _Supervisor,
        name: str,
        spec: SandboxSpec,
        sock: socket.socket,
    ) -> None:
        # The two classes use one method of the backend and one of its helper, which both are here.
        super().__init__(cast(MiniBackend, backend), cast(HelperHandle, supervisor), name, spec, sock)
        self._landlock = backend

    def keep(self, directory: Path) -> None:
        """Remember where its files are; they go when it is closed, and are measured until then."""
        self._disk = directory

    async def send_request(self, request: wire.Message, fds: tuple[int, ...]) -> None:
        """The supervisor's only message."""
        await self._link.send(request, fds)

    async def diff(self, root: str) -> str:
        """See `sandbox.types.Sandbox.diff`."""
        return (await self.changes(root)).patch

    async def changes(self, root: str) -> Changes:
        """See `sandbox.types.Sandbox.changes`; compares all files, for there is no upper layer."""
        if self._upper < 0:
            raise SandboxLostError("the sandbox is closed")
        upper = os.dup(self._upper)
        try:
            find = partial(diff.find_changes, upper, self._spec.layers, root, complete=True)
            return await asyncio.to_thread(find, scratch=self._landlock.directory)
        finally:
            os.close(upper)

    async def fork(self) -> "WeakSandbox":
        """See `sandbox.types.Sandbox.fork`."""
        if self._upper < 0:
            raise SandboxLostError("the sandbox is closed")
        source = os.dup(self._upper)
        try:
            await self.ask({"op": "pause"})
            try:
                return await self._landlock.open(self._spec, copy_of=source, former=self._disk)
            finally:
                await self.ask({"op": "resume"})
        finally:
            os.close(source)

    async def usage(self) -> Usage:
        """Nothing is known without cgroups."""
        return Usage(memory_peak_bytes=None, cpu_s=None, oom_kills=None)


class LandlockBackend:
    """Implements `sandbox.types.Backend`, with less isolation: see `facts["losses"]`."""

    def __init__(self, *, state_dir: Path | None = None) -> None:
        self._state_root = state_dir or default_state_dir()
        self._directory: Path | None = None
        self._names = itertools.count(1)
        self._open: dict[str, WeakSandbox] = {}

    @property
    def name(self) -> str:
        """See `sandbox.types.Backend.name`."""
        return "landlock"

    @property
    def directory(self) -> Path | None:
        """Where what is cleared after its death lies."""
        return self._directory

    @property
    def lacks(self) -> Mapping[Need, str]:
        """What conformance checks cannot be asked of it, and why."""
        return LACKS

    @property
    def facts(self) -> Mapping[str, Any]:
        """Mode, and what is lost in it."""
        losses = LOSSES if os.geteuid() == 0 else (*LOSSES, SAME_USER_LOSS)
        return {"mode": "landlock", "weak": True, "losses": losses, "landlock_abi": landlock.abi()}

    async def __aenter__(self) -> Self:
        if landlock.abi() == 0:
            raise SandboxUnavailableError(
                "no Landlock: a kernel of 5.13 or later with landlock in its lsm= list, and a container "
                "whose filter allows its calls"
            )
        self._directory = owner_directory(self._state_root)
        record_plain_owner(self._directory)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        if self._directory:
            await asyncio.to_thread(gc.remove_tree, self._directory)

    async def open(self, spec: SandboxSpec, *, copy_of: int = -1, former: Path | None = None) -> WeakSandbox:
        """See `sandbox.types.Backend.open`; `copy_of` is a descriptor of the directory `former` of a
        sandbox to fork."""
        if self._directory is None:
            raise SandboxUnavailableError("not entered: use `async with LandlockBackend()`")
        if spec.network == "host" or spec.allowed_hosts:
            raise SandboxStartError("the Landlock mode has no network")
        if spec.image:
            raise SandboxStartError("only container backends open images by name")
        name = f"{process.tag(os.getpid())}-{id(self):x}-{next(self._names)}"
        directory = self._directory / str(next(self._names))
        directory.mkdir(mode=0o700)
        ours, theirs = wire.pair()
        life_read, life_write = os.pipe2(os.O_CLOEXEC)
        with theirs:
            running = _start(theirs, life_read)
        os.close(life_read)
        sandbox = WeakSandbox(self, _Supervisor(life_write), name, _with_scratch(spec), ours)
        sandbox.keep(directory)
        self._open[name] = sandbox
        self._watch_end(running, sandbox)
        try:
            await sandbox.send_request(_request(spec, directory, former), (copy_of,) if copy_of >= 0 else ())
            await sandbox.wait_ready()
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, TimeoutError):
                raise SandboxStartError("the sandbox did not start in time") from error
            raise
        return sandbox

    def _watch_end(self, running: "subprocess.Popen[bytes]", sandbox: WeakSandbox) -> None:
        loop = asyncio.get_running_loop()
        fd = os.pidfd_open(running.pid)

        def ended() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            running.wait()  # readable: it is a zombie, so this does not block
            self._open.pop(sandbox.id, None)
            sandbox.mark_gone()

        loop.add_reader(fd, ended)


def _start(sock: socket.socket, life: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SUPERVISOR, str(sock.fileno()), str(life), str(os.getpid()),
         str(Path(__file__).resolve().parent.parent)],
        pass_fds=(sock.fileno(), life), cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
    )  # fmt: skip


def _with_scratch(spec: SandboxSpec) -> SandboxSpec:
    """Programs look for /tmp by name unless told; the mapped one is private."""
    return dataclasses.replace(spec, env={"TMPDIR": "/tmp", **spec.env})


def _request(spec: SandboxSpec, directory: Path, former: Path | None) -> wire.Message:
    return {
        "root": str(directory.resolve()),
        "former": str(former.resolve()) if former else None,
        "layers": [str(layer) for layer in spec.layers],
        "binds": [[str(bind.source), bind.target, bind.writable] for bind in spec.binds],
        "workdir": spec.workdir,
        "limits": {
            "memory_bytes": spec.limits.memory_bytes,
            "pids": spec.limits.pids,
            "open_files": spec.limits.open_files,
        },
    }
