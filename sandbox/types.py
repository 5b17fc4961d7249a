"""Vocabulary of the sandbox: what is asked for, what comes back, and the protocols between.

Callers (recipes, launch) and every backend speak in these types only. This module imports
nothing but the standard library and holds no behaviour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one command did. A non-zero status is data, never an exception."""

    output: bytes
    """stdout and stderr interleaved as written, capped; bytes, since commands print anything."""
    exit_status: int | None
    """Exit status 0-255 (128+n for a signal, as bash reports it); None when timed out."""
    timed_out: bool
    """True when the timeout ended the command; its whole process tree was killed."""
    truncated: bool
    """True when the output was longer than the cap (head and tail kept, middle dropped)."""
    duration_s: float
    """Wall time from writing the command to reading its status, in seconds."""

    @property
    def text(self) -> str:
        """The output as text; undecodable bytes are replaced."""
        return self.output.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use."""

    memory_bytes: int = 2 * GIB
    """Memory of all its processes and its tmpfs files together (cgroup)."""
    pids: int = 512
    """Processes and threads (cgroup, or RLIMIT_NPROC where no cgroup is writable)."""
    disk_bytes: int = 1 * GIB
    """Size of the writable layer."""
    open_files: int = 4096
    """RLIMIT_NOFILE."""
    output_bytes: int = 1 * MIB
    """Default cap on the output kept of one command."""
    cpu_weight: int = 100
    """Share of the processor against neighbours, 1-10000 as cgroup v2's cpu.weight; 100 is the usual one."""
    wall_time_s: float | None = None
    """The sandbox is closed this long after it opened; None for no limit."""


@dataclass(frozen=True, slots=True)
class BindMount:
    """A host directory seen inside."""

    source: Path
    """Absolute path outside."""
    target: str
    """Absolute path inside."""
    writable: bool = False
    """Read-only unless set; writable binds are for building environments only."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything needed to open one sandbox."""

    layers: tuple[Path, ...] = ()
    """Read-only directories, or squashfs or erofs images, topmost first; the host's /usr is added below."""
    binds: tuple[BindMount, ...] = ()
    """Host directories bound inside (for example the interpreter)."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The whole environment of its processes, beside a fixed minimal base; nothing is inherited."""
    workdir: str = "/"
    """Directory that commands and sessions start in."""
    limits: Limits = Limits()
    """Resource limits."""
    network: Literal["none", "host"] = "none"
    """`none`: own namespace with loopback only. `host`: for building environments only."""
    allowed_hosts: tuple[str, ...] = ()
    """`host` or `host:port` names that programs reach through a proxy although `network` is `none`; the
    usual variables (`HTTPS_PROXY`, ...) name it inside. A bare host means ports 80 and 443."""
    upper: Literal["tmpfs", "disk"] = "tmpfs"
    """Where what is written goes: memory (counts against `memory_bytes`), or the state directory's disk."""
    image: str = ""
    """Name of a container image to use in place of layers and of the host's /usr; container backends only."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one sandbox has used so far. A figure that this machine cannot tell is None."""

    memory_peak_bytes: int | None
    """Highest memory of all its processes and tmpfs files together (cgroup)."""
    cpu_s: float | None
    """Processor time of all its processes, in seconds (cgroup)."""
    oom_kills: int | None
    """Processes that the kernel killed for going over `memory_bytes`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A process that a session's commands left running."""

    pid: int
    """Process id inside the sandbox."""
    command: str
    """Its command line, undecodable bytes replaced."""


class Session(Protocol):
    """One persistent shell: cwd, variables and background jobs live from command to command."""

    async def run(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        output_limit_bytes: int | None = None,
        output_file: Path | None = None,
    ) -> ExecResult:
        """Run a command line in the shell. After a timeout, `exit` or `exec` in the command the
        next `run` works again in a new shell (cwd kept where possible); it never breaks.

        `output_file` is a file outside that takes the whole output as it comes, while the result
        holds head and tail as ever. Raises SandboxLostError when the sandbox itself is gone."""
        ...

    async def interrupt(self) -> bool:
        """End the command that is running, as Ctrl-C would; its `run` returns with status 130 and the
        shell goes on. False when none was running."""
        ...

    async def jobs(self) -> tuple[Job, ...]:
        """What earlier commands left running, oldest first."""
        ...

    async def close(self) -> None:
        """Kill the shell and all it started."""
        ...


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed in a sandbox."""

    patch: str
    """In git's format; empty when nothing changed."""
    left_out: tuple[tuple[str, str], ...] = ()
    """(path, reason) of changes that are not in the patch: too large, too many, neither file nor link."""


