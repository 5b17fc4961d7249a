"""The owner's hold on one helper process: starting it, talking to it, ending it and what it made.

`sandbox.mini` keeps one and makes another when it dies. Sandboxes die with their helper and are told so here.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox import gc, process, wire
from sandbox.errors import SandboxLostError, SandboxUnavailableError
from sandbox.link import Link

if TYPE_CHECKING:
    from sandbox.instance import MiniSandbox

_START_TIMEOUT_S = 60.0
_HELPER = "import sys; sys.path.insert(0, sys.argv.pop()); from sandbox.helper import main; main()"


class HelperHandle:
    """One helper. `await start()` once, `await stop()` in the end, also after its death."""

    def __init__(self, state_root: Path, pool_size: int, mode: str) -> None:
        """`mode`: one of `sandbox.overlay.Mode`, or `best`."""
        self._state_root = state_root
        self._pool_size = pool_size
        self._mode = mode
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sandboxes: dict[str, MiniSandbox] = {}
        """Name -> each that is open or opening."""
        self.hello: wire.Message = {}
        """What the helper found on this machine."""

    @property
    def alive(self) -> bool:
        """Whether it can be asked for sandboxes."""
        return self._link is not None and not self._link.closed

    @property
    def pid(self) -> int:
        """Its process id, 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def directory(self) -> Path | None:
        """Where what is cleared after its owner's death lies; None before the start."""
        return self._directory

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises SandboxUnavailableError or TimeoutError."""
        owner = os.getpid()
        self._directory = owner_directory(self._state_root)
        ours, theirs = wire.pair()
        with theirs:
            # Takes a millisecond and must stay in this thread: asyncio's own would add a child watcher.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-I", "-S", "-c", _HELPER, str(theirs.fileno()), str(owner),
                 str(self._directory), str(self._pool_size), self._mode,
                 str(Path(__file__).resolve().parent.parent)],
                pass_fds=(theirs.fileno(),), env=_helper_environment(), cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._link = Link(ours, self._on_message, self._on_end)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._started
        except BaseException:
            await self.stop()
            raise
        record = {"helper": process.tag(self._process.pid), "cgroups": self.hello["cgroup_directories"]}
        (self._directory / "owner.json").write_text(json.dumps(record), encoding="utf-8")

    async def stop(self) -> None:
        """End it with all its sandboxes and remove what it leaves. Idempotent."""
        if self._link:
            self._link.close()  # end of file makes the helper clean up and end
        if self._process:
            await asyncio.to_thread(self._process.wait)
            await asyncio.to_thread(gc.remove_cgroups, self.hello.get("cgroup_directories", []))
        self._lose_all()
        if self._directory:
            await asyncio.to_thread(gc.remove_tree, self._directory)

    def _on_message(self, message: wire.Message, fds: list[int]) -> None:
        if "closed" in message:
            sandbox = self.sandboxes.pop(message["closed"], None)
            if sandbox:
                sandbox.mark_gone(message["reason"])
        elif not self._started.done():
            if "fatal" in message:
                self._started.set_exception(SandboxUnavailableError(message["fatal"]))
            else:
                self.hello = message
                self._started.set_result(None)
        for fd in fds:
            os.close(fd)

    def _on_end(self) -> None:
        if not self._started.done():
            self._started.set_exception(SandboxUnavailableError("the sandbox helper did not start"))
        self._lose_all()

    def _lose_all(self) -> None:
        for sandbox in list(self.sandboxes.values()):
            sandbox.mark_gone()
        self.sandboxes.clear()

    async def request_open(self, sandbox: "MiniSandbox", request: wire.Message, fds: tuple[int, ...]) -> None:
        """Ask for one sandbox; it hears the rest on its own socket. Raises SandboxLostError."""
        if self._link is None:
            raise SandboxLostError("the sandbox helper was never started")
        self.sandboxes[sandbox.id] = sandbox
        try:
            await self._link.send(request, fds)
        except SandboxLostError:
            self.sandboxes.pop(sandbox.id, None)
            sandbox.mark_gone()
            raise

    def request_close(self, name: str) -> None:
        """Ask it to kill one sandbox."""
        if self._link and self.alive and name in self.sandboxes:
            try:
                self._link.send_now({"op": "close", "name": name})
            except BlockingIOError:
                asyncio.get_running_loop().call_later(0.01, self.request_close, name)
            except SandboxLostError:
                return  # on_end marks it


def _helper_environment() -> dict[str, str]:
    """Nothing of ours but what the interpreter may need to load."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def owner_directory(state_root: Path) -> Path:
    """A fresh directory below `state_root`, named so that `sandbox.gc` knows whose it is. Several backends
    may live in one process; each has its own. Raises SandboxUnavailableError."""
    state_root.mkdir(mode=0o711, parents=True, exist_ok=True)
    if state_root.stat().st_uid != os.geteuid():
        raise SandboxUnavailableError(f"{state_root} belongs to somebody else; pass another state_dir")
    directory = Path(tempfile.mkdtemp(prefix=process.tag(os.getpid()) + ".", dir=state_root))
    directory.chmod(0o711)
    return directory


def record_plain_owner(directory: Path) -> None:
    """For an owner with neither helper nor cgroups."""
    (directory / "owner.json").write_text(json.dumps({"helper": "", "cgroups": []}), encoding="utf-8")
