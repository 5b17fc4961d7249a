"""MiniSandbox, the namespaces backend: the owner's side of the helper.

`async with MiniBackend() as backend` starts the helper and opens sandboxes through it. Everything is
asynchronous; one backend belongs to one event loop. What one open sandbox does is in `sandbox.instance`.
"""

import asyncio
import itertools
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sandbox import process, wire
from sandbox.allowlist import AllowList
from sandbox.cache_lease import Leases
from sandbox.conformance_base import Need
from sandbox.errors import SandboxStartError, SandboxUnavailableError
from sandbox.handle import HelperHandle
from sandbox.instance import DiedEarlyError, MiniSandbox
from sandbox.overlay import Mode
from sandbox.proxy import PORT, uses_proxy
from sandbox.types import SandboxSpec

POOL_SIZE = 4
"""Sandboxes held ready by default: about 1 MB each, for the next starts within some milliseconds."""


def default_state_dir() -> Path:
    """Where owners leave their names, for `sandbox.gc`."""
    return Path(tempfile.gettempdir()) / f"minisandbox-{os.geteuid()}"


class MiniBackend:
    """Implements `sandbox.types.Backend`."""

    def __init__(
        self, *, state_dir: Path | None = None, pool_size: int = POOL_SIZE, mode: Mode | None = None
    ) -> None:
        """`mode`: how roots are made, by default the best way that works here; see docs/security.md."""
        self._mode = mode
        self._state_root = state_dir or default_state_dir()
        self._pool_size = pool_size
        self._helper: HelperHandle | None = None
        self._names = itertools.count(1)
        self._restart = asyncio.Lock()
        self._leases = Leases()

    @property
    def name(self) -> str:
        """See `sandbox.types.Backend.name`."""
        return "mini"

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the helper found: shifted ids, cgroup version and controllers, mode and default upper."""
        return self._helper.hello if self._helper else {}

    @property
    def lacks(self) -> Mapping[Need, str]:
        """What conformance checks cannot be asked of it here, and why."""
        facts = self.facts
        if not facts or facts["shifted"] or facts["outside_uid"] != 0:
            return {}
        lost: dict[Need, str] = {
            "ids": "layers that cannot be idmapped: root inside has the id of root outside"
        }
        if "pids" not in facts["controllers"]:
            lost["limits"] = "no cgroup, and the kernel does not count root's processes (RLIMIT_NPROC)"
        return lost

    @property
    def helper_pid(self) -> int:
        """Process id of the helper, 0 when none was started."""
        return self._helper.pid if self._helper else 0

    async def __aenter__(self) -> Self:
        """Raises SandboxUnavailableError. From then on this process may open all the files it ever can."""
        process.raise_file_limit()
        await self._start_helper()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        helper, self._helper = self._helper, None
        if helper:
            try:
                await asyncio.gather(*(sandbox.close() for sandbox in list(helper.sandboxes.values())))
            finally:
                await helper.stop()

    async def _start_helper(self) -> HelperHandle:
        helper = HelperHandle(self._state_root, self._pool_size, self._mode or "best")
        try:
            await helper.start()
        except OSError as error:
            await helper.stop()
            raise SandboxUnavailableError(process.explain(error)) from error
        self._helper = helper
        return helper

    async def _live_helper(self) -> HelperHandle:
        """The helper, or a new one in place of one that died: its sandboxes are lost, the next are not."""
        if self._helper is None:
            raise SandboxUnavailableError("the sandbox helper is not running: use `async with MiniBackend()`")
        if self._helper.alive:
            return self._helper
        async with self._restart:
            if not self._helper.alive:
                await self._helper.stop()
                await self._start_helper()
            return self._helper

    async def open(self, spec: SandboxSpec) -> MiniSandbox:
        """See `sandbox.types.Backend.open`."""
        return await self.open_from(spec)

    async def open_from(self, spec: SandboxSpec, *, origin: str = "", area: int = -1) -> MiniSandbox:
        """`open`, for forks with the files in another one's writable area, given by descriptor."""
        if spec.image:
            raise SandboxStartError("only container backends open images by name")
        try:
            AllowList.parse(spec.allowed_hosts)
        except ValueError as error:
            raise SandboxStartError(str(error)) from error
        try:
            return await self._open_once(spec, origin, area)
        except DiedEarlyError:
            return await self._open_once(spec, origin, area)

    async def _open_once(self, spec: SandboxSpec, origin: str, area: int) -> MiniSandbox:
        helper = await self._live_helper()
        leases = self._leases.take(spec.layers)
        try:
            name = f"{process.tag(os.getpid())}-{id(self):x}-{next(self._names)}"
            ours, theirs = wire.pair()
        except OSError as error:
            self._leases.release(leases)
            raise SandboxStartError(process.explain(error)) from error
        with theirs:
            sandbox = MiniSandbox(self, helper, name, spec, ours)
            sandbox.when_gone(partial(self._leases.release, leases))
            fds = (theirs.fileno(), area) if origin else (theirs.fileno(),)
            try:
                await helper.request_open(sandbox, {**_request(name, spec), "fork_of": origin}, fds)
            except OSError as error:
                await sandbox.close()
                raise SandboxStartError(process.explain(error)) from error
            except BaseException:
                await sandbox.close()
                raise
        try:
            await sandbox.wait_ready()
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, TimeoutError):
                raise SandboxStartError("the sandbox did not start in time") from error
            raise
        return sandbox


def _request(name: str, spec: SandboxSpec) -> wire.Message:
    return {
        "op": "open",
        "name": name,
        "layers": [str(layer) for layer in spec.layers],
        "binds": [[str(bind.source), bind.target, bind.writable] for bind in spec.binds],
        "workdir": spec.workdir,
        "network": spec.network,
        "proxy_port": PORT if uses_proxy(spec) else 0,
        "upper": spec.upper,
        "limits": {
            "memory_bytes": spec.limits.memory_bytes,
            "pids": spec.limits.pids,
            "disk_bytes": spec.limits.disk_bytes,
            "open_files": spec.limits.open_files,
            "cpu_weight": spec.limits.cpu_weight,
        },
    }
