"""The fan-out on two Ray nodes of this machine: spread, slots, moved rollouts, dead workers, a dead node."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from recipes.swe.fanout import DEATHS, Fanout
from recipes.swe.placement import ROLLOUTS, PlacementError, ranked, wait_for_nodes
from recipes.swe.types import Rollout, RolloutRequest
from recipes.swe.wire import pack, unpack
from tests.skyrl.fake_runner import make_request, make_task, make_trajectory
from tests.skyrl.two_raylets import two_raylets

FACTORY = "tests.skyrl.fake_runner:open_fake_runner"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two raylets on this machine."""
    with two_raylets(cpus=1) as cluster:
        yield cluster


type Use = Callable[[Fanout], Coroutine[Any, Any, None]]


def with_fanout(log: Path, use: Use, **options: Any) -> Fanout:
    """Run `use` with a fan-out, and close it in another event loop, as the experiment does."""
    fanout = Fanout(FACTORY, {"log": str(log)}, **options)
    try:
        fanout.wait_ready()
        asyncio.run(use(fanout))
    finally:
        asyncio.run(fanout.close())
    return fanout


def lines(log: Path) -> list[list[str]]:
    """id, node, rollouts running on it, may_move, prepared."""
    return [line.split() for line in log.read_text().splitlines()]


def requests(task: str, count: int) -> list[RolloutRequest]:
    return [make_request(task, number) for number in range(count)]


def test_each_node_has_one_worker_with_its_share_and_its_slots(cluster: Cluster, tmp_path: Path) -> None:
    async def use(fanout: Fanout) -> None:
        rollouts = await fanout.run(requests("fine", 20))
        assert [rollout.trajectory_id for rollout in rollouts] == [
            r.trajectory_id for r in requests("fine", 20)
        ]
        assert all(rollout.failure is None and rollout.attempts == 1 for rollout in rollouts)
        waits = [rollout.waits_s["slot"] for rollout in rollouts]
        assert max(waits[:8]) < 0.1 < min(waits[8:])  # 2 nodes x 4 slots, 0.2 s each

    with_fanout(tmp_path / "log", use, nodes=2, slots=4)
    per_node = Counter(node for _, node, *_ in lines(tmp_path / "log"))
    assert len(per_node) == 2 and max(per_node.values()) <= 12
    assert max(int(running) for _, _, running, *_ in lines(tmp_path / "log")) == 4


def test_a_killed_workers_rollouts_move_to_the_other_one(cluster: Cluster, tmp_path: Path) -> None:
    async def use(fanout: Fanout) -> None:
        batch = [make_request("dies"), *requests("fine", 7)]
        rollouts = await fanout.run(batch)
        assert [r.failure for r in rollouts] == [None] * 8
        moved = [r for r in rollouts if r.attempts == 2]
        assert len(moved) == fanout.moved >= 1
        assert fanout.deaths == 1
        begun: dict[str, list[str]] = {}
        for trajectory_id, node, *_ in lines(tmp_path / "log"):
            begun.setdefault(trajectory_id, []).append(node)
        assert all(len(set(begun[r.trajectory_id])) == 2 for r in moved), "not on the same worker again"
        await wait_until(lambda: all(worker.up for worker in fanout._workers))
        (tmp_path / "log").write_text("")
        await fanout.run(requests("fine", 8))
        assert len({node for _, node, *_ in lines(tmp_path / "log")}) == 2, "a new worker took its place"

    with_fanout(tmp_path / "log", use, nodes=2, slots=8)


@pytest.mark.slow
def test_a_rollout_that_kills_every_worker_fails_alone(cluster: Cluster, tmp_path: Path) -> None:
    async def use(fanout: Fanout) -> None:
        killer, *others = await fanout.run([make_request("kills"), *requests("fine", 2)])
        assert killer.failure is not None and killer.failure.kind == "node"
        assert killer.attempts == 1 + DEATHS
        # Each of the others may have shared a worker with it twice; none is lost, and all come back.
        assert all(other.failure is None or other.failure.kind == "node" for other in others)
        await wait_until(lambda: all(worker.up for worker in fanout._workers))
        assert [r.failure for r in await fanout.run(requests("fine", 4))] == [None] * 4

    with_fanout(tmp_path / "log", use, nodes=2, slots=8)