class Sandbox(Protocol):
    """One open sandbox. Use as `async with await backend.open(spec) as sandbox`."""

    @property
    def id(self) -> str:
        """Unique on this machine."""
        ...

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
        """Run one program without a shell, `env` added to the sandbox's environment."""
        ...

    async def prepare_session(self) -> None:
        """Start the shell that the next `open_session` gives out, so that it has not to be waited for. For
        sandboxes that are opened ahead."""
        ...

    async def open_session(self) -> Session:
        """Start a persistent shell."""
        ...

    async def read_file(self, path: str, *, limit_bytes: int = 16 * MIB) -> bytes:
        """Read a regular file. Raises FileNotFoundError, IsADirectoryError, PermissionError or
        ValueError (too large, not a regular file); symlinks resolve inside the sandbox's root."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file (parents are made); symlinks resolve inside."""
        ...

    async def upload(self, source: Path, path: str) -> None:
        """Copy a file or directory from outside to `path` inside; modes are kept, owners are not.
        Symbolic links are copied as links."""
        ...

    async def download(self, path: str, target: Path, *, limit_bytes: int = 1 * GIB) -> None:
        """Copy a file or directory from inside to `target` outside, which must not exist yet. Links are
        copied as links and never followed outside; devices, sockets and FIFOs are left out. Raises as
        `read_file`."""
        ...

    async def fork(self) -> "Sandbox":
        """A new sandbox whose files are a copy of this one's at this moment; processes, sessions and what
        lies in writable binds are not copied. Neither sees what the other does afterwards."""
        ...

    async def usage(self) -> Usage:
        """Memory and processor time so far."""
        ...

    async def diff(self, root: str) -> str:
        """What changed below `root` (say /testbed) against the layers, as a git-format patch.

        Read by us from the upper layer, never through the sandbox's git or shell; `.git` is left out.
        Paths are relative to `root`. Empty when nothing changed."""
        ...

    async def changes(self, root: str) -> Changes:
        """The same patch, with what could not be in it."""
        ...

    async def close(self) -> None:
        """Kill everything inside and remove every trace; returns when it is gone. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Backend(Protocol):
    """Opens sandboxes. One per process, used as `async with`."""

    @property
    def name(self) -> str:
        """`mini`, later `docker` and `podman`."""
        ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Raises SandboxUnavailableError or SandboxStartError."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Names one prepared environment: an interpreter + venv + repository at one state."""

    key: str
    """Key in the cache. Tasks of one project share the venv and repo layers; the task's own layer
    (the bug and the one-commit .git) is found by this key, which is the instance id."""
    digest: str = ""
    """Of the layers, when only one state will do; empty: whatever is prepared under the key."""


@dataclass(frozen=True, slots=True)
class CachedEnv:
    """A ready environment on this node."""

    layers: tuple[Path, ...]
    """Topmost first: task, repo, venv, and the interpreter where it is a layer."""
    binds: tuple[BindMount, ...]
    """The interpreter, read-only, at /opt/python, where it is a directory of this machine."""
    env: Mapping[str, str]
    """PATH, VIRTUAL_ENV and whatever the interpreter needs."""
    workdir: str
    """Where the repository is: /testbed."""
    digest: str
    """Content digest of what the layers were built from."""
    hit: bool
    """False when this call fetched part of it; True when all was here, or another call had it fetched."""
    fetch_s: float = 0.0
    """Seconds this call spent fetching and unpacking layers; waiting at the I/O gate is not in it."""
    gate_wait_s: float = 0.0
    """Seconds this call waited at the I/O gate before it might unpack."""
    fetched_bytes: int = 0
    """Bytes of layer files that this call read from the shared store."""

    def spec(self, limits: Limits) -> SandboxSpec:
        """The sandbox to open over this environment."""
        return SandboxSpec(
            layers=self.layers,
            binds=self.binds,
            env=self.env,
            workdir=self.workdir,
            limits=limits,
        )
