"""Our numbers of a step, under `environment/`: a pure function of its rollouts.

Where SkyRL joins several outputs it picks mean, min, max or sum by substring of the name: so every
mean and percentile here carries `_mean`, every count starts with `num_`, and only a maximum says `max`.
SkyRL's own `generate/*` numbers are made where the rows are, in `recipes.swe.output`. docs/metrics.md
lists every name; a test compares the two.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import get_args

import numpy as np

from recipes.swe.parsing import TOOLS
from recipes.swe.types import STAGES, WAITS, EndReason, FailureKind, Rollout, Trajectory, is_healthy
from rewards.errors import FaultKind
from rewards.retry import CONTROL_FAILED, COUNTED_AS_0

MIB = 1 << 20


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metric name to value; times, waits and outcomes over healthy rollouts, counts over all."""
    healthy = [rollout for rollout in rollouts if is_healthy(rollout)]
    metrics: dict[str, float] = {}
    if healthy:
        metrics |= _stage_metrics(healthy)
        metrics |= _outcome_metrics(healthy)
        metrics |= _work_metrics([rollout.trajectory for rollout in healthy if rollout.trajectory])
    metrics |= _environment_metrics(rollouts)
    metrics |= _failure_metrics(rollouts)
    metrics |= _group_metrics(rollouts)
    metrics |= _grading_metrics(rollouts)
    return {f"environment/{name}": value for name, value in metrics.items()}


def tool_calls(trajectory: Trajectory) -> Counter[str]:
    """Tool name to well-formed calls; what did not parse is under the empty name."""
    return Counter(
        turn.action.removeprefix("<function=").split(">", 1)[0] if turn.action else ""
        for turn in trajectory.turns
    )


def _spread(name: str, values: Sequence[float], percentiles: Sequence[int]) -> dict[str, float]:
    return {f"{name}_p{p}_mean": float(np.percentile(values, p)) for p in percentiles}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _stage_metrics(healthy: Sequence[Rollout]) -> dict[str, float]:
    """SkyRL has mean, p90 and maximum of each stage; these are the other percentiles, and the waits."""
    splits = {stage: [r.stage_times_s.get(stage, 0.0) for r in healthy] for stage in STAGES}
    metrics: dict[str, float] = {}
    for stage, seconds in splits.items():
        metrics |= _spread(stage, seconds, (50, 95))
    total = sum(sum(seconds) for seconds in splits.values())
    metrics["env_prep_share_mean"] = sum(splits["env_prep"]) / total if total else 0.0
    for wait in WAITS:
        seconds = [rollout.waits_s.get(wait, 0.0) for rollout in healthy]
        metrics |= {f"wait_{wait}_mean": _mean(seconds), **_spread(f"wait_{wait}", seconds, (95,))}
    return metrics


def _outcome_metrics(healthy: Sequence[Rollout]) -> dict[str, float]:
    rewards = [rollout.reward for rollout in healthy if rollout.reward is not None]
    ends = Counter(rollout.trajectory.end for rollout in healthy if rollout.trajectory is not None)
    return {
        "resolved_mean": _mean(reward.resolved for reward in rewards),
        "reward_mean": _mean(reward.reward for reward in rewards),
        "f2p_fraction_mean": _mean(reward.f2p_fraction for reward in rewards),
        "p2p_fraction_mean": _mean(reward.p2p_fraction for reward in rewards),
        "p2p_broken_mean": _mean(reward.p2p_broken for reward in rewards),
        "dropped_paths_mean": _mean(len(reward.dropped_paths) for reward in rewards),
        **{f"num_end_{end}": float(ends[end]) for end in get_args(EndReason)},
    }


def _work_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What the agent did: turns, tokens, calls."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    calls = [tool_calls(trajectory) for trajectory in trajectories]
    longest = [max(len(t.prompt_ids) + len(t.response_ids) for t in tr.turns) for tr in trajectories]
    return {
        "turns_mean": len(turns) / len(trajectories),
        "sampled_tokens_mean": sum(len(turn.response_ids) for turn in turns) / len(trajectories),
        "context_tokens_mean": _mean(longest),
        "cut_turns_mean": _mean(turn.stop_reason == "length" for turn in turns),
        "well_formed_mean": _mean(bool(turn.action) for turn in turns),
        "format_errors_mean": _mean(count[""] for count in calls),
        **{f"calls_{tool}_mean": _mean(count[tool] for count in calls) for tool in TOOLS},
        "empty_patch_mean": _mean(not trajectory.patch for trajectory in trajectories),
        "num_left_out": float(sum(len(trajectory.left_out) for trajectory in trajectories)),
    }


def _environment_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Cache, gate and what sandboxes used; a figure that no rollout knows is left out."""
    hits = [rollout.cache_hit for rollout in rollouts if rollout.cache_hit is not None]
    gate = [rollout.gate_wait_s for rollout in rollouts if rollout.cache_hit is not None]
    peaks = [r.memory_peak_bytes / MIB for r in rollouts if r.memory_peak_bytes is not None]
    processor = [rollout.cpu_s for rollout in rollouts if rollout.cpu_s is not None]
    metrics: dict[str, float] = {}
    if hits:
        metrics |= {"cache_hit_mean": _mean(hits), "gate_wait_mean": _mean(gate)}
        metrics |= _spread("gate_wait", gate, (95,))
    if peaks:
        metrics |= {"memory_peak_mib_mean": _mean(peaks), "memory_peak_mib_max": max(peaks)}
        metrics |= _spread("memory_peak_mib", peaks, (95,))
    if processor:
        metrics |= {"sandbox_cpu_s_mean": _mean(processor), **_spread("sandbox_cpu_s", processor, (95,))}
    return metrics


def _failure_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    kinds = Counter(rollout.failure.kind for rollout in rollouts if rollout.failure is not None)
    failed = sum(not is_healthy(rollout) and not _is_quarantined(rollout) for rollout in rollouts)
    return {
        "num_rollouts": float(len(rollouts)),
        "num_retried": float(sum(rollout.attempts > 1 for rollout in rollouts)),
        **{f"num_fail_{kind}": float(kinds[kind]) for kind in get_args(FailureKind)},
        "infra_failure_rate_mean": failed / len(rollouts) if rollouts else 0.0,
    }


def _group_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Groups that teach nothing: left out whole, or all of one reward."""
    groups: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        rewards = groups[rollout.instance_id]
        if is_healthy(rollout) and rollout.reward is not None:
            rewards.append(rollout.reward.reward)
    excluded = sum(len(rewards) < 2 for rewards in groups.values())
    flat = sum(len(rewards) >= 2 and min(rewards) == max(rewards) for rewards in groups.values())
    return {
        "num_masked": float(sum(not is_healthy(rollout) for rollout in rollouts)),
        "num_groups_excluded": float(excluded),
        "group_excluded_mean": excluded / len(groups) if groups else 0.0,
        "group_flat_mean": flat / len(groups) if groups else 0.0,
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
        "num_suspicious": float(suspicious),
        "num_quarantined": float(sum(map(_is_quarantined, rollouts))),
        **{f"num_grading_fault_{kind}": float(faults[kind]) for kind in get_args(FaultKind)},
        "num_grading_fault_counted_as_0": float(counted),
        "num_grading_control_failed": float(faults[CONTROL_FAILED]),
    }
