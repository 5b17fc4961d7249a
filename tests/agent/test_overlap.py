"""Sandboxes opened ahead: handed out, waited for, bounded, and closed when nobody comes."""

import asyncio
import time
from pathlib import Path

import pytest

from recipes.swe.overlap import SPARES_AT_ONCE, ReadyBackend
from recipes.swe.types import Rollout, RolloutRequest, TaskInstance
from recipes.swe.worker import OverlappedRunner
from rewards.types import TestSpec
from sandbox.errors import SandboxStartError
from sandbox.types import CachedEnv, EnvSpec, Limits, Sandbox, SandboxSpec
from tests.agent.fakes import FakeBackend, FakeCache, FakeSandbox

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

    def fail(self, times: int) -> None:
        self._failures = times

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


async def rollout(ready: ReadyBackend, which: SandboxSpec, work_s: float, *, grades: bool = True) -> float:
    """An agent's sandbox, work, and another one for grading; returns how long that had to be waited for."""
    async with ready.user():
        agent = await ready.open(which)
        await asyncio.sleep(work_s)
        await agent.close()
        if not grades:
            return 0.0
        grading, seconds = await timed_open(ready, which)
        await asyncio.sleep(OPENING_S / 4)
        await grading.close()
        return seconds


async def test_siblings_that_end_together_each_find_a_spare() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8) as ready:
        works = [rollout(ready, spec(), OPENING_S * 5) for _ in range(8)]
        waits = await asyncio.gather(*works)
        assert max(waits) < OPENING_S / 2
        assert ready.in_stock == 0
        assert (ready.counts.prepared, ready.counts.used, ready.counts.discarded) == (8, 8, 0)
        assert inner.live == 0
        assert inner.most_open <= 16


async def test_spares_open_a_few_at_a_time_and_never_while_somebody_waits() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=20) as ready:
        works = [asyncio.create_task(rollout(ready, spec(), OPENING_S * 9)) for _ in range(10)]
        await asyncio.sleep(OPENING_S / 2)
        assert ready.in_stock == 0, "ten wait for theirs"
        await asyncio.sleep(OPENING_S)
        assert ready.in_stock == SPARES_AT_ONCE
        other = asyncio.create_task(timed_open(ready, spec("b")))
        await asyncio.sleep(OPENING_S)
        assert ready.in_stock == SPARES_AT_ONCE, "those that were opening are open, and no others have begun"
        assert (await other)[1] < OPENING_S * 1.3
        await asyncio.sleep(OPENING_S / 2)
        assert ready.in_stock == 2 * SPARES_AT_ONCE
        await asyncio.gather(*works)


async def test_whoever_is_graded_does_not_wait_for_spares_that_have_not_begun() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=20) as ready:
        works = [rollout(ready, spec(str(number)), OPENING_S / 4) for number in range(SPARES_AT_ONCE * 3)]
        waits = await asyncio.gather(*works)
        assert max(waits) < OPENING_S * 1.3
        assert inner.live == ready.in_stock == 0


async def test_a_rollout_that_is_not_graded_lets_go_of_its_own_spare_only() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8) as ready:
        long = asyncio.create_task(rollout(ready, spec(), OPENING_S * 5))
        await rollout(ready, spec(), OPENING_S * 2, grades=False)
        assert ready.in_stock == 1
        assert await long < OPENING_S / 2
        assert (ready.counts.prepared, ready.counts.used, ready.counts.discarded) == (2, 1, 1)


async def test_a_cancelled_rollout_leaves_no_spare() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8) as ready:
        for moment in (0.5, 1.5, 2.5):  # while it opens, while the spare does, while both are open
            work = asyncio.create_task(rollout(ready, spec(), OPENING_S * 5))
            await asyncio.sleep(OPENING_S * moment)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            assert ready.in_stock == 0
        await asyncio.sleep(OPENING_S * 1.5)
        assert ready.in_stock == 0
        agents = sum(not sandbox.closed for sandbox in inner.opened)
        assert agents <= 2, "the fake rollout's own, which it does not close when it is cancelled"


async def test_what_was_prepared_for_later_outlives_rollouts_of_the_same_task() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8) as ready:
        work = asyncio.create_task(rollout(ready, spec(), OPENING_S * 4, grades=False))
        await asyncio.sleep(OPENING_S * 2.5)
        ready.prepare([spec(), spec()])
        await work
        assert ready.in_stock == 2
        assert ready.counts.discarded == 1
        waits = await asyncio.gather(*(rollout(ready, spec(), OPENING_S * 3) for _ in range(2)))
        assert max(waits) < OPENING_S / 2
        assert ready.in_stock == 0 == inner.live


