"""Docker and podman as backends: a container per sandbox, over an image made from the same layers.

For the comparison with MiniSandbox, and for machines where containers are the rule. A container's command is
our first process (`sandbox.container_init`), run by the host's Python and bound in read-only below /.sandbox;
it connects to a socket there, and from then on all is as in MiniSandbox. Needs root (or whoever owns the
engine's storage), since changes are read from the upper directory. What it cannot do is in `LACKS`.
"""

import asyncio
import itertools
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sandbox
from sandbox import container_init, gc, process
from sandbox.allowlist import AllowList
from sandbox.cache_lease import Leases
from sandbox.conformance_base import Need
from sandbox.container_engine import LABEL, Engine, EngineName
from sandbox.container_image import Images
from sandbox.container_sandbox import ContainerSandbox
from sandbox.container_start import (
    command,
    copy_interpreter,
    forget_times,
    host_binds,
    listen,
    python_inside,
)
from sandbox.errors import SandboxError, SandboxLostError, SandboxStartError, SandboxUnavailableError
from sandbox.handle import owner_directory, record_plain_owner
from sandbox.mini import default_state_dir
from sandbox.program import run_program
from sandbox.stage import make_skeleton
from sandbox.types import SandboxSpec

_START_TIMEOUT_S = 120.0
_COPY_TIMEOUT_S = 600.0

LACKS: Mapping[Need, str] = {
    "limits": "the engine sets no size on what a container writes: one over disk_bytes is noticed a moment "
    "later and ended, where MiniSandbox refuses the write (memory and processes are limited by cgroups)",
}
UNSHIFTED = (
    "root inside is root outside, without capabilities: run the daemon with userns-remap, or podman as root"
)


