"""Sandboxes opened ahead: handed out, waited for, bounded, and closed when nobody comes."""

import asyncio
import time
from pathlib import Path

import pytest

from recipes.swe.overlap import ReadyBackend
from sandbox.errors import SandboxStartError
from sandbox.types import Sandbox, SandboxSpec
from tests.agent.fakes import FakeBackend, FakeSandbox

OPENING_S = 0.2


class SlowBackend(FakeBackend):
    """Takes a while to open, and fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__(lambda: FakeSandbox({}))
        self._failures = failures

    async def open(self, spec: SandboxSpec) -> FakeSandbox:
        await asyncio.sleep(OPENING_S)
        if self._failures > 0:
            self._failures -= 1
            raise SandboxStartError("on purpose")
        return await super().open(spec)

    @property
    def live(self) -> int:
        return sum(not sandbox.closed for sandbox in self.opened)


def spec(name: str = "a") -> SandboxSpec:
    return SandboxSpec(layers=(Path(name),), env={"A": "1"})


async def timed_open(backend: ReadyBackend, which: SandboxSpec) -> tuple[Sandbox, float]:
    started = time.monotonic()
    sandbox = await backend.open(which)
    return sandbox, time.monotonic() - started


async def test_one_opened_ahead_costs_no_time() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=4) as ready:
        ready.prepare([spec(), spec()])
        await asyncio.sleep(OPENING_S * 2)
        first, first_s = await timed_open(ready, spec())
        second, second_s = await timed_open(ready, spec())
        assert max(first_s, second_s) < OPENING_S / 2
        assert first is not second
        _, other_s = await timed_open(ready, spec("b"))
        assert other_s >= OPENING_S
        assert (ready.counts.prepared, ready.counts.used, ready.counts.discarded) == (2, 2, 0)


async def test_one_that_is_opening_is_waited_for_and_not_opened_twice() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=4) as ready:
        ready.prepare([spec()])
        await asyncio.sleep(OPENING_S / 2)
        _, seconds = await timed_open(ready, spec())
        assert seconds < OPENING_S * 0.9
        assert len(inner.opened) == 1


async def test_no_more_than_the_bound_and_none_left_open() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=3) as ready:
        ready.prepare([spec()] * 10)
        assert ready.in_stock == 3
        await asyncio.sleep(OPENING_S * 1.5)
        ready.prepare([spec("b")])
        assert ready.in_stock == 3
        assert inner.live == 3
        await ready.discard()
        assert inner.live == 0 == ready.in_stock
        ready.prepare([spec()])  # still opening when it is left
    assert len(inner.opened) == 4
    assert inner.live == 0


async def test_a_failed_opening_ahead_is_not_the_rollouts() -> None:
    async with ReadyBackend(SlowBackend(failures=1), most=3) as ready:
        ready.prepare([spec()])
        assert await ready.open(spec())
        assert ready.counts.failed == 1
    async with ReadyBackend(SlowBackend(failures=2), most=3) as ready:
        ready.prepare([spec()])
        with pytest.raises(SandboxStartError):  # now it is
            await ready.open(spec())


async def test_a_rollout_cancelled_while_it_waits_leaves_nothing() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=3) as ready:
        ready.prepare([spec()])
        opening = asyncio.create_task(ready.open(spec()))
        await asyncio.sleep(OPENING_S / 2)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    assert len(inner.opened) == 1
    assert inner.live == 0


async def test_one_that_died_while_it_waited_is_replaced() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=3) as ready:
        ready.prepare([spec()])
        await asyncio.sleep(OPENING_S * 1.5)
        inner.opened[0].alive = False  # type: ignore[attr-defined]
        assert await ready.open(spec()) is inner.opened[1]
        await asyncio.sleep(0)
        assert inner.opened[0].closed


async def test_grading_finds_a_spare_while_rollouts_of_its_task_are_in_work() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8) as ready:

        async def rollout(work_s: float) -> float:
            async with ready.user():
                agent = await ready.open(spec())
                await asyncio.sleep(work_s)
                await agent.close()
                grading, seconds = await timed_open(ready, spec())
                await grading.close()
                return seconds

        waits = await asyncio.gather(rollout(0.5), rollout(0.9), rollout(1.3))
        assert max(waits) < OPENING_S / 2
        assert ready.in_stock == 0, "the last one's end lets go of the spare"
        await ready.discard()
        assert inner.live == 0
        # At most three in work and one spare at any time.
        assert inner.most_open <= 4


async def test_without_spares_nothing_is_opened_that_nobody_asked_for() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8, spares=False) as ready, ready.user():
        await ready.open(spec())
        await asyncio.sleep(OPENING_S * 1.5)
        assert len(inner.opened) == 1
