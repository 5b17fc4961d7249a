"""Faults of every class at 5 % and 30 % of rollouts, through SkyRL's real training loop: the run completes,
each fault is counted as what it is, and the policy still learns what it learns without."""

import asyncio
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.loop import make_loop
from benchmarks.paced import make_tasks
from recipes.report.metrics import FILE_NAME, StepMetrics, read_metrics
from recipes.swe.advantages import LOGPROB_DIFF
from recipes.swe.chat import ChatCodec
from recipes.swe.failure_report import TooManyFailuresError
from recipes.swe.types import FailureKind
from tests.agent.conftest import make_tokenizer
from tests.skyrl.bandit import FAULTS, BanditPolicy, LearningWorkers, LocalFanout, Weights
from tests.skyrl.chosen import injected

PROMPTS, SAMPLES = 8, 8


def train(
    folder: Path, faults: dict[str, float], *, steps: int, seed: int = 0, max_failed_share: float = 0.9
) -> tuple[list[StepMetrics], LocalFanout]:
    """Metrics of each step, and the fan-out that saw all rollouts."""
    codec, weights = ChatCodec(make_tokenizer()), Weights()
    policy = BanditPolicy(codec, weights)
    fanout = LocalFanout(codec, policy, faults)
    tasks = [replace(task, problem_statement=f"Fix it ({seed}).") for task in make_tasks(16)]
    trainer, _ = make_loop(
        folder,
        fanout,
        tasks,
        prompts=PROMPTS,
        samples=SAMPLES,
        steps=steps,
        update_s=0,
        overlap=False,
        seed=seed,
    )
    trainer.dispatch = LearningWorkers(trainer.cfg.trainer.algorithm, weights, policy)
    trainer.max_failed_share = max_failed_share
    trainer.logprob_tolerance = 1e-4
    asyncio.run(trainer.train())
    return read_metrics(folder / FILE_NAME), fanout


@pytest.mark.parametrize("share", [0.05, 0.30])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_each_fault_is_counted_and_the_run_completes(tmp_path: Path, fault: str, share: float) -> None:
    steps = 2
    lines, fanout = train(tmp_path, {fault: share}, steps=steps)
    assert [line.step for line in lines] == list(range(1, steps + 1))
    expected = Counter(
        int(rollout.trajectory_id[4:8])
        for rollout in fanout.rollouts
        if injected(rollout.trajectory_id, fanout.faults)
    )
    assert sum(expected.values()) > 0
    for line in lines:
        for kind in get_args(FailureKind):
            count = expected[line.step] if kind == FAULTS[fault] else 0
            assert line.metrics[f"environment/num_fail_{kind}"] == count, (kind, line.step)
    # What was injected failed, and nothing else did.
    for rollout in fanout.rollouts:
        assert (rollout.failure is not None) == bool(injected(rollout.trajectory_id, fanout.faults))
    assert all(sandbox.closed for sandbox in fanout.backend.opened)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_classes_at_5_percent_learn_what_the_clean_run_learns(tmp_path: Path) -> None:
    """Seven classes at 5 % each: a third of all rollouts fails, and the curve stays within noise."""
    steps, seeds = 30, (0, 1, 2)
    curves: dict[str, list[list[float]]] = {}
    for name, faults in (("clean", {}), ("faulty", dict.fromkeys(FAULTS, 0.05))):
        for seed in seeds:
            lines, _ = train(tmp_path / f"{name}{seed}", faults, steps=steps, seed=seed)
            curves.setdefault(name, []).append([line.metrics["reward/avg_raw_reward"] for line in lines])
            assert max(line.metrics[LOGPROB_DIFF] for line in lines) < 1e-4
    ends = {name: [statistics.fmean(curve[-10:]) for curve in runs] for name, runs in curves.items()}
    starts = {name: [statistics.fmean(curve[:3]) for curve in runs] for name, runs in curves.items()}
    assert statistics.fmean(starts["clean"]) < 0.45, "there is something to learn"
    assert statistics.fmean(ends["clean"]) > 0.8, "and it is learned"
    # A step's reward is a mean of about 40 to 64 draws: standard error at most 0.08; of ten steps and three
    # seeds, 0.015. The curves also differ in what was sampled, hence four of them.
    assert abs(statistics.fmean(ends["clean"]) - statistics.fmean(ends["faulty"])) < 0.06, ends
    for step in range(0, steps, 5):
        at = [
            statistics.fmean(statistics.fmean(curve[step : step + 5]) for curve in curves[name])
            for name in ("clean", "faulty")
        ]
        assert abs(at[0] - at[1]) < 0.12, (step, at)


def test_too_many_faults_stop_the_run_with_a_report(tmp_path: Path) -> None:
    with pytest.raises(TooManyFailuresError, match="cache"):
        train(tmp_path, {"cache": 0.30}, steps=3, max_failed_share=0.1)
