"""One open container: a MiniSandbox whose walls are an engine's.

Commands, sessions and files go through our own first process inside, as in MiniSandbox and over the same
socket; the engine makes and removes the container and nothing else. Changes are read from the container's
upper directory as the kernel names it.
"""

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sandbox import diff, wire
from sandbox.container_root import OverlayRoot, find_cgroups, find_root
from sandbox.errors import SandboxError, SandboxLostError, SandboxStartError
from sandbox.handle import HelperHandle
from sandbox.instance import MiniSandbox
from sandbox.mini import MiniBackend
from sandbox.types import Changes, SandboxSpec, Usage
from sandbox.usage import read_usage

if TYPE_CHECKING:
    from sandbox.container import ContainerBackend

COVERED = (
    "/usr", "/proc", "/sys", "/dev", "/.sandbox", "/.dockerenv", "/etc/hosts", "/etc/hostname", "/etc/mtab",
    "/etc/resolv.conf", "/run/.containerenv", "/run/secrets",
)  # fmt: skip
"""What the engine or we mount in every container, or make a place for; none of it is a change."""


class Remover:
    """What the sandbox needs of `sandbox.handle.HelperHandle`: asking for its end."""

    def __init__(self, backend: "ContainerBackend") -> None:
        self._backend = backend

    def request_close(self, name: str) -> None:
        """Kill and remove the container; the sandbox hears of it by `mark_gone`."""
        self._backend.remove_soon(name)


class ContainerSandbox(MiniSandbox):
    """A sandbox in a container."""

    def __init__(
        self, backend: "ContainerBackend", name: str, image: str, spec: SandboxSpec, sock: socket.socket
    ) -> None:
        # The base class uses one method of the helper, which `Remover` has, and nothing of the backend here.
        super().__init__(cast(MiniBackend, backend), cast(HelperHandle, Remover(backend)), name, spec, sock)
        self._containers = backend
        self.image = image
        """Name of its image."""
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self._pid, self._outside_uid = (int.from_bytes(credentials[at : at + 4], "little") for at in (0, 4))
        self._root: OverlayRoot | None = None
        self._cgroups = find_cgroups(self._pid)

    def on_other(self, message: wire.Message, fds: list[int]) -> None:
        """See `FirstProcess.on_other`."""
        if "ready" in message:
            if self._proxy and fds:
                self._proxy.start(socket.socket(fileno=fds.pop(0)))
            if not self._ready.done():
                self._ready.set_result(None)
        elif "fatal" in message and not self._ready.done():
            self._ready.set_exception(SandboxStartError(message["fatal"]))
            self._ready.exception()

    def on_end(self) -> None:
        """See `FirstProcess.on_end`: without its first process the container has ended."""
        self._link.close()
        reason = "the sandbox was closed" if self._closing else "the container's first process ended"
        self.mark_lost(self._end_reason or self._link.problem or reason)
        self.request_close()

    async def wait_ready(self) -> None:
        """See `MiniSandbox.wait_ready`."""
        try:
            self._root = await asyncio.to_thread(find_root, self._pid)
        except SandboxError as error:
            raise SandboxStartError(str(error)) from error
        # The engine knows no limit of what is written, so it is watched, as a disk upper is.
        self._disk = self._root.upper
        await super().wait_ready()

    async def changes(self, root: str) -> Changes:
        """See `sandbox.types.Sandbox.changes`."""
        overlay = self._open_root()
        covered = (*COVERED, *(bind.target for bind in self._spec.binds))
        upper = os.open(overlay.upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return await asyncio.to_thread(
                diff.find_changes,
                upper,
                overlay.lower,
                root,
                covered=covered,
                scratch=self._containers.directory,
            )
        finally:
            os.close(upper)

    async def fork(self) -> "ContainerSandbox":
        """See `sandbox.types.Sandbox.fork`; /dev/shm is not copied."""
        overlay = self._open_root()
        await self.ask({"op": "pause"})
        try:
            return await self._containers.open_copy(self._spec, self.image, overlay.upper)
        finally:
            await self.ask({"op": "resume"})

    async def usage(self) -> Usage:
        """See `sandbox.types.Sandbox.usage`."""
        return read_usage(self._cgroups)

    async def close(self) -> None:
        """See `sandbox.types.Sandbox.close`."""
        self._disk = None  # the engine removes it
        await super().close()

    def _open_root(self) -> OverlayRoot:
        if self._root is None or not self.alive:
            raise SandboxLostError("the sandbox is closed")
        return self._root

    @property
    def upper(self) -> Path:
        """Directory of what was written, outside."""
        return self._open_root().upper
