"""MiniSandbox, the namespaces backend: the owner's side of the helper.

`async with MiniBackend() as backend` starts the helper and opens sandboxes through it. Everything is
asynchronous; one backend belongs to one event loop. What one open sandbox does is in `sandbox.instance`.
"""

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sandbox import gc, process, wire
from sandbox.errors import SandboxLostError, SandboxStartError, SandboxUnavailableError
from sandbox.instance import MiniSandbox
from sandbox.link import Link
from sandbox.types import SandboxSpec

_START_TIMEOUT_S = 60.0
_HELPER = "import sys; sys.path.insert(0, sys.argv.pop()); from sandbox.helper import main; main()"


def default_state_dir() -> Path:
    """Where owners leave their names, for `sandbox.gc`."""
    return Path(tempfile.gettempdir()) / f"minisandbox-{os.geteuid()}"


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
    def facts(self) -> Mapping[str, Any]:
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
            # Takes a millisecond and must stay in this thread: asyncio's own would add a child watcher.
            self._helper = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-I", "-S", "-c", _HELPER, str(theirs.fileno()), str(owner),
                 str(self._directory), str(Path(__file__).resolve().parent.parent)],
                pass_fds=(theirs.fileno(),), env=_helper_environment(), cwd="/",
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
        try:
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes.values())))
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if self._link:
            self._link.close()  # end of file makes the helper clean up and end
        if self._helper:
            await asyncio.to_thread(self._helper.wait)
            await asyncio.to_thread(gc.remove_cgroups, self._hello.get("cgroup_directories", []))
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


def _helper_environment() -> dict[str, str]:
    """Nothing of ours but what the interpreter may need to load."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


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
