"""What every runner shares: the protocol, and the record of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rewards.errors import FaultKind
from rewards.types import Exhausted, GradingSandbox, MeteredSandbox, TestSpec

_WORST_FIRST = ("failed", "error", "crashed", "timeout", "missing", "xpassed", "xfailed", "skipped", "passed")


@dataclass(frozen=True, slots=True)
class TestRun:
    """What one run of tests did."""

    __test__ = False

    statuses: dict[str, str]
    """Exact id -> passed, failed, error, skipped, xfailed, xpassed, crashed (its process ended in it) or
    timeout. Files that could not be loaded appear under their path with `error`. Empty when the results
    are missing or forged."""
    exit_status: int | None
    """Of the test command; None when it was ended. 1 is normal: a canary fails in every test module."""
    timed_out: bool
    """True when the time limit of the whole run ended it."""
    output: bytes
    """What it printed, capped; for people only (but see `channel`)."""
    problems: tuple[str, ...]
    """Why the statuses must not be trusted, in short sentences; empty for a sound run."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Other names that the runner prints for a test -> ids; a name that several share means all of them."""
    channel: Literal["signed", "log"] = "signed"
    """`log`: read from the output, which the code under test can write as well."""
    exhausted: Exhausted | None = None
    """What ran out while tests ran; evidence, not a verdict."""
    killed: tuple[str, ...] = ()
    """Tests whose process was killed with SIGKILL by neither the runner nor its limits."""
    stopped: tuple[str, ...] = ()
    """Tests that went over a time limit while one of their processes was stopped by a signal."""
    late_s: float = 0.0
    """Seconds that the idle supervisor woke up too late: the machine was busy or stopped."""

    def status(self, test_id: str) -> str:
        """Of an id or another name of it; `missing` without any result."""
        if test_id in self.statuses:
            return self.statuses[test_id]
        found = [self.statuses.get(name, "missing") for name in self.aliases.get(test_id, ())]
        return min(found, key=_WORST_FIRST.index) if found else "missing"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run, beside what."""

    traceback: bool = False
    """Print tracebacks; for people, it costs time."""
    output_limit_bytes: int = 64 << 10
    """Cap on the output kept."""
    patched: tuple[str, ...] = ()
    """Python files of the patch, relative to the work directory: objects of their classes are looked at when
    tests compare them. Empty: nothing is."""


class Runner(Protocol):
    """Runs a task's tests in one way. Stateless; see `rewards.runners.runner_of`."""

    def targets(self, test_ids: Sequence[str]) -> tuple[str, ...]:
        """What to run so that all these ids are run, sorted. Raises GraderError when the ids do not tell."""
        ...

    async def run(self, tests: TestSpec, sandbox: GradingSandbox, options: RunOptions) -> TestRun:
        """One run of the targets. Raises GraderError."""
        ...


class RunnerDiedError(Exception):
    """A run gave no results; `kind` says how it ended. Whose fault that is the grader decides."""

    def __init__(self, message: str, kind: FaultKind) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind


async def was_out_of_memory(sandbox: GradingSandbox) -> bool:
    """Whether the kernel has killed something in the sandbox for its memory, where somebody counts."""
    if not isinstance(sandbox, MeteredSandbox):
        return False
    try:
        usage = await sandbox.usage()
    except Exception as error:
        raise RunnerDiedError(f"the sandbox failed after tests ran: {error!r}", "lost") from error
    return bool(usage.oom_kills)


def targets_of(runner: Runner, tests: TestSpec) -> tuple[str, ...]:
    """The spec's own targets, or those that its ids name."""
    return tests.targets or runner.targets(tests.fail_to_pass + tests.pass_to_pass)


def run_environment() -> dict[str, str]:
    """Variables that fix what test results may depend on."""
    return {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": "",
        "PYTEST_ADDOPTS": "",
        "PYTEST_PLUGINS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def tail(output: bytes, limit: int = 400) -> str:
    """The end of an output on one line, for messages."""
    return " ".join(output.decode("utf-8", "replace").split())[-limit:]
