"""Stand-ins for tests of the agent that need no kernel: files in a dict, commands from a function."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from recipes.swe.types import TaskInstance
from rewards.types import TestSpec
from sandbox.types import CachedEnv, Changes, EnvSpec, ExecResult, SandboxSpec, Usage

Command = Callable[[str], tuple[str, int]]


def result(output: str | bytes, status: int | None = 0) -> ExecResult:
    data = output.encode() if isinstance(output, str) else output
    return ExecResult(data, status, timed_out=status is None, truncated=False, duration_s=0.0)


class FakeSession:
    """Answers commands with a function; a status of -1 stands for a timeout."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self.closed = False

    async def run(
        self, command: str | bytes, *, timeout_s: float, output_limit_bytes: int | None = None
    ) -> ExecResult:
        output, status = self._command(command if isinstance(command, str) else command.decode())
        return result(output, None if status == -1 else status)

    async def close(self) -> None:
        self.closed = True


class FakeSandbox:
    """Files in a dict. Directories exist as far as files lie in them."""

    def __init__(self, files: Mapping[str, bytes], command: Command = lambda _: ("", 0)) -> None:
        self.before = dict(files)
        self.files = dict(files)
        self.modes = dict.fromkeys(files, 0o644)
        self.session = FakeSession(command)
        self.closed = False

    @property
    def id(self) -> str:
        return "fake"

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
        match argv[0]:
            case "stat":
                return result(f"{self.modes[argv[-1]]:o}\n")
            case "rm":
                del self.files[argv[-1]]
                return result("")
            case "find":
                return result("\n".join([argv[1], *(p for p in self.files if p.startswith(argv[1] + "/"))]))
            case _:
                return result("not found", 127)

    async def usage(self) -> Usage:
        return Usage(memory_peak_bytes=64 << 20, cpu_s=0.5, oom_kills=0)

    async def prepare_session(self) -> None:
        """Its session is always there."""

    async def open_session(self) -> FakeSession:
        return self.session

    async def read_file(self, path: str, *, limit_bytes: int = 1 << 24) -> bytes:
        if path in self.files:
            return self.files[path]
        if any(name.startswith(path.rstrip("/") + "/") for name in self.files):
            raise IsADirectoryError(path)
        raise FileNotFoundError(path)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self.files[path] = data
        self.modes[path] = mode

    async def changes(self, root: str) -> Changes:
        """The patch; nothing here is ever left out of it."""
        return Changes(await self.diff(root))

    async def diff(self, root: str) -> str:
        changed = [name for name in self.files if self.files[name] != self.before.get(name)]
        return "".join(
            f"changed {name}\n{self.files[name].decode(errors='replace')}\n" for name in sorted(changed)
        )

    async def close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class FakeBackend:
    """Opens fakes and remembers them; `before_open` may raise or wait."""

    name = "fake"

    def __init__(self, make: Callable[[], FakeSandbox]) -> None:
        self._make = make
        self.opened: list[FakeSandbox] = []
        self.most_open = 0

    async def open(self, spec: SandboxSpec) -> FakeSandbox:
        sandbox = self._make()
        self.opened.append(sandbox)
        self.most_open = max(self.most_open, sum(not one.closed for one in self.opened))
        return sandbox

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class FakeCache:
    """Every environment exists."""

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        return CachedEnv((Path("/nowhere"),), (), {}, "/testbed", "digest", hit=True)


def task(statement: str = "add() subtracts.", instance_id: str = "toy__1") -> TaskInstance:
    tests = TestSpec(("python", "-m", "pytest"), ("test_a.py::test_a",), ())
    return TaskInstance(instance_id, "toy", statement, EnvSpec(instance_id), tests)
