"""Real faults at 5 % and 30 % of rollouts, through SkyRL's loop, Ray workers on two nodes and real sandboxes.

The run completes, and what was broken is counted, no more and no less. `test_faults.py` has the same with
fakes, quickly, and holds the learning curve with faults against the clean one.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from ray.cluster_utils import Cluster

from benchmarks.loop import make_loop
from recipes.report.metrics import FILE_NAME, StepMetrics, read_metrics
from recipes.report.trajectories import read_rollouts
from recipes.swe.chat import ChatCodec
from recipes.swe.fanout import Fanout
from recipes.swe.parsing import format_call
from recipes.swe.tasks import gold_edits, load_rows, to_task
from recipes.swe.types import FailureKind, Rollout, TaskInstance
from sandbox.cache import EnvCache
from tests.agent.conftest import make_tokenizer
from tests.skyrl.bandit import BanditPolicy, LearningWorkers, Weights
from tests.skyrl.chosen import injected
from tests.skyrl.policy_server import PolicyServer
from tests.skyrl.real_faults import FAULTS, make_cache
from tests.skyrl.two_raylets import ROOT, two_raylets

CACHE = ROOT / ".cache"
TASKS = CACHE / "tasks" / "local.jsonl"
FACTORY = "tests.skyrl.real_faults:open_broken_runner"
STEPS = 2
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk"),
    pytest.mark.skipif(not TASKS.exists(), reason="needs launch/prepare.py to have run"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two raylets on this machine."""
    with two_raylets(cpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, TaskInstance, str, str]:
    """Cache, store, a task, and its right and its wrong edit."""
    row = next(row for row in load_rows(TASKS) if "addict" in row.instance_id and _single(row))
    cache, store = make_cache(tmp_path_factory.mktemp("parts"), CACHE, row.env_key or row.instance_id)
    ((path, old, new),) = gold_edits(row, EnvCache(CACHE))
    call = {"command": "str_replace", "path": f"/testbed/{path}", "old_str": old}
    right = format_call("str_replace_editor", {**call, "new_str": new})
    wrong = format_call("str_replace_editor", {**call, "new_str": f"{old}\n"})
    return cache, store, to_task(row), right, wrong


def _single(row: object) -> bool:
    return len(gold_edits(row, EnvCache(CACHE))) == 1  # type: ignore[arg-type]


def train(
    folder: Path,
    parts: tuple[Path, str, TaskInstance, str, str],
    shares: dict[str, float],
    *,
    prompts: int = 4,
    samples: int = 8,
    slots: int = 8,
) -> tuple[list[StepMetrics], list[Rollout], Fanout]:
    """Metrics of each step, all rollouts, and the fan-out that ran them."""
    cache, store, task, right, wrong = parts
    codec, weights = ChatCodec(make_tokenizer()), Weights(start=0.0)
    policy = BanditPolicy(codec, weights, right=right, wrong=wrong)
    tasks = [replace(task, instance_id=f"task-{number}") for number in range(prompts)]
    folder.mkdir(parents=True, exist_ok=True)
    with PolicyServer(policy, shares) as server:
        config = {
            "cache": str(cache),
            "store": store,
            "full_disk": str(folder),
            "server_url": server.url,
            "shares": shares,
            "slots": slots,
        }
        fanout = Fanout(FACTORY, config, nodes=2, slots=slots)
        try:
            fanout.wait_ready()
            trainer, _ = make_loop(
                folder,
                fanout,
                tasks,
                prompts=prompts,
                samples=samples,
                steps=STEPS,
                update_s=0,
                overlap=False,
            )
            trainer.dispatch = LearningWorkers(trainer.cfg.trainer.algorithm, weights, policy)
            trainer.max_failed_share = 0.9
            trainer.logprob_tolerance = 1e-4
            asyncio.run(trainer.train())
        finally:
            asyncio.run(fanout.close())
    rollouts = [
        rollout
        for step in range(1, STEPS + 1)
        for rollout in read_rollouts(folder / f"rollouts/step_{step:04d}.jsonl")
    ]
    return read_metrics(folder / FILE_NAME), rollouts, fanout


@pytest.mark.parametrize("share", [0.05, 0.30])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_what_was_broken_is_counted_and_the_run_completes(
    cluster: Cluster,
    parts: tuple[Path, str, TaskInstance, str, str],
    tmp_path: Path,
    fault: str,
    share: float,
) -> None:
    shares = {fault: share}
    # A worker that dies takes along what else runs on it: one at a time, so that the count is exact.
    sizes = {"samples": 4, "slots": 1} if fault == "worker" else {}
    lines, rollouts, fanout = train(tmp_path, parts, shares, **sizes)
    assert [line.step for line in lines] == list(range(1, STEPS + 1))
    expected = Counter(int(r.trajectory_id[4:8]) for r in rollouts if injected(r.trajectory_id, shares))
    assert sum(expected.values()) > 0
    for rollout in rollouts:
        failed = rollout.failure.kind if rollout.failure else ""
        meant = FAULTS[fault] if injected(rollout.trajectory_id, shares) else ("",)
        assert failed in meant, (rollout.trajectory_id, rollout.failure)
    for line in lines:
        counted = {kind: line.metrics[f"environment/num_fail_{kind}"] for kind in get_args(FailureKind)}
        assert sum(counted[kind] for kind in FAULTS[fault]) == sum(counted.values()) == expected[line.step]
        assert 0 < line.metrics["environment/resolved_mean"] < 1
    assert fanout.deaths == (sum(r.attempts for r in rollouts if r.failure) if fault == "worker" else 0)
