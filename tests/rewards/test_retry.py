"""A fault of ours is never a 0; one that the judged code can cause is graded once more and then counts."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rewards.errors import GraderError
from rewards.grade import grade
from rewards.retry import grade_with_retry
from rewards.types import RewardResult
from tests.rewards.project import FILES, GOLD, SPEC, LocalSandbox, edit, write_project

WON = RewardResult(1.0, True, 1.0, 0)
LOST = RewardResult(0.0, False, 0.0, 1)


async def outcome(errors: list[Exception], faults: Counter[str]) -> RewardResult:
    @asynccontextmanager
    async def opening() -> AsyncIterator[LocalSandbox]:
        yield LocalSandbox(Path("/nonexistent"))

    async def once(_: LocalSandbox) -> RewardResult:
        if errors:
            raise errors.pop(0)
        return WON

    return await grade_with_retry(opening, once, faults=faults)


async def test_faults_and_verdicts() -> None:
    faults: Counter[str] = Counter()
    assert await outcome([], faults) == WON
    assert (await outcome([GraderError("x", "sandbox")], faults)).gradings == 2
    doubtful = GraderError("x", "runner_died", repeated=LOST)
    assert (await outcome([doubtful], faults)).reward == 1.0
    assert (await outcome([doubtful, doubtful], faults)).reward == 0.0
    with pytest.raises(GraderError):
        await outcome([doubtful, GraderError("x", "sandbox")], faults)
    with pytest.raises(GraderError):
        await outcome([GraderError("x", "sandbox"), doubtful], faults)
    assert faults["runner_died_counted_as_0"] == 1


async def test_code_that_kills_its_runner_pays_with_a_0(tmp_path: Path) -> None:
    number = iter(range(10))

    @asynccontextmanager
    async def opening() -> AsyncIterator[LocalSandbox]:
        root = tmp_path / str(next(number))
        write_project(root)
        yield LocalSandbox(root)

    code = "\nimport os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n"
    patch = GOLD + edit("shapes/__init__.py", FILES["shapes/__init__.py"] + code)
    faults: Counter[str] = Counter()
    result = await grade_with_retry(opening, lambda sandbox: grade(SPEC, patch, sandbox), faults=faults)
    assert (result.reward, result.gradings) == (0.0, 2)
    assert faults == {"runner_died": 2, "runner_died_counted_as_0": 1}