class ContainerBackend:
    """Implements `sandbox.types.Backend`."""

    def __init__(
        self, engine: EngineName, *, program: Sequence[str] = (), state_dir: Path | None = None
    ) -> None:
        """`program`: the engine's command with options of its own, say a socket; by default its name."""
        self._engine = Engine(engine, program)
        self._state_root = state_dir or default_state_dir()
        self._directory: Path | None = None
        self._images: dict[bool, Images] = {}
        self._names = itertools.count(1)
        self._open: dict[str, ContainerSandbox] = {}
        self._removing: set[asyncio.Task[None]] = set()
        self._leases = Leases()
        self._version = ""
        self._shifted = False

    @property
    def name(self) -> str:
        """See `sandbox.types.Backend.name`."""
        return self._engine.name

    @property
    def directory(self) -> Path | None:
        """Where what is cleared after its owner's death lies."""
        return self._directory

    @property
    def facts(self) -> Mapping[str, Any]:
        """Engine and version, and what is lost beside MiniSandbox."""
        return {"mode": self.name, "version": self._version, "losses": tuple(self.lacks.values())}

    @property
    def lacks(self) -> Mapping[Need, str]:
        """What conformance checks cannot be asked of it, and why."""
        return LACKS if self._shifted else {**LACKS, "ids": UNSHIFTED}

    async def __aenter__(self) -> Self:
        """Raises SandboxUnavailableError. Removes containers whose owner no longer runs."""
        process.raise_file_limit()
        self._version = await self._engine.check()
        self._shifted = await self._engine.shifts_ids()
        self._directory = owner_directory(self._state_root)
        record_plain_owner(self._directory)
        await asyncio.to_thread(copy_interpreter, self._directory / "python")
        for name in await self._engine.sandboxes():
            if not process.is_alive("-".join(name.split("-")[1:4])):
                await self._engine.remove(name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(each.close() for each in list(self._open.values())))
        if self._removing:
            await asyncio.wait(self._removing)
        if self._directory:
            await asyncio.to_thread(gc.remove_tree, self._directory)
            self._directory = None

    async def open(self, spec: SandboxSpec) -> ContainerSandbox:
        """See `sandbox.types.Backend.open`. An image by its name is fetched where the engine can."""
        leases = self._leases.take(spec.layers)
        try:
            image = spec.image or await self._images_for(spec).of(spec.layers)
            opened = await self._start(spec, image)
        except SandboxStartError:
            self._leases.release(leases)
            raise
        except SandboxError as error:
            self._leases.release(leases)
            raise SandboxStartError(str(error)) from error
        except BaseException:
            self._leases.release(leases)
            raise
        opened.when_gone(lambda: self._leases.release(leases))
        return opened

    async def open_copy(self, spec: SandboxSpec, image: str, upper: Path) -> ContainerSandbox:
        """A sandbox like one of this backend, with a copy of what that has written."""
        return await self._start(spec, image, upper)

    def _images_for(self, spec: SandboxSpec) -> Images:
        network = spec.network != "none" or bool(spec.allowed_hosts)
        if network not in self._images:
            skeleton = self._own_directory() / f"skeleton{int(network)}"
            make_skeleton(str(skeleton), network=network)
            forget_times(skeleton)
            self._images[network] = Images(self._engine, skeleton)
        return self._images[network]

    def _own_directory(self) -> Path:
        if self._directory is None:
            raise SandboxUnavailableError("not entered: use `async with ContainerBackend(...)`")
        return self._directory

    async def _start(self, spec: SandboxSpec, image: str, upper: Path | None = None) -> ContainerSandbox:
        try:
            AllowList.parse(spec.allowed_hosts)
        except ValueError as error:
            raise SandboxStartError(str(error)) from error
        name = f"minisandbox-{process.tag(os.getpid())}-{id(self):x}-{next(self._names)}"
        link = self._own_directory() / name
        link.mkdir(mode=0o711)
        link.chmod(0o711)
        words = [
            "--name", name, "--label", LABEL,
            "--network", "host" if spec.network == "host" else "none",
            *self._engine.isolation(), *self._limits(spec), *self._mounts(spec, link),
            *command(image, spec),
        ]  # fmt: skip
        try:
            with listen(link) as listener:
                return await self._connect(listener, name, image, spec, words, upper)
        except BaseException as error:
            if name not in self._open:
                await asyncio.shield(self._engine.remove(name))
            if isinstance(error, TimeoutError):
                raise SandboxStartError("the container did not start in time") from error
            if isinstance(error, SandboxError) and not isinstance(
                error, SandboxStartError | SandboxLostError
            ):
                raise SandboxStartError(str(error)) from error
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, link, ignore_errors=True)

    async def _connect(
        self,
        listener: socket.socket,
        name: str,
        image: str,
        spec: SandboxSpec,
        words: list[str],
        upper: Path | None,
    ) -> ContainerSandbox:
        """Start the container and hear from it."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_START_TIMEOUT_S + (_COPY_TIMEOUT_S if upper else 0)):
            if upper is None:
                await self._engine.call(["run", "--detach", *words])
            else:
                await self._engine.call(["create", *words])
                await self._fill(name, upper)
                await self._engine.call(["start", name])
            sock, _ = await loop.sock_accept(listener)
            opened = ContainerSandbox(self, name, image, spec, sock)
            self._open[name] = opened
            try:
                await opened.wait_ready()
            except BaseException:
                await opened.close()
                raise
            return opened

    async def _fill(self, name: str, upper: Path) -> None:
        """Copy what another container wrote into the upper directory of one that has not started yet, marks
        and owners as they are. No link is followed; the other one's processes are stopped."""
        found = (await self._engine.inspect("container", name))["GraphDriver"]["Data"]["UpperDir"]
        words = ("cp", "--archive", "--reflink=auto", "--sparse=always", "--", f"{upper}/.", str(found))
        done = await run_program(words)
        if done.status != 0:
            raise SandboxStartError(
                f"copying the files: {done.problem.decode('utf-8', 'replace')[-300:].strip()}"
            )

    def _limits(self, spec: SandboxSpec) -> list[str]:
        limits = spec.limits
        return self._engine.limits(
            memory_bytes=limits.memory_bytes,
            pids=limits.pids,
            cpu_weight=limits.cpu_weight,
            open_files=limits.open_files,
        )

    def _mounts(self, spec: SandboxSpec, link: Path) -> list[str]:
        package = Path(sandbox.__file__).resolve().parent
        words = self._engine.mount(link, f"{container_init.HOME}/link")
        words += self._engine.mount(package, f"{container_init.HOME}/package/sandbox")
        words += self._engine.mount(Path(sys.base_prefix), f"{container_init.HOME}/python")
        words += self._engine.mount(self._own_directory() / "python", python_inside())
        for bind in (*(() if spec.image else host_binds()), *spec.binds):
            words += self._engine.mount(bind.source, bind.target, writable=bind.writable)
        return words

    def remove_soon(self, name: str) -> None:
        """Kill and remove a container, and tell its sandbox when it is gone. Asked twice, done once."""
        opened = self._open.pop(name, None)
        if opened is not None:
            task = asyncio.get_running_loop().create_task(self._remove(opened))
            self._removing.add(task)
            task.add_done_callback(self._removing.discard)

    async def _remove(self, opened: ContainerSandbox) -> None:
        try:
            await self._engine.remove(opened.id)
        except SandboxError as error:
            opened.mark_gone(f"the container could not be removed: {error}")
            return
        opened.mark_gone()
