"""What a run of a task's tests is worth; pure functions.

Also the rule for ends that may be our fault: which of them deserve a second grading before they count.
"""

from collections.abc import Sequence

from rewards.errors import FaultKind, GraderError
from rewards.runners.base import TestRun
from rewards.types import Exhausted, RewardResult, TestSpec

TIME_LIMIT = "time limit"
"""Reason of a verdict that a slower machine could change; such verdicts are not cached."""
STARVED_SHARE = 0.2
"""Share of the limit that was lost to a busy or stopped machine before a time limit is in doubt."""


def verdict(tests: TestSpec, run: TestRun, suspicions: Sequence[str] = ()) -> RewardResult:
    """The reward that a run of the task's tests earns."""
    listed = tests.fail_to_pass + tests.pass_to_pass
    if not listed:
        raise GraderError("the task lists no tests", "task")
    status = {test_id: run.status(test_id) for test_id in listed}
    fixed = [test_id for test_id in tests.fail_to_pass if status[test_id] == "passed"]
    broken = [test_id for test_id in tests.pass_to_pass if status[test_id] != "passed"]
    trusted = not run.problems
    passed = trusted and not broken and len(fixed) == len(tests.fail_to_pass)
    resolved = passed and not suspicions
    reasons = list(run.problems[:5])
    reasons += [f"suspicious: {text}" for text in suspicions[:5]]
    if not run.timed_out:
        if not passed and run.exhausted is not None:
            reasons.append(f"out of {run.exhausted}")
        reasons += _count("FAIL_TO_PASS", tests.fail_to_pass, run)
        reasons += _count("PASS_TO_PASS", tests.pass_to_pass, run)
    p2p = len(tests.pass_to_pass)
    return RewardResult(
        reward=1.0 if resolved else 0.0,
        resolved=resolved,
        f2p_fraction=_share(len(fixed), len(tests.fail_to_pass)) if trusted and not suspicions else 0.0,
        p2p_fraction=_share(p2p - len(broken), p2p) if trusted else 0.0,
        p2p_broken=len(broken) if trusted else p2p,
        missing=tuple(test_id for test_id in listed if status[test_id] == "missing"),
        reasons=tuple(reasons),
        tests_passed=passed,
        suspicions=tuple(suspicions),
        exhausted=None if passed else _exhausted(tests, run),
        channel=run.channel,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _exhausted(tests: TestSpec, run: TestRun) -> Exhausted | None:
    if run.exhausted is not None:
        return run.exhausted
    listed = tests.fail_to_pass + tests.pass_to_pass
    return "time" if any(run.status(test_id) == "timeout" for test_id in listed) else None


def doubt(tests: TestSpec, run: TestRun, result: RewardResult) -> FaultKind | None:
    """What may make this verdict our fault; None when it stands at once.

    Only a verdict without success is ever in doubt. Memory and disk: the kernel's count of kills includes
    those of a machine that is out of memory as a whole, and a writable layer may lie on a disk that others
    fill. A test process killed with SIGKILL, or stopped: by itself, by a machine out of memory where nobody
    counts, or by somebody on the machine.
    Time: only when the machine was seen to be late, for a good part of the limit that was exceeded."""
    if result.tests_passed:
        return None
    if run.exhausted in ("memory", "disk"):
        return run.exhausted
    if run.killed or run.stopped:
        return "runner_died"
    limit_s = tests.timeout_s if run.timed_out else tests.test_timeout_s
    timed_out = run.timed_out or "timeout" in run.statuses.values()
    if timed_out and limit_s is not None and run.late_s > STARVED_SHARE * limit_s:
        return "starved"
    return None


def _count(label: str, test_ids: Sequence[str], run: TestRun) -> list[str]:
    """A sentence about listed tests that did not pass, with the first few named."""
    bad = [(test_id, run.status(test_id)) for test_id in test_ids]
    bad = [(test_id, status) for test_id, status in bad if status != "passed"]
    if not bad:
        return []
    some = ", ".join(f"{test_id} ({status})" for test_id, status in bad[:3])
    return [f"{len(bad)} of {len(test_ids)} {label} did not pass: {some}{' …' if len(bad) > 3 else ''}"]
