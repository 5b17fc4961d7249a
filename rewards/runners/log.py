"""Any command, judged by what it prints: for tasks whose results exist as a log only.

Weaker than the other runners: the code under test writes to the same output, there are no canaries and no
per-test limits. What can be checked is: contradictions (the worst status of an id wins), totals that the
log itself gives, and that the exit status agrees with whether anything failed.
"""

from collections.abc import Sequence

from rewards.errors import GraderError
from rewards.logs import ParsedLog, parser_of
from rewards.runners.base import (
    RunnerDiedError,
    RunOptions,
    TestRun,
    run_environment,
    targets_of,
    was_out_of_memory,
)
from rewards.runners.python import TARGETS, files_of
from rewards.types import GradingSandbox, TestSpec

_LOG_LIMIT_BYTES = 64 << 20
_KILLED = 137  # As a shell tells SIGKILL.
_BAD = frozenset({"failed", "error", "xpassed"})


class LogRunner:
    """The command as it is, its targets last or in place of `{targets}`."""

    def targets(self, test_ids: Sequence[str]) -> tuple[str, ...]:
        """Files of pytest ids; other ids name none, and the command then runs what it runs."""
        return files_of([test_id for test_id in test_ids if "::" in test_id])

    async def run(self, tests: TestSpec, sandbox: GradingSandbox, options: RunOptions) -> TestRun:
        parse = parser_of(tests.log_format)
        targets = targets_of(self, tests)
        argv: list[str] = []
        for word in tests.command:
            argv.extend(targets if word == TARGETS else (word,))
        if TARGETS not in tests.command:
            argv.extend(targets)
        if not argv:
            raise GraderError("the task has no test command", "task")
        try:
            done = await sandbox.exec(
                tuple(argv),
                timeout_s=tests.timeout_s,
                env=run_environment(),
                cwd=tests.workdir,
                output_limit_bytes=_LOG_LIMIT_BYTES,
            )
        except Exception as error:
            raise RunnerDiedError(f"the sandbox failed while tests ran: {error!r}", "lost") from error
        if done.exit_status in (126, 127) and not done.output.strip():
            # Or code of the project ended it so: told apart by a second grading and the control.
            raise RunnerDiedError(f"the test command {argv!r} cannot be run", "runner_died")
        log = parse(done.output.decode("utf-8", "replace"))
        output = done.output[-options.output_limit_bytes :]
        if done.timed_out:
            return TestRun(
                dict(log.statuses), None, True, output, ("time limit",), log.aliases, "log", "time"
            )
        sound = done.exit_status == 0
        return TestRun(
            statuses=dict(log.statuses),
            exit_status=done.exit_status,
            timed_out=False,
            output=output,
            problems=tuple(log_problems(log, done.exit_status)),
            aliases=log.aliases,
            channel="log",
            exhausted="memory" if not sound and await was_out_of_memory(sandbox) else None,
            killed=() if done.exit_status != _KILLED else ("the command",),
        )


def log_problems(log: ParsedLog, exit_status: int | None) -> list[str]:
    """Disagreements inside a log, and between it and the exit status."""
    problems: list[str] = []
    if not log.statuses:
        problems.append("the output holds no test results")
    for status, total in log.totals.items():
        found = log.counts.get(status, 0)
        if found != total:
            problems.append(f"the output lists {found} tests as {status}, its summary says {total}")
    failed = any(status in _BAD for status in log.statuses.values())
    if exit_status == 0 and any(status in ("failed", "error") for status in log.statuses.values()):
        problems.append("tests failed, but the exit status is 0")
    if (
        exit_status != 0
        and log.statuses
        and not failed
        and not any(log.totals.get(status) for status in _BAD)
    ):
        problems.append(f"no test failed, but the exit status is {exit_status}")
    return problems
