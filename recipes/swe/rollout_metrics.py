"""Our numbers of a step, under `environment/`: a pure function of its rollouts.

Where SkyRL joins several outputs it picks mean, min, max or sum by substring of the name: so every
mean here carries `_mean`, and every count starts with `num_`. SkyRL's own `generate/*` numbers are made
where the rows are, in `recipes.swe.output`.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import get_args

import numpy as np

from recipes.swe.types import STAGES, EndReason, FailureKind, Rollout, is_healthy
from rewards.errors import FaultKind
from rewards.retry import CONTROL_FAILED, COUNTED_AS_0


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metric name to value; times and outcomes over healthy rollouts."""
    healthy = [rollout for rollout in rollouts if is_healthy(rollout)]
    metrics: dict[str, float] = {}
    if healthy:
        splits = {stage: [r.stage_times_s.get(stage, 0.0) for r in healthy] for stage in STAGES}
        metrics |= _stage_metrics(splits)
        metrics |= _outcome_metrics(healthy)
    metrics |= _failure_metrics(rollouts)
    metrics |= _grading_metrics(rollouts)
    return metrics


def _stage_metrics(splits: dict[str, list[float]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for stage, seconds in splits.items():
        metrics[f"environment/{stage}_p50_mean"] = float(np.percentile(seconds, 50))
        metrics[f"environment/{stage}_p95_mean"] = float(np.percentile(seconds, 95))
    total = sum(sum(seconds) for seconds in splits.values())
    metrics["environment/env_prep_share_mean"] = sum(splits["env_prep"]) / total if total else 0.0
    return metrics


def _outcome_metrics(healthy: Sequence[Rollout]) -> dict[str, float]:
    rewards = [rollout.reward for rollout in healthy if rollout.reward is not None]
    trajectories = [rollout.trajectory for rollout in healthy if rollout.trajectory is not None]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    ends = Counter(trajectory.end for trajectory in trajectories)
    return {
        "environment/resolved_mean": float(np.mean([reward.resolved for reward in rewards])),
        "environment/f2p_fraction_mean": float(np.mean([reward.f2p_fraction for reward in rewards])),
        "environment/reward_mean": float(np.mean([reward.reward for reward in rewards])),
        "environment/p2p_broken_mean": float(np.mean([reward.p2p_broken for reward in rewards])),
        "environment/dropped_paths_mean": float(np.mean([len(reward.dropped_paths) for reward in rewards])),
        "environment/num_left_out": float(sum(len(trajectory.left_out) for trajectory in trajectories)),
        "environment/turns_mean": len(turns) / len(trajectories),
        "environment/well_formed_mean": float(np.mean([bool(turn.action) for turn in turns])),
        **{f"environment/num_end_{end}": float(ends[end]) for end in get_args(EndReason)},
    }


def _failure_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    kinds = Counter(rollout.failure.kind for rollout in rollouts if rollout.failure is not None)
    groups: dict[str, list[bool]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.instance_id].append(is_healthy(rollout))
    failed = sum(not is_healthy(rollout) and not _is_quarantined(rollout) for rollout in rollouts)
    return {
        "environment/num_rollouts": float(len(rollouts)),
        "environment/num_retried": float(sum(rollout.attempts > 1 for rollout in rollouts)),
        **{f"environment/num_fail_{kind}": float(kinds[kind]) for kind in get_args(FailureKind)},
        "environment/infra_failure_rate_mean": failed / len(rollouts) if rollouts else 0.0,
        "environment/group_excluded_mean": float(np.mean([sum(group) < 2 for group in groups.values()]))
        if groups
        else 0.0,
    }


def _is_quarantined(rollout: Rollout) -> bool:
    return rollout.failure is None and rollout.quarantined


def _grading_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Suspicions, and faults of grading by kind; zeros included, so that a chart has no holes."""
    faults = Counter[str]()
    for rollout in rollouts:
        faults.update(rollout.grading_faults)
    counted = sum(count for name, count in faults.items() if name.endswith(COUNTED_AS_0))
    suspicious = sum(rollout.reward is not None and bool(rollout.reward.suspicions) for rollout in rollouts)
    return {
        "environment/num_suspicious": float(suspicious),
        "environment/num_quarantined": float(sum(map(_is_quarantined, rollouts))),
        **{f"environment/num_grading_fault_{kind}": float(faults[kind]) for kind in get_args(FaultKind)},
        "environment/num_grading_fault_counted_as_0": float(counted),
        "environment/num_grading_control_failed": float(faults[CONTROL_FAILED]),
    }
