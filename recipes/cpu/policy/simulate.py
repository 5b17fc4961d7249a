"""A pretend sandbox in memory: files, and of all commands only the demonstrations' `grep -n`.

The real agent loop and editor run over it unchanged, at a hundredth of the cost. It is for quick looks at
a policy and for tests; nothing of it is executed, so text that a model sampled is safe here.
"""

import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from sandbox.types import Changes, ExecResult

_GREP = re.compile(r"grep -n '([^'\n]*)' (\S+)")


class SimulatedSandbox:
    """Satisfies `sandbox.types.Sandbox` as far as the demo's agent needs."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files` maps absolute paths to their text."""
        self.files = {path: text.encode() for path, text in files.items()}

    @property
    def id(self) -> str:
        return "simulated"

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
        """Knows `stat` only, as the editor calls it."""
        return _result("644" if argv[0] == "stat" else "", 0)

    async def prepare_session(self) -> None:
        """See `sandbox.types.Sandbox`."""

    async def open_session(self) -> "SimulatedSession":
        return SimulatedSession(self)

    async def read_file(self, path: str, *, limit_bytes: int = 1 << 24) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path]

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self.files[path] = data

    async def changes(self, root: str) -> Changes:
        """The patch; nothing here is ever left out of it."""
        return Changes(await self.diff(root))

    async def diff(self, root: str) -> str:
        """Nothing: compare `files` instead."""
        return ""

    async def close(self) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class SimulatedSession:
    """A shell that knows one command."""

    def __init__(self, sandbox: SimulatedSandbox) -> None:
        self._sandbox = sandbox

    async def run(
        self, command: str | bytes, *, timeout_s: float, output_limit_bytes: int | None = None
    ) -> ExecResult:
        text = command.decode("utf-8", "replace") if isinstance(command, bytes) else command
        found = _GREP.fullmatch(text.strip())
        if found is None:
            return _result("bash: command not found", 127)
        data = self._sandbox.files.get(found[2])
        if data is None:
            return _result(f"grep: {found[2]}: No such file or directory", 2)
        lines = enumerate(data.decode("utf-8", "replace").split("\n"), start=1)
        hits = [f"{number}:{line}" for number, line in lines if found[1] in line]
        return _result("\n".join(hits), 0 if hits else 1)

    async def close(self) -> None:
        return None


def _result(output: str, status: int) -> ExecResult:
    return ExecResult(
        output=output.encode(), exit_status=status, timed_out=False, truncated=False, duration_s=0.0
    )
