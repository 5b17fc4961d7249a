"""Rollouts to SkyRL's `GeneratorOutput`: a pure function, one row per trajectory.

A row is the whole history: the first prompt, then response and observation in turn, exactly as the
server saw and sampled them. Only sampled ids carry loss and a log-probability; nothing is tokenised
here. A failed rollout (ours, not the policy's) becomes a one-token row without loss, so that order and
length are kept; `recipes.swe.advantages` keeps it out of its group's statistics. So does one whose verdict
is suspicious and to be quarantined.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from skyrl.train.generators.base import GeneratorOutput, TrajectoryID
from skyrl.train.generators.utils import get_rollout_metrics

from recipes.swe.types import STAGES, EndReason, FailureKind, Rollout, Trajectory
from rewards.errors import FaultKind
from rewards.retry import CONTROL_FAILED, COUNTED_AS_0

QUARANTINED = "quarantined"
"""Stop reason of a row whose verdict is suspicious: no failure of ours, and not trained on."""


class HistoryError(AssertionError):
    """A turn's prompt does not extend the turn before: its tokens cannot be trained as one row."""


@dataclass(frozen=True, slots=True)
class Row:
    """One training row."""

    prompt_ids: list[int]
    """Ids of the first prompt."""
    response_ids: list[int]
    """Everything after it: sampled ids and what was shown in between."""
    loss_mask: list[int]
    """1 on sampled ids, 0 elsewhere."""
    logprobs: list[float]
    """As sampled; 0.0 on what was not sampled."""
    reward: float
    """Scalar reward of the trajectory."""
    stop_reason: str
    """How it ended."""


def is_healthy(rollout: Rollout) -> bool:
    """Whether the rollout may be trained on."""
    return (
        rollout.failure is None
        and not rollout.quarantined
        and rollout.reward is not None
        and rollout.trajectory is not None
        and len(rollout.trajectory.turns) > 0
    )


def trajectory_row(trajectory: Trajectory, reward: float) -> Row:
    """The row of one trajectory. Raises HistoryError when a prompt does not extend the last one."""
    turns = trajectory.turns
    prompt = list(turns[0].prompt_ids)
    response: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for number, turn in enumerate(turns, start=1):
        seen = prompt + response
        if list(turn.prompt_ids[: len(seen)]) != seen:
            raise HistoryError(f"the prompt of turn {number} does not extend what came before")
        if not turn.response_ids or len(turn.response_ids) != len(turn.logprobs):
            raise HistoryError(
                f"turn {number} has {len(turn.response_ids)} ids, {len(turn.logprobs)} logprobs"
            )
        shown = turn.prompt_ids[len(seen) :]
        response += [*shown, *turn.response_ids]
        mask += [0] * len(shown) + [1] * len(turn.response_ids)
        logprobs += [0.0] * len(shown) + list(turn.logprobs)
    return Row(prompt, response, mask, logprobs, reward, trajectory.end)


def placeholder_row(rollout: Rollout, pad_token_id: int) -> Row:
    """The row of a failed or quarantined rollout: one token, no loss, no reward."""
    reason = f"failed_{rollout.failure.kind if rollout.failure else 'failed'}"
    if rollout.failure is None and rollout.quarantined:
        reason = QUARANTINED
    return Row([pad_token_id], [pad_token_id], [0], [0.0], 0.0, reason)


def to_generator_output(
    rollouts: Sequence[Rollout],
    *,
    pad_token_id: int,
    trajectory_ids: Sequence[TrajectoryID] | None = None,
    extra_metrics: dict[str, float] | None = None,
) -> GeneratorOutput:
    """SkyRL's form of a batch; order and length are those of `rollouts`."""
    rows: list[Row] = []
    for rollout in rollouts:
        if is_healthy(rollout):
            assert rollout.trajectory is not None and rollout.reward is not None
            rows.append(trajectory_row(rollout.trajectory, rollout.reward.reward))
        else:
            rows.append(placeholder_row(rollout, pad_token_id))
    times = [sum(rollout.stage_times_s.values()) for rollout in rollouts]
    splits = {stage: [r.stage_times_s.get(stage, 0.0) for r in rollouts] for stage in STAGES}
    return GeneratorOutput(
        prompt_token_ids=[row.prompt_ids for row in rows],
        response_ids=[row.response_ids for row in rows],
        rewards=[row.reward for row in rows],
        loss_masks=[row.loss_mask for row in rows],
        stop_reasons=[row.stop_reason for row in rows],
        rollout_metrics={**rollout_metrics(rollouts, rows), **(extra_metrics or {})},
        rollout_logprobs=[row.logprobs for row in rows],
        trajectory_ids=list(trajectory_ids) if trajectory_ids is not None else None,
        trajectory_generation_times=times,
        trajectory_time_splits=splits,
        rollout_expert_indices=None,
        rollout_sample_support=None,
        is_last_step=None,
        env_metrics=None,
        pixel_values=None,
        image_grid_thw=None,
    )


def rollout_metrics(rollouts: Sequence[Rollout], rows: Sequence[Row]) -> dict[str, float]:
    """SkyRL's own `generate/*` numbers and ours under `environment/`, over healthy rollouts.

    Where SkyRL joins several outputs it picks mean, min, max or sum by substring of the name: so every
    mean here carries `_mean`, and every count starts with `num_`.
    """
    healthy = [(rollout, row) for rollout, row in zip(rollouts, rows, strict=True) if is_healthy(rollout)]
    metrics: dict[str, Any] = {}
    if healthy:
        splits = {stage: [r.stage_times_s.get(stage, 0.0) for r, _ in healthy] for stage in STAGES}
        metrics |= get_rollout_metrics(
            responses=[row.response_ids for _, row in healthy],
            rewards=[row.reward for _, row in healthy],
            loss_masks=[row.loss_mask for _, row in healthy],
            trajectory_completion_times=[sum(r.stage_times_s.values()) for r, _ in healthy],
            trajectory_time_splits=splits,
        )
        metrics |= _stage_metrics(splits)
        metrics |= _outcome_metrics([rollout for rollout, _ in healthy])
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
