"""Equal patches are graded once; errors and time limits are not kept."""

import asyncio

import pytest

from rewards.cache import GradeCache
from rewards.errors import GraderError
from rewards.grade import TIME_LIMIT
from rewards.types import RewardResult

ONE = RewardResult(1.0, True, 1.0, 0)


async def test_equal_patches_at_once_are_graded_once() -> None:
    cache, calls = GradeCache(), 0

    async def grade() -> RewardResult:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        return ONE

    results = await asyncio.gather(*(cache.get("task", "patch", grade) for _ in range(8)))
    assert (results, calls, cache.hits, cache.misses) == ([ONE] * 8, 1, 7, 1)
    await cache.get("other task", "patch", grade)
    await cache.get("task", "patch\n", grade)
    assert calls == 3


async def test_errors_and_time_limits_are_not_kept() -> None:
    cache = GradeCache()
    answers: list[RewardResult | Exception] = [
        GraderError("x"),
        RewardResult(0.0, False, 0.0, 0, reasons=(TIME_LIMIT,)),
        ONE,
    ]

    async def grade() -> RewardResult:
        await asyncio.sleep(0)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    calls = [cache.get("task", "p", grade) for _ in range(4)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], GraderError)
    assert results[2:] == [ONE, ONE]
    assert answers == []


async def test_a_cancelled_leader_does_not_take_the_others_with_it() -> None:
    cache, started = GradeCache(), asyncio.Event()

    async def hang() -> RewardResult:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def grade() -> RewardResult:
        return ONE

    leader = asyncio.create_task(cache.get("task", "p", hang))
    await started.wait()
    follower = asyncio.create_task(cache.get("task", "p", grade))
    await asyncio.sleep(0)
    leader.cancel()
    assert await follower == ONE
    with pytest.raises(asyncio.CancelledError):
        await leader


async def test_capacity() -> None:
    cache = GradeCache(capacity=2)

    async def grade() -> RewardResult:
        return ONE

    for patch in ("a", "b", "a", "c", "a", "b"):
        await cache.get("task", patch, grade)
    assert (cache.hits, cache.misses) == (2, 4)