def test_with_one_worker_a_dead_ones_rollouts_run_again_on_its_successor(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def use(fanout: Fanout) -> None:
        rollouts = await fanout.run([make_request("dies"), *requests("fine", 2)])
        assert [rollout.failure for rollout in rollouts] == [None] * 3
        assert rollouts[0].attempts == 2

    with_fanout(tmp_path / "log", use, nodes=1, slots=8)
    assert {may_move for *_, may_move, _ in lines(tmp_path / "log")} == {"False"}


def test_a_fault_of_the_node_moves_with_the_work_done(cluster: Cluster, tmp_path: Path) -> None:
    async def use(fanout: Fanout) -> None:
        (rollout,) = await fanout.run([make_request("fullnode")])
        assert rollout.failure is None and rollout.attempts == 2
        assert rollout.stage_times_s == {"llm": 2.0}

    with_fanout(tmp_path / "log", use, nodes=2, slots=8)
    (_, first, *_), (_, second, *_) = lines(tmp_path / "log")
    assert first != second


def test_a_programming_error_fails_one_rollout(cluster: Cluster, tmp_path: Path) -> None:
    async def use(fanout: Fanout) -> None:
        bad, good = await fanout.run([make_request("raises"), make_request("fine")])
        assert bad.failure is not None and bad.failure.kind == "internal"
        assert "a programming error" in bad.failure.message
        assert good.failure is None

    with_fanout(tmp_path / "log", use, nodes=2, slots=8)


def test_rollouts_go_where_they_were_prepared(cluster: Cluster, tmp_path: Path) -> None:
    async def use(fanout: Fanout) -> None:
        tasks = [make_task("fine-a")] * 3 + [make_task("fine-b")] * 3
        assert fanout.prepare(tasks) == 4  # 2 nodes x 2 slots
        await asyncio.gather(*(call for calls in fanout._prepares.values() for call in calls))
        await fanout.run([*requests("fine-b", 1), *requests("fine-a", 3)])
        prepared = {trajectory_id: prepared for trajectory_id, *_, prepared in lines(tmp_path / "log")}
        assert prepared == dict.fromkeys(prepared, "True")
        # Another batch (an evaluation, say) lets go of what was prepared.
        assert fanout.prepare([make_task("fine-c")] * 2) == 2
        await fanout.run([make_request("fine-x")])
        await fanout.run([make_request("fine-c")])
        assert lines(tmp_path / "log")[-1][-1] == "False"

    with_fanout(tmp_path / "log", use, nodes=2, slots=2)


@pytest.mark.slow
def test_cancelled_rollouts_end_in_their_workers(cluster: Cluster, tmp_path: Path) -> None:
    async def use(fanout: Fanout) -> None:
        running = asyncio.create_task(fanout.run(requests("long", 2)))
        await wait_until(lambda: (tmp_path / "log").exists() and len(lines(tmp_path / "log")) == 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0.3)
        await fanout.run([make_request("fine")])
        assert lines(tmp_path / "log")[-1][2] == "1", "it runs alone"

    with_fanout(tmp_path / "log", use, nodes=1, slots=2)


@pytest.mark.slow
def test_a_dead_nodes_rollouts_move_and_its_worker_waits_for_a_node(cluster: Cluster, tmp_path: Path) -> None:
    extra = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)

    async def use(fanout: Fanout) -> None:
        batch = [make_request("fine", number) for number in range(12)]
        running = asyncio.create_task(fanout.run(batch))
        await wait_until(lambda: (tmp_path / "log").exists() and len(lines(tmp_path / "log")) >= 3)
        cluster.remove_node(extra, allow_graceful=False)
        rollouts = await running
        assert [rollout.failure for rollout in rollouts] == [None] * 12
        again = await fanout.run(batch)
        assert [rollout.failure for rollout in again] == [None] * 12
        assert sum(worker.up for worker in fanout._workers) == 2

    with_fanout(tmp_path / "log", use, nodes=3, slots=1)


def test_nodes_for_rollouts_come_first_then_those_with_gpus() -> None:
    nodes = [
        {"NodeID": "a-head", "Resources": {"CPU": 8}},
        {"NodeID": "b-gpu", "Resources": {"CPU": 8, "GPU": 8}},
        {"NodeID": "c-gpu-driver", "Resources": {"CPU": 8, "GPU": 8}},
        {"NodeID": "d-named", "Resources": {"CPU": 8, ROLLOUTS: 1}},
    ]
    assert ranked(nodes, "c-gpu-driver") == ["d-named", "c-gpu-driver", "b-gpu", "a-head"]
    assert ranked(nodes[:2], "a-head") == ["b-gpu", "a-head"]


def test_too_few_nodes_are_told(cluster: Cluster) -> None:
    with pytest.raises(PlacementError, match="num_nodes is 9, but Ray has"):
        wait_for_nodes(9, timeout_s=0)


async def wait_until(condition: Callable[[], bool], timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_a_rollout_crosses_the_wire_unchanged_and_small() -> None:
    rollout = Rollout("id", "task", make_trajectory(turns=30, tokens=300), None, {"llm": 1.0})
    assert unpack(pack(rollout)) == rollout
    new = [edit for turn in pack(rollout).turns or () for edit in turn.prompt if isinstance(edit, bytes)]
    assert sum(map(len, new)) == 8 * (300 + 29 * 2)
    assert unpack(pack(replace(rollout, trajectory=None))) == replace(rollout, trajectory=None)
    trajectory = rollout.trajectory
    assert trajectory is not None
    elided = [
        replace(turn, prompt_ids=turn.prompt_ids[:5] + turn.prompt_ids[9:]) for turn in trajectory.turns
    ]
    shorter = replace(rollout, trajectory=replace(trajectory, turns=tuple(elided)))
    assert unpack(pack(shorter)) == shorter
