"""What only happens when several things happen at once, over workers that are no processes."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import ray.exceptions

from recipes.swe import fanout as fanout_module
from recipes.swe.fanout import Fanout
from recipes.swe.types import Rollout, RolloutRequest, TaskInstance
from recipes.swe.wire import PackedRollout, pack
from rewards.types import RewardResult
from sandbox.types import EnvSpec
from tests.skyrl.fake_runner import make_request, make_task, make_trajectory


class Remote:
    """A method of an actor: `remote` starts it."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def remote(self, *arguments: Any) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self._method(*arguments))


class FakeWorker:
    """Stands in for `NodeWorker` and for its actor."""

    def __init__(self, factory: str, config: Any, node_id: str) -> None:
        self.node_id, self.busy, self.up, self.gone = node_id, 0, True, False
        self.actor, self.readiness = self, None
        self.rollout, self.prepare, self.discard = map(Remote, (self._rollout, self._prepare, self._discard))
        self.prepared: list[str] = []
        self.discards = 0
        self.started: list[str] = []
        self.prepare_error: Exception | None = None
        self.rollout_error: Exception | None = None

    async def _rollout(self, request: RolloutRequest) -> PackedRollout:
        self.started.append(request.trajectory_id)
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)
        if self.rollout_error is not None:
            error, self.rollout_error = self.rollout_error, None
            raise error
        verdict = RewardResult(1.0, True, 1.0, 0)
        return pack(Rollout(request.trajectory_id, request.task.instance_id, make_trajectory(), verdict))

    async def _prepare(self, envs: Sequence[EnvSpec]) -> None:
        if self.prepare_error is not None:
            raise self.prepare_error
        self.prepared += [env.key for env in envs]

    async def _discard(self) -> None:
        self.discards += 1
        self.prepared.clear()

    def lost(self) -> bool:
        was_up, self.up = self.up, False
        return was_up

    async def revive(self, others: Any) -> None:
        self.up = True

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fanout_module, "NodeWorker", FakeWorker)
    monkeypatch.setattr(fanout_module, "wait_for_nodes", lambda nodes: [f"n{i}" for i in range(nodes)])
    monkeypatch.setattr(fanout_module.ray, "cancel", lambda reference: reference.cancel())
    random.seed(0)
    yield


def make_fanout(*, nodes: int = 1, slots: int = 8) -> tuple[Fanout, list[FakeWorker]]:
    fanout = Fanout("", {}, nodes=nodes, slots=slots)
    return fanout, fanout._workers  # type: ignore[return-value]


def tasks(*names: str) -> list[TaskInstance]:
    return [make_task(name) for name in names]


async def test_rollouts_cancelled_at_any_moment_give_their_slots_back() -> None:
    fanout, (worker,) = make_fanout(slots=2)
    for _ in range(300):
        runs = [
            asyncio.create_task(fanout.run([make_request("a", number) for number in range(5)]))
            for _ in range(3)
        ]
        for _ in range(random.randrange(12)):
            await asyncio.sleep(0)
        for run in random.sample(runs, 2):
            run.cancel()
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
            run.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), 10)
        assert sum(isinstance(one, list) for one in ended) >= 1, "the third run was left alone"
        assert worker.busy == 0


async def test_what_ray_cannot_deliver_costs_one_rollout() -> None:
    fanout, (worker,) = make_fanout()
    worker.rollout_error = ray.exceptions.RaySystemError(RuntimeError("cannot be read"))
    rollouts = await fanout.run([make_request("a", number) for number in range(4)])
    assert sorted(rollout.failure.kind if rollout.failure else "" for rollout in rollouts) == [
        "", "", "", "internal",
    ]  # fmt: skip


async def test_a_worker_that_cannot_prepare_stops_no_step(caplog: pytest.LogCaptureFixture) -> None:
    fanout, (worker,) = make_fanout()
    worker.prepare_error = RuntimeError("no factory")
    fanout.prepare(tasks("b"))
    rollouts = await fanout.run([make_request("a")])
    assert rollouts[0].failure is None
    assert worker.discards == 1
    assert "no factory" in caplog.text


async def test_what_a_step_did_not_use_is_let_go_before_the_next_is_prepared() -> None:
    """Where it is not, the next step finds it among its own and lets go of all."""
    fanout, workers = make_fanout(nodes=2, slots=4)
    fanout.prepare(tasks("a", "a", "a"))
    await asyncio.sleep(0)
    await fanout.run([make_request("a")])  # two of the three never came
    assert [worker.prepared for worker in workers] == [[], []]
    discards = [worker.discards for worker in workers]
    fanout.prepare(tasks("b", "b"))
    await fanout.run([make_request("b", number) for number in range(2)])
    assert [worker.discards for worker in workers] == discards
    assert not fanout._homes and not fanout._prepares


async def test_what_is_prepared_is_not_prepared_again() -> None:
    fanout, (worker,) = make_fanout(slots=4)
    assert fanout.prepare(tasks("a", "a", "b")) == 3
    assert fanout.prepare(tasks("a", "a", "b")) == 0
    assert fanout.prepare(tasks("a", "a", "b", "c", "d")) == 1, "four slots"
    await asyncio.sleep(0)
    assert worker.prepared == ["a", "a", "b", "c"]


async def test_what_is_noted_of_preparing_does_not_grow() -> None:
    fanout, (worker,) = make_fanout()
    for _ in range(20):
        fanout.prepare(tasks("a", "b"))
        await fanout.run([make_request("a"), make_request("b")])
        worker.prepared.clear()  # used
        assert not fanout._prepares and not fanout._homes
    assert worker.discards == 0


async def test_a_dead_workers_sandboxes_are_forgotten() -> None:
    fanout, workers = make_fanout(nodes=2, slots=2)
    assert fanout.prepare(tasks("a", "a", "b", "b")) == 4
    await asyncio.sleep(0)
    dead, other = workers
    fanout._lost(dead, RuntimeError("gone"))
    assert sum(map(len, fanout._homes.values())) == 2
    assert all(home is other for homes in fanout._homes.values() for home in homes)
    assert fanout.prepare(tasks("a", "a", "b", "b")) == 0, "there is no slot for them elsewhere"
    await asyncio.sleep(0)  # it is replaced
    assert fanout.prepare(tasks("a", "a", "b", "b")) == 2
