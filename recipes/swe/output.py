"""Rollouts to SkyRL's `GeneratorOutput`: a pure function, one row per trajectory.

A row is the whole history: the first prompt, then response and observation in turn, exactly as the
server saw and sampled them. Only sampled ids carry loss and a log-probability; nothing is tokenised
here. A failed rollout (ours, not the policy's) becomes a one-token row without loss, so that order and
length are kept; `recipes.swe.advantages` keeps it out of its group's statistics. So does one whose verdict
is suspicious and to be quarantined.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skyrl.train.generators.base import GeneratorOutput, TrajectoryID
from skyrl.train.generators.utils import get_rollout_metrics

from recipes.swe.rollout_metrics import rollout_metrics
from recipes.swe.types import STAGES, Rollout, Trajectory, is_healthy

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
        rollout_metrics={
            **native_metrics(rollouts, rows),
            **rollout_metrics(rollouts),
            **(extra_metrics or {}),
        },
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


def native_metrics(rollouts: Sequence[Rollout], rows: Sequence[Row]) -> dict[str, Any]:
    """SkyRL's own `generate/*` numbers, over healthy rollouts."""
    healthy = [(rollout, row) for rollout, row in zip(rollouts, rows, strict=True) if is_healthy(rollout)]
    if not healthy:
        return {}
    return get_rollout_metrics(
        responses=[row.response_ids for _, row in healthy],
        rewards=[row.reward for _, row in healthy],
        loss_masks=[row.loss_mask for _, row in healthy],
        trajectory_completion_times=[sum(r.stage_times_s.values()) for r, _ in healthy],
        trajectory_time_splits={
            stage: [r.stage_times_s.get(stage, 0.0) for r, _ in healthy] for stage in STAGES
        },
    )
