"""Runs a task's tests in a sandbox and gives a status for every exact id.

The front of `rewards.runners`, used by the grader, and by the preparation of tasks to learn which ids a bug
breaks. What a run is worth is decided in `rewards.grade`.
"""

from collections.abc import Sequence

from rewards.errors import GraderError
from rewards.runners import RunOptions, TestRun, runner_of
from rewards.runners.base import RunnerDiedError, run_environment, tail, targets_of
from rewards.runners.delivery import GRADER_DIR
from rewards.runners.python import files_of, parse_command
from rewards.types import GradingSandbox, TestSpec

__all__ = [
    "GRADER_DIR", "RunOptions", "RunnerDiedError", "TestRun", "files_of", "parse_command", "run_environment",
    "run_spec", "run_tests", "tail", "targets",
]  # fmt: skip


def targets(tests: TestSpec) -> tuple[str, ...]:
    """What a run of the spec runs: files, or modules."""
    return targets_of(runner_of(tests.runner), tests)


async def run_spec(tests: TestSpec, sandbox: GradingSandbox, options: RunOptions | None = None) -> TestRun:
    """One run of the spec's tests. Raises GraderError, and RunnerDiedError when it ended without results."""
    return await runner_of(tests.runner).run(tests, sandbox, options or RunOptions())


async def run_tests(
    command: Sequence[str],
    files: Sequence[str],
    sandbox: GradingSandbox,
    *,
    timeout_s: float,
    workdir: str = "/testbed",
    traceback: bool = False,
    output_limit_bytes: int = 64 << 10,
    test_timeout_s: float | None = None,
) -> TestRun:
    """Runs every test of `files` with pytest (paths relative to `workdir`). `traceback` is for people: it
    costs time. A run without results is a run with a problem, except when the sandbox failed.

    Raises GraderError when the sandbox fails or pytest could not even be started."""
    tests = TestSpec(
        tuple(command), (), (), timeout_s, workdir, test_timeout_s=test_timeout_s, targets=tuple(files)
    )
    try:
        return await run_spec(tests, sandbox, RunOptions(traceback, output_limit_bytes))
    except RunnerDiedError as error:
        if error.kind == "lost":
            raise GraderError(str(error), "lost") from error
        return TestRun({}, None, error.kind == "unresponsive", b"", (str(error),))
