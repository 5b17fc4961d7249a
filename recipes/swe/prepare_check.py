"""Validates one task in its environment: it fails as it is, passes with the gold patch, each time.

A repeat is up to two runs in fresh sandboxes. Without a patch every FAIL_TO_PASS test must not pass and every
PASS_TO_PASS test must; with the gold patch the training's own grader must give 1, and for nothing 0. What
differs from repeat to repeat is flaky. Faults of sandbox or grader are raised: they say nothing of the task.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.swe.dataset_types import PrepareStatus, SourceTask
from recipes.swe.datasets_commands import command_words, with_plugins
from recipes.swe.grading import case_of, open_grader
from recipes.swe.prepare_types import CheckSettings
from recipes.swe.tasks import from_source, tests_of
from rewards.apply import apply_test_patch
from rewards.grader import Case, Grader
from rewards.runner import RunOptions, TestRun, run_spec
from rewards.runners.signed import RunnerDiedError
from rewards.types import RewardResult, TestSpec
from sandbox.cache import EnvRecord, open_record
from sandbox.types import Backend, CachedEnv

OUTPUT_BYTES = 1 << 20
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """What one repeat showed."""

    status: PrepareStatus
    """`passed`, `failed` or `timeout`."""
    reason: str
    """Why it did not pass."""
    log: str
    """For a person."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The judgement of all repeats."""

    status: PrepareStatus
    """Flaky when repeats differ."""
    reason: str
    """In one line."""
    log: str
    """Of all repeats."""
    lasting: bool
    """False when load may be the reason."""


def test_command(task: SourceTask, plugins: Sequence[str]) -> tuple[str, ...]:
    """The test command in words. The grader loads no plugin by itself, so the environment's are named."""
    words = command_words(task.build.test_command)
    return with_plugins(words, task.build.runner, plugins) if task.build.plugins else words


async def judge_gold(grader: Grader, case: Case, patch: str) -> Finding:
    """Whether the gold patch earns 1 and an empty one 0, from the grader that training uses. Raises
    SandboxError and GraderError."""
    gold = await grader.judge(case, patch)
    reasons = "".join(f"{why}\n" for why in gold.reasons)
    log = f"== with the gold patch ==\nreward {gold.reward}\n{reasons}"
    if gold.reward != 1.0:
        return _finding(gold, log)
    empty = await grader.judge(case, "")
    if empty.reward != 0.0:
        return Finding("failed", f"an empty patch earns {empty.reward}", log)
    return Finding("passed", "", log)


class Checker:
    """Validates tasks; several at once."""

    def __init__(self, root: Path, backend: Backend, settings: CheckSettings) -> None:
        """`root` is the cache."""
        self._root = root
        self._backend = backend
        self._settings = settings
        self._grader = open_grader(None, cached=False)  # it measures, and believes no older verdict

    async def repeat(self, task: SourceTask, record: EnvRecord, plugins: Sequence[str]) -> Finding:
        """One repeat, without a patch and with the gold one. Raises SandboxError and GraderError.

        Without a patch each time: a test that draws at random what it checks may pass beside the bug one time
        in ten, and then any edit earns 1 as often.
        """
        env = open_record(self._root, task.instance_id, record)
        tests = tests_of(from_source(task, test_command=test_command(task, plugins)))
        before = await self._before(tests, env)
        if before.status != "passed":
            return before
        case = case_of(tests, env, self._backend, self._settings.limits)
        judged = await judge_gold(self._grader, case, task.gold_patch)
        return replace(judged, log=before.log + judged.log)

    async def _before(self, tests: TestSpec, env: CachedEnv) -> Finding:
        """Whether the state before the fix is that of a task."""
        run = await self._without_patch(tests, env)
        log = f"== without a patch ==\n{_shown(run)}\n"
        if run.timed_out:
            return Finding("timeout", f"the tests take more than {tests.timeout_s:.0f} s", log)
        wrong = _wrong_before(tests, run)
        return Finding("failed" if wrong else "passed", wrong, log)

    async def _without_patch(self, tests: TestSpec, env: CachedEnv) -> TestRun:
        async with await self._backend.open(env.spec(self._settings.limits)) as sandbox:
            if tests.test_patch:
                await apply_test_patch(tests.test_patch, sandbox, tests.workdir)
            try:
                return await run_spec(tests, sandbox, RunOptions(True, OUTPUT_BYTES))
            except RunnerDiedError as error:
                if error.kind == "lost":
                    raise
                return TestRun({}, None, error.kind == "unresponsive", b"", (str(error),))


def _wrong_before(tests: TestSpec, run: TestRun) -> str:
    """Why the state before the fix is no task; empty when it is one."""
    if run.problems and not run.statuses:
        # Nothing ran at all: FAIL_TO_PASS may be unable to load, but then nothing may be listed as passing.
        return f"the tests cannot be run: {run.problems[0]}" if tests.pass_to_pass else ""
    passing = [test for test in tests.fail_to_pass if run.status(test) == "passed"]
    if passing:
        return f"{len(passing)} of FAIL_TO_PASS pass without the fix: {', '.join(passing[:SHOWN])}"
    broken = [(test, run.status(test)) for test in tests.pass_to_pass if run.status(test) != "passed"]
    if broken:
        counts = Counter(status for _, status in broken)
        kinds = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        names = ", ".join(test for test, _ in broken[:SHOWN])
        return f"PASS_TO_PASS does not pass without the fix ({kinds}): {names}"
    return ""


def _finding(gold: RewardResult, log: str) -> Finding:
    why = "; ".join(gold.reasons)[:600] or f"reward {gold.reward}"
    if gold.exhausted == "time":
        return Finding("timeout", f"with the gold patch: {why}", log)
    return Finding("failed", f"the gold patch earns {gold.reward:g}: {why}", log)


def _shown(run: TestRun) -> str:
    counts = Counter(run.statuses.values())
    head = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no results"
    problems = "".join(f"\nproblem: {problem}" for problem in run.problems)
    return f"{head}{problems}\n{run.output.decode('utf-8', 'replace')}"


def conclude(findings: Sequence[Finding]) -> Checked:
    """One judgement of all repeats."""
    log = "\n".join(f"---- repeat {at + 1}: {one.status} ----\n{one.log}" for at, one in enumerate(findings))
    kinds = Counter(one.status for one in findings)
    bad = next((one for one in findings if one.status != "passed"), None)
    if bad is None:
        return Checked("passed", "", log, lasting=True)
    if len(kinds) == 1:
        return Checked(bad.status, bad.reason, log, lasting=bad.status != "timeout")
    shares = ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds))
    return Checked("flaky", f"of {len(findings)} repeats {shares}: {bad.reason}", log, lasting=True)
