"""SWE-ReX on MiniSandbox: a deployment that takes the place of `DockerDeployment`.

`MiniSandboxDeployment(layers=[...])` gives SWE-agent, or whatever else speaks SWE-ReX, a runtime in a sandbox
instead of a container; no server runs inside and no port is opened. Needs the extra `rex`; nothing
else of this package imports it. docs/rex.md is the user's page.
"""

import asyncio
import logging
from typing import Any, Self

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError
from swerex.runtime.abstract import IsAliveResponse
from swerex.utils.log import get_logger

from sandbox.errors import SandboxError
from sandbox.rex_config import BindConfig, MiniSandboxDeploymentConfig
from sandbox.rex_host import SandboxHost, shared_host
from sandbox.rex_runtime import MiniSandboxRuntime, SandboxGoneError
from sandbox.types import Sandbox

__all__ = [
    "BindConfig",
    "MiniSandboxDeployment",
    "MiniSandboxDeploymentConfig",
    "MiniSandboxRuntime",
    "SandboxGoneError",
    "SandboxHost",
]


class MiniSandboxDeployment(AbstractDeployment):
    """One sandbox per deployment; its methods may be called from any event loop, one after another."""

    def __init__(
        self, *, host: SandboxHost | None = None, logger: logging.Logger | None = None, **kwargs: Any
    ) -> None:
        """`kwargs` are the fields of `MiniSandboxDeploymentConfig`. All deployments of a process share one
        host, unless another is given."""
        self.logger = logger or get_logger("rex-deploy")
        self._config = MiniSandboxDeploymentConfig(**kwargs)
        self._host = host or shared_host(self._config.state_dir)
        self._hooks = CombinedDeploymentHook()
        self._sandbox: Sandbox | None = None
        self._runtime: MiniSandboxRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        """Be told what `start` is doing."""
        self._hooks.add_hook(hook)

    @classmethod
    def from_config(cls, config: MiniSandboxDeploymentConfig) -> Self:
        """As `get_deployment` of the configuration does."""
        return cls(**config.model_dump())

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the sandbox answers. Raises DeploymentNotStartedError before `start`."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Open the sandbox. Raises DeploymentStartupError, also when it is open already."""
        if self._runtime is not None:
            raise DeploymentStartupError("the deployment is already started; stop it first")
        self._hooks.on_custom_step("Opening sandbox")
        self._host.enter()
        try:
            spec = self._config.spec()
            async with asyncio.timeout(self._config.startup_timeout):
                sandbox = await self._host.open(spec)
        except BaseException as error:
            await asyncio.to_thread(self._host.leave)
            if isinstance(error, SandboxError | TimeoutError | OSError):
                raise DeploymentStartupError(f"the sandbox did not open: {error}") from error
            raise
        self._hooks.on_custom_step("Starting runtime")
        self._sandbox = sandbox
        self._runtime = MiniSandboxRuntime(
            sandbox,
            workdir=spec.workdir,
            host=self._host,
            output_limit_bytes=spec.limits.output_bytes,
            logger=self.logger,
        )

    async def stop(self) -> None:
        """Close the sandbox; nothing of it is left. Does nothing when it is not started."""
        runtime, sandbox = self._runtime, self._sandbox
        self._runtime, self._sandbox = None, None
        if runtime is None or sandbox is None:
            return
        try:
            await runtime.close()
            await self._host.call(sandbox.close())
        finally:
            await asyncio.to_thread(self._host.leave)

    @property
    def runtime(self) -> MiniSandboxRuntime:
        """The runtime. Raises DeploymentNotStartedError before `start`."""
        if self._runtime is None:
            raise DeploymentNotStartedError()
        return self._runtime

    def __del__(self) -> None:
        """Forgotten without `stop`: the sandbox is closed, without waiting for it."""
        sandbox = getattr(self, "_sandbox", None)  # absent when __init__ failed
        if sandbox is not None:
            self._sandbox = None
            self._host.discard(sandbox)
