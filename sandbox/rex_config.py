"""Configuration of a MiniSandbox deployment, in the style of SWE-ReX's own configuration classes.

`MiniSandboxDeploymentConfig(...).get_deployment()` works where a `DockerDeploymentConfig` did: where Docker
has an image, this has read-only layers, or the key of an environment that `launch/prepare.py` built. It
turns into a `SandboxSpec` and holds no behaviour beside that.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from sandbox.cache import EnvCache
from sandbox.types import MIB, BindMount, EnvSpec, Limits, SandboxSpec

if TYPE_CHECKING:
    from sandbox.rex import MiniSandboxDeployment


class BindConfig(BaseModel):
    """A host directory seen inside, read-only."""

    source: Path
    """Absolute path outside."""
    target: str
    """Absolute path inside."""

    model_config = ConfigDict(extra="forbid")


class MiniSandboxDeploymentConfig(BaseModel):
    """Configuration for running in a MiniSandbox."""

    layers: list[Path] = []
    """Read-only directories, or squashfs or erofs images, topmost first. The host's /usr is added below."""
    binds: list[BindConfig] = []
    """Host directories bound inside, read-only."""
    environment: str | None = None
    """Key of a prepared environment (an instance id), in place of `layers` and `binds`. Needs `cache_dir`."""
    cache_dir: Path | None = None
    """Where `launch/prepare.py` keeps its environments."""
    env: dict[str, str] = {}
    """Variables of every process inside, beside a fixed minimal base; nothing is inherited from outside."""
    workdir: str | None = None
    """Where sessions and commands start. None: /testbed of a prepared environment, else /."""
    memory_mib: int = 2048
    """Memory of all its processes and files together, in MiB."""
    disk_mib: int = 1024
    """Size of what it may write, in MiB."""
    pids: int = 512
    """Processes and threads."""
    output_mib: int = 16
    """Cap on the output kept of one command, in MiB; head and tail are kept."""
    wall_time_s: float | None = None
    """The sandbox is closed after this many seconds, no matter what. None: no limit."""
    network: Literal["none", "host"] = "none"
    """`none`: loopback only. `host`: the host's network, for code that is trusted."""
    allowed_hosts: list[str] = []
    """`host` or `host:port` names that are reached through a proxy although `network` is `none`."""
    upper: Literal["tmpfs", "disk"] = "tmpfs"
    """Where what is written goes: memory, or the state directory's disk."""
    state_dir: Path | None = None
    """Where the sandbox's owner keeps its records. None: the default below the temporary directory."""
    startup_timeout: float = 60.0
    """The time to wait for the sandbox to open, in seconds."""

    type: Literal["minisandbox"] = "minisandbox"
    """Discriminator for (de)serialization/CLI. Do not change."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _check_environment(self) -> Self:
        if (self.environment is None) != (self.cache_dir is None):
            raise ValueError("`environment` and `cache_dir` are given together or not at all")
        if self.environment is not None and (self.layers or self.binds):
            raise ValueError("`environment` stands in place of `layers` and `binds`: give one of them")
        return self

    def spec(self) -> SandboxSpec:
        """The sandbox to open. Raises CacheError when the environment is not there."""
        layers, env, workdir = tuple(self.layers), dict(self.env), self.workdir or "/"
        binds = tuple(BindMount(source=bind.source, target=bind.target) for bind in self.binds)
        if self.environment is not None and self.cache_dir is not None:
            found = EnvCache(self.cache_dir).ensure(EnvSpec(key=self.environment))
            layers, binds, env = found.layers, found.binds, {**found.env, **self.env}
            workdir = self.workdir or found.workdir
        limits = Limits(
            memory_bytes=self.memory_mib * MIB,
            pids=self.pids,
            disk_bytes=self.disk_mib * MIB,
            output_bytes=self.output_mib * MIB,
            wall_time_s=self.wall_time_s,
        )
        return SandboxSpec(
            layers=layers,
            binds=binds,
            env=env,
            workdir=workdir,
            limits=limits,
            network=self.network,
            allowed_hosts=tuple(self.allowed_hosts),
            upper=self.upper,
        )

    def get_deployment(self) -> "MiniSandboxDeployment":
        """The deployment, not yet started."""
        from sandbox.rex import MiniSandboxDeployment  # here: it imports this module

        return MiniSandboxDeployment.from_config(self)
