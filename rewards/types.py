"""Vocabulary of grading: which tests must pass, and what a verdict says.

A patch travels as the text of a git-format diff, so that this package needs to know nothing of
sandboxes; the sandbox it grades in is any object with `GradingSandbox`'s three methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TestSpec:
    """A task's own tests."""

    __test__ = False

    command: tuple[str, ...]
    """The test command without ids or report options, for example ("python", "-m", "pytest")."""
    fail_to_pass: tuple[str, ...]
    """Exact ids that fail with the bug and must pass."""
    pass_to_pass: tuple[str, ...]
    """Exact ids that passed with the bug and must still pass."""
    timeout_s: float = 300.0
    """Wall-clock limit of the whole test run."""
    workdir: str = "/testbed"
    """Repository root inside the sandbox."""


class GradingExecResult(Protocol):
    """The part of a command's result that grading reads."""

    @property
    def output(self) -> bytes:
        """stdout and stderr as written, capped."""
        ...

    @property
    def exit_status(self) -> int | None:
        """0-255; None when timed out."""
        ...

    @property
    def timed_out(self) -> bool:
        """True when the timeout ended it."""
        ...


class GradingSandbox(Protocol):
    """A fresh sandbox of the task, before the agent's patch. `sandbox.types.Sandbox` satisfies it."""

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        output_limit_bytes: int | None = None,
    ) -> GradingExecResult:
        """Run one program without a shell."""
        ...

    async def read_file(self, path: str, *, limit_bytes: int = ...) -> bytes:
        """Read a regular file; FileNotFoundError, IsADirectoryError, PermissionError or ValueError."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file."""
        ...


@dataclass(frozen=True, slots=True)
class RewardResult:
    """Verdict on one patch."""

    reward: float
    """The scalar that is trained on."""
    resolved: bool
    """True when every listed test passed."""
    f2p_fraction: float
    """Share of FAIL_TO_PASS that passed, 0-1."""
    p2p_broken: int
    """Number of PASS_TO_PASS tests that did not pass."""
    missing: tuple[str, ...] = ()
    """Listed ids with no result at all."""
    dropped_paths: tuple[str, ...] = ()
    """Paths of the patch that the agent may not touch, left out before grading."""
    reasons: tuple[str, ...] = ()
    """Why it is not resolved, in short sentences for a person."""
