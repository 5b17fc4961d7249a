"""The command line of docker or podman.

Only what both understand in the same way is used. An engine that fails is our fault or the machine's, so it
raises `SandboxError`s with what it said. Nothing a command inside did ever passes through here: programs in a
container are started by our own first process (`sandbox.container_init`), never by `exec` of the engine.
"""

import json
import os
import resource
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from sandbox.errors import SandboxError, SandboxStartError, SandboxUnavailableError
from sandbox.program import run_program

EngineName = Literal["docker", "podman"]
LABEL = "minisandbox"
"""Label of every container of a sandbox."""

_CALL_TIMEOUT_S = 120.0
_PODMAN_PROCESSES = 32_000
_SHARES_OF_WEIGHT_100 = 1024
_GONE = ("no such container", "no container with name", "already in progress", "is not known")


class Engine:
    """One engine. `program` is the command with its own options, for engines set up in an unusual way."""

    def __init__(self, name: EngineName, program: Sequence[str] = (), *, uid_shift: int = 100_000) -> None:
        self.name: EngineName = name
        self._program = tuple(program) or (name,)
        self._uid_shift = uid_shift

    async def check(self) -> str:
        """Version of the engine. Raises SandboxUnavailableError where it does not answer."""
        if shutil.which(self._program[0]) is None:
            raise SandboxUnavailableError(f"{self._program[0]} is not installed")
        words = [
            "version",
            "--format",
            "{{.Server.Version}}" if self.name == "docker" else "{{.Client.Version}}",
        ]
        try:
            return (await self.call(words)).strip()
        except SandboxError as error:
            raise SandboxUnavailableError(f"{self.name} does not answer: {error}") from error

    async def call(self, words: Sequence[str], *, feed: Callable[[BinaryIO], None] | None = None) -> str:
        """What it prints. `feed` writes its standard input, in a thread. Raises SandboxError."""
        limit_s = None if feed else _CALL_TIMEOUT_S
        try:
            done = await run_program([*self._program, *words], feed=feed, timeout_s=limit_s)
        except TimeoutError as error:
            raise SandboxError(f"{self.name} {words[0]} took more than {limit_s:g} s") from error
        except OSError as error:
            raise SandboxError(f"{self._program[0]}: {error.strerror or error}") from error
        if done.status != 0:
            text = done.problem.decode("utf-8", "replace").strip()[-600:]
            raise SandboxError(f"{self.name} {words[0]}: {text}{_advice(text)}")
        return done.output.decode("utf-8", "replace")

    async def inspect(self, kind: Literal["image", "container"], name: str) -> dict[str, Any]:
        """What the engine knows of it. Raises SandboxError."""
        return cast(list[dict[str, Any]], json.loads(await self.call([kind, "inspect", name])))[0]

    async def has_image(self, name: str) -> bool:
        """Whether the image is on this machine."""
        try:
            await self.inspect("image", name)
        except SandboxError as error:
            if "no such image" in str(error).lower() or "not known" in str(error).lower():
                return False
            raise
        return True

    async def remove(self, name: str) -> None:
        """Kill and remove a container; one that is gone already is fine."""
        try:
            await self.call(["rm", "--force", *(["--time", "0"] if self.name == "podman" else []), name])
        except SandboxError as error:
            if not any(text in str(error).lower() for text in _GONE):
                raise

    async def sandboxes(self) -> list[str]:
        """Names of the containers of sandboxes, of whatever process."""
        words = ["ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}"]
        return (await self.call(words)).split()

    async def shifts_ids(self) -> bool:
        """Whether root inside is somebody else outside."""
        if self.name == "podman" or os.geteuid() != 0:
            return True
        return "name=userns" in await self.call(["info", "--format", "{{json .SecurityOptions}}"])

    def isolation(self) -> list[str]:
        """Options that take from a container's root what MiniSandbox's has not either."""
        words = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--hostname", "sandbox"]
        if self.name == "podman" and os.geteuid() == 0:
            words += [f"--{kind}map=0:{self._uid_shift}:65536" for kind in ("uid", "gid")]
        return words

    def limits(self, *, memory_bytes: int, pids: int, cpu_weight: int, open_files: int) -> list[str]:
        """Options for limits."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
        words = [
            f"--memory={memory_bytes}", f"--memory-swap={memory_bytes}", f"--pids-limit={pids}",
            f"--cpu-shares={max(2, cpu_weight * _SHARES_OF_WEIGHT_100 // 100)}",
            f"--ulimit=nofile={files}:{files}",
        ]  # fmt: skip
        if self.name == "podman":
            # It asks for more than a root without CAP_SYS_RESOURCE may give, and the runtime then refuses.
            most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            most = _PODMAN_PROCESSES if most == resource.RLIM_INFINITY else min(_PODMAN_PROCESSES, most)
            words.append(f"--ulimit=nproc={most}:{most}")
        return words

    def mount(self, source: Path, target: str, *, writable: bool = False) -> list[str]:
        """Option for a bind mount. Raises SandboxStartError for a path that cannot be said in one."""
        for text in (str(source), target):
            if any(character in text for character in ',"\n'):
                raise SandboxStartError(f"{text!r} cannot be bound into a container")
        if not source.exists():
            raise SandboxStartError(f"{source}: no such file or directory")
        words = f"type=bind,source={source},target={target}"
        return ["--mount", words if writable else words + ",readonly"]


def _advice(problem: str) -> str:
    """What to change, for refusals that are known."""
    if "hybrid mode not supported" in problem:
        return " (hide /sys/fs/cgroup/unified from it, see docs/containers.md)"
    return ""
