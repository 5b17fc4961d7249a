"""Every metric name: what SkyRL's own reducer makes of it, and that docs/metrics.md lists it."""

import asyncio
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from skyrl.train.generators.base import BatchMetadata, TrajectoryID
from skyrl.train.generators.utils import concatenate_generator_outputs

from recipes.swe.dynamic_sampling import SamplingRound
from recipes.swe.generator import SweGenerator
from recipes.swe.rollout_metrics import rollout_metrics
from recipes.swe.task_order import OrderConfig, TaskOrder
from recipes.swe.types import STAGES, WAITS, Rollout, RolloutRequest, TaskInstance
from rewards.types import TestSpec
from sandbox.types import EnvSpec
from tests.launch.fake_run import make_rollout

DOC = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
MIB = 1 << 20


def rollouts(seed: int) -> list[Rollout]:
    """A batch in which everything happens: fixes, failures, waits, calls of every tool."""
    made: list[Rollout] = []
    for task, repetition in product(range(3), range(4)):
        base = make_rollout(f"task{task}", solved=(task + repetition + seed) % 3 == 0, repetition=repetition)
        assert base.trajectory is not None
        calls = ("<function=bash>\n</function>", "", "<function=submit>\n</function>")
        turns = (*base.trajectory.turns[:1], *base.trajectory.turns[:1], base.trajectory.turns[1])
        turns = tuple(replace(turn, action=call) for turn, call in zip(turns, calls, strict=True))
        made.append(
            replace(
                base,
                trajectory=replace(base.trajectory, turns=turns[: 1 + (repetition + seed) % 3]),
                stage_times_s={stage: seed + 0.1 * repetition + i for i, stage in enumerate(STAGES)},
                waits_s=dict.fromkeys(WAITS, seed + 0.2 * repetition),
                cache_hit=repetition > seed,
                gate_wait_s=0.5 * repetition,
                memory_peak_bytes=(seed + repetition + 1) * 100 * MIB,
                cpu_s=1.0 + repetition,
            )
        )
    made[5] = make_rollout("task1", solved=False, repetition=1, failed=True)
    return made


class Recorded:
    """A fan-out that gives back what was recorded."""

    def __init__(self, batch: list[Rollout]) -> None:
        self.batch = batch

    async def run(self, requests: Any) -> list[Rollout]:
        """As many as asked for."""
        assert all(isinstance(request, RolloutRequest) for request in requests)
        return self.batch


def generated(seed: int) -> dict[str, Any]:
    """What the real generator hands to SkyRL."""
    batch = rollouts(seed)
    names = [f"task{i}" for i in range(3)]
    tasks = {name: TaskInstance(name, "r", "", EnvSpec("k"), TestSpec((), (), ())) for name in names}
    generator = SweGenerator(Recorded(batch), tasks, seed=0, pad_token_id=0)
    ids = [TrajectoryID(f"task{i // 4}", i % 4) for i in range(12)]
    metadata = BatchMetadata(global_step=1, training_phase="train")
    return asyncio.run(
        generator.generate(
            {"prompts": [], "trajectory_ids": ids, "batch_metadata": metadata, "sampling_params": None}  # type: ignore[typeddict-item]
        )
    )


def test_skyrl_reduces_every_name_of_ours_as_it_says():
    first, second = generated(0), generated(1)
    metrics = [output["rollout_metrics"] for output in (first, second)]
    joined = concatenate_generator_outputs([first, second])["rollout_metrics"]  # type: ignore[list-item]
    ours = [name for name in metrics[0] if name.startswith("environment/")]
    assert len(ours) > 70
    for name in ours:
        pair = [values[name] for values in metrics]
        last = name.split("/")[1]
        if last.startswith("num_"):
            expected = sum(pair)
        elif last.endswith("_max"):
            expected = max(pair)
        else:
            assert last.endswith("_mean"), name
            expected = sum(pair) / 2
        assert joined[name] == pytest.approx(expected), name
        assert "min" not in last and ("max" not in last or last.endswith("_max")), name
    # The same rule where we join batches ourselves.
    rounds = SamplingRound()
    for values in metrics:
        rounds.add([], {name: values[name] for name in ours})
    combined = rounds.combined_metrics()
    assert combined.pop("environment/num_sampled_batches") == 2
    assert combined == pytest.approx({name: joined[name] for name in ours})


def test_what_the_numbers_are():
    metrics = {name.split("/")[1]: value for name, value in rollout_metrics(rollouts(0)).items()}
    for name, value in {
        "num_rollouts": 12, "num_fail_sandbox": 1, "num_masked": 1, "turns_mean": (3 * 7 - 2) / 11,
        "calls_bash_mean": 1.0, "calls_str_replace_editor_mean": 0.0, "well_formed_mean": 14 / 19,
        "format_errors_mean": 5 / 11, "cache_hit_mean": 8 / 11, "gate_wait_p95_mean": 1.5,
        "memory_peak_mib_max": 400.0, "sandbox_cpu_s_mean": 28 / 11, "resolved_mean": 4 / 11,
        "group_excluded_mean": 0.0, "group_flat_mean": 0.0, "context_tokens_mean": 67 / 11,
        "env_prep_share_mean": 1.7 / 175.2,
    }.items():  # fmt: skip
        assert metrics[name] == pytest.approx(value, rel=0.01), name


def test_groups_that_teach_nothing_are_counted():
    flat = [make_rollout("flat", solved=True, repetition=i) for i in range(4)]
    gone = [make_rollout("gone", solved=True), make_rollout("gone", solved=False, failed=True)]
    mixed = [make_rollout("mixed", solved=bool(i), repetition=i) for i in range(2)]
    metrics = rollout_metrics([*flat, *gone, *mixed])
    assert metrics["environment/group_flat_mean"] == pytest.approx(1 / 3)
    assert metrics["environment/group_excluded_mean"] == pytest.approx(1 / 3)
    assert metrics["environment/num_groups_excluded"] == 1


def documented() -> set[str]:
    """Names in the first column of the page's tables; `{a,b}` is either."""
    names: set[str] = set()
    for line in DOC.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
                names.update(expanded(name))
    return names


def expanded(name: str) -> list[str]:
    found = re.search(r"\{([^}]*)\}", name)
    if found is None:
        return [name]
    return [
        one
        for choice in found.group(1).split(",")
        for one in expanded(name[: found.start()] + choice + name[found.end() :])
    ]


def test_the_page_lists_every_name_and_no_other():
    output = generated(0)
    names = {name for name in output["rollout_metrics"] if name.startswith("environment/")}
    names |= set(SamplingRound().combined_metrics())
    names |= set(TaskOrder(["a"], 1, OrderConfig()).metrics())
    listed = {name for name in documented() if name.startswith(("environment/", "data/"))}
    assert names - listed == set()
    assert listed - names == set()
    native = {name for name in documented() if name.startswith("generate/")}
    assert native == {name for name in output["rollout_metrics"] if name.startswith("generate/")}