async def test_spares_stay_within_the_bound_and_go_on_when_there_is_room() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=2) as ready:
        works = [asyncio.create_task(rollout(ready, spec(), OPENING_S * (4 + 2 * i))) for i in range(4)]
        for _ in range(22):
            await asyncio.sleep(OPENING_S / 2)
            assert ready.in_stock <= 2
        assert max(await asyncio.gather(*works)) < OPENING_S / 2
        assert ready.counts.prepared == ready.counts.used == 4


async def test_nothing_opens_after_it_was_left() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=20) as ready:
        works = [asyncio.create_task(rollout(ready, spec(), 60)) for _ in range(10)]
        await asyncio.sleep(OPENING_S * 1.5)
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
    opened = len(inner.opened)
    ready.prepare([spec()])
    await asyncio.sleep(OPENING_S * 2)
    assert ready.in_stock == 0
    assert len(inner.opened) == opened
    assert inner.live == 10, "the agents', which their rollouts would close"


async def test_a_spare_that_fails_costs_nobody_his_own() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8) as ready:
        works = [asyncio.create_task(rollout(ready, spec(), OPENING_S * (3 + 2 * i))) for i in range(3)]
        await asyncio.sleep(OPENING_S * 1.2)
        inner.fail(1)
        waits = await asyncio.gather(*works)
        assert ready.counts.failed == 1
        assert sum(wait > OPENING_S / 2 for wait in waits) <= 1
        assert ready.in_stock == 0 == inner.live


async def test_one_that_cannot_be_closed_keeps_no_other_open() -> None:
    inner = SlowBackend()
    with pytest.raises(RuntimeError, match="on purpose"):
        async with ReadyBackend(inner, most=8) as ready:
            ready.prepare([spec()] * 4)
            await asyncio.sleep(OPENING_S * 1.5)

            async def broken() -> None:
                raise RuntimeError("on purpose")

            inner.opened[1].close = broken  # type: ignore[method-assign]
    assert inner.live == 1


async def test_letting_go_is_finished_although_it_is_cancelled() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8) as ready:
        ready.prepare([spec()] * 3)
        letting_go = asyncio.create_task(ready.discard())
        await asyncio.sleep(OPENING_S / 2)
        letting_go.cancel()
        await asyncio.gather(letting_go, return_exceptions=True)
    assert len(inner.opened) == 3
    assert inner.live == 0


class HangingBackend(SlowBackend):
    """Never opens, and notes that it was told to stop trying."""

    given_up = 0

    async def open(self, spec: SandboxSpec) -> FakeSandbox:
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up += 1
        raise AssertionError


async def test_an_opening_that_hangs_holds_up_nobody() -> None:
    inner = HangingBackend()
    async with asyncio.timeout(OPENING_S * 10):
        async with ReadyBackend(inner, most=4, start_timeout_s=OPENING_S) as ready:
            ready.prepare([spec()] * 3)
            await asyncio.sleep(0)
            await ready.discard()
            ready.prepare([spec()])
            await asyncio.sleep(0)
    assert inner.given_up == 4
    assert ready.in_stock == 0


async def test_without_spares_nothing_is_opened_that_nobody_asked_for() -> None:
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8, spares=False) as ready, ready.user():
        await ready.open(spec())
        await asyncio.sleep(OPENING_S * 1.5)
        assert len(inner.opened) == 1


class SlowCache(FakeCache):
    """Finds each environment after a while."""

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        time.sleep(OPENING_S / 2)
        return super().ensure(spec)


class OpeningRunner:
    """Opens a sandbox of its task and works in it for a while."""

    def __init__(self, ready: ReadyBackend, cache: FakeCache) -> None:
        self._ready, self._cache = ready, cache

    async def run(self, request: RolloutRequest) -> Rollout:
        env = self._cache.ensure(request.task.env)
        async with await self._ready.open(env.spec(Limits())):
            await asyncio.sleep(OPENING_S * 4)
        return Rollout(request.trajectory_id, request.task.instance_id, None, None)


async def test_nothing_is_opened_ahead_of_rollouts_that_have_begun() -> None:
    """Preparing that is slower than the update: what it would still open, nobody would come for."""
    inner = SlowBackend()
    async with ReadyBackend(inner, most=8, spares=False) as ready:
        cache = FakeCache()
        runner = OverlappedRunner(OpeningRunner(ready, cache), ready, SlowCache(), Limits())
        task = TaskInstance("a", "toy", "Fix it.", EnvSpec("a"), TestSpec((), ("t::a",), ()))
        preparing = asyncio.create_task(runner.prepare([task.env] * 4))
        await asyncio.sleep(OPENING_S)  # time for one or two
        assert 1 <= ready.in_stock <= 2
        await asyncio.gather(preparing, *(runner.run(RolloutRequest(f"a/{i}", task)) for i in range(4)))
        assert ready.in_stock == 0
        assert len(inner.opened) == 4
        await runner.prepare([task.env] * 2 + [EnvSpec("b")] * 2)
        assert ready.in_stock == 4, "the next step's; tasks may share layers"
