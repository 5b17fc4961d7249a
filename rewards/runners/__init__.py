"""Ways to run a task's tests, behind one small protocol. A spec says which; `runner_of` finds it."""

from rewards.errors import GraderError
from rewards.runners.base import Runner, RunOptions, TestRun
from rewards.runners.log import LogRunner
from rewards.runners.python import DjangoRunner, PytestRunner, UnittestRunner, WrappedRunner

__all__ = ["RunOptions", "Runner", "TestRun", "runner_of"]


def runner_of(name: str) -> Runner:
    """The runner of that name. Raises GraderError."""
    match name:
        case "pytest":
            return PytestRunner()
        case "unittest":
            return UnittestRunner()
        case "django":
            return DjangoRunner()
        case "wrapped":
            return WrappedRunner()
        case "log":
            return LogRunner()
        case _:
            raise GraderError(f"no runner is named {name!r}", "task")
