"""Vocabulary of grading: which tests must pass, and what a verdict says.

A patch travels as the text of a git-format diff, so that this package needs to know nothing of
sandboxes; the sandbox it grades in is any object with `GradingSandbox`'s three methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

RunnerName = Literal["pytest", "unittest", "django", "wrapped", "log"]
"""How the tests are run; see `rewards.runners`."""
Exhausted = Literal["time", "memory", "disk"]
"""What a test run was out of."""


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
    runner: RunnerName = "pytest"
    """Who runs them: pytest; unittest; Django's (manage.py test, tests/runtests.py); a command that runs
    pytest somewhere inside (`wrapped`: tox, nox, make, a script); or any command, judged by its output
    (`log`)."""
    test_timeout_s: float | None = None
    """Wall-clock limit of one test with its fixtures, and of loading one file; None for no limit but the
    whole run's. Not with `log`."""
    targets: tuple[str, ...] = ()
    """What to run: files, or dotted modules for unittest and Django. Empty: what the ids name."""
    log_format: str = ""
    """With `log`: the name of a parser of `rewards.logs`."""
    test_patch: str = ""
    """Hidden tests as a git-format diff (SWE-bench): the grader applies it after the agent's patch, to files
    that the agent's patch may not touch or stand in the way of."""
    lint: bool = True
    """Whether code that seems to know of its tests is looked for (with `PatchPolicy.lint`). False for a
    project whose business that is: a right fix of pytest itself names modules of pytest."""


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


class GradingUsage(Protocol):
    """The part of a sandbox's usage that grading reads."""

    @property
    def oom_kills(self) -> int | None:
        """Processes that the kernel killed for going over the sandbox's memory; None when unknown."""
        ...


@runtime_checkable
class MeteredSandbox(Protocol):
    """A sandbox that counts what it used; grading asks where it can."""

    async def usage(self) -> GradingUsage:
        """So far."""
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
    p2p_fraction: float = 0.0
    """Share of PASS_TO_PASS that passed, 0-1."""
    tests_passed: bool = False
    """True when every listed test passed in an authentic run, whatever is suspected."""
    suspicions: tuple[str, ...] = ()
    """What in the added code looks as if it knew of its judge; `resolved` is False when there is any."""
    dropped_by_reason: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many of `dropped_paths` were left out for each reason."""
    exhausted: Exhausted | None = None
    """What the patched code used up, when that ended tests."""
    channel: Literal["none", "signed", "log"] = "none"
    """Where the results come from: nothing was run, the signed channel, or an output that can be forged."""
    gradings: int = 1
    """How many times it was graded: 2 after a fault that may have been ours."""
