"""Makes run folders as a training would, with invented numbers."""

import random
from pathlib import Path

from recipes.report.metrics import MetricsFile
from recipes.report.trajectories import write_rollouts
from recipes.swe.types import STAGES, Failure, Rollout, Trajectory, Turn
from rewards.types import RewardResult


def make_rollout(name: str, *, solved: bool, repetition: int = 0, failed: bool = False) -> Rollout:
    first = Turn((1, 2, 3), (4, 5), (-0.5, -0.25), "stop", "<function=bash>", "ls", "a.py")
    second = Turn((1, 2, 3, 4, 5, 6, 7), (8, 9), (-0.1, -0.2), "stop", "submit", "submit", "")
    reward = RewardResult(
        float(solved), solved, float(solved), 0, reasons=() if solved else ("test_a failed",)
    )
    return Rollout(
        trajectory_id=f"{name}_{repetition}",
        instance_id=name,
        trajectory=None if failed else Trajectory((first, second), "diff --git a b\n", "submitted"),
        reward=None if failed else reward,
        stage_times_s={stage: 0.1 * (i + 1) for i, stage in enumerate(STAGES)},
        failure=Failure("sandbox", "mount refused") if failed else None,
    )


def make_run(folder: Path, steps: int = 20, seed: int = 0) -> Path:
    random.seed(seed)
    metrics = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        rate = 0.2 + 0.4 * step / steps
        rollouts = [
            make_rollout(
                f"project__{task}",
                solved=random.random() < rate * random.uniform(0.4, 1.5),
                repetition=n,
                failed=random.random() < 0.01,
            )
            for task in range(8)
            for n in range(8)
        ]
        write_rollouts(folder, step, rollouts)
        good = [r for r in rollouts if r.reward is not None]
        resolved = sum(r.reward.resolved for r in good if r.reward) / len(good)
        stage = {
            "env_prep": 0.01,
            "sandbox_start": 0.03,
            "llm": 4.0,
            "env": 1.1,
            "grade": 2.5,
            "cleanup": 0.05,
        }
        metrics.append(
            step,
            {
                "reward/avg_raw_reward": resolved,
                "environment/resolved_mean": resolved,
                "timing/step": 21 + random.random() * 4,
                "timing/generate": 14.0,
                "timing/policy_train": 5.0,
                "timing/sync_weights": 0.4,
                "policy/rollout_train_logprobs_abs_diff_mean": 1e-5 * random.random(),
                "environment/num_fail_sandbox": len(rollouts) - len(good),
                "name": "not a number",
                **{
                    f"generate/trajectory_time_{k}_mean": v * random.uniform(0.8, 1.2)
                    for k, v in stage.items()
                },
            },
        )
    return folder
