"""Rollouts to SkyRL's `GeneratorOutput`: a pure function.

A row is a prompt, then response and observation in turn, exactly as the server saw and sampled them. Only
sampled ids carry loss and a log-probability; nothing is tokenised here. Where each prompt extends what came
before, a trajectory is one row. Where it does not (old observations were elided), it is several: `step_wise`,
SkyRL's form for it, with neighbours already merged as far as one extends the other, so that what travels is
not quadratic. A failed rollout (ours, not the policy's) becomes a one-token row without loss, so that order
and count are kept; `recipes.swe.advantages` keeps it out of its group's statistics. So does one whose verdict
is suspicious and to be quarantined.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from skyrl.train.generators.base import GeneratorOutput, TrajectoryID
from skyrl.train.generators.utils import apply_overlong_filtering, get_rollout_metrics

from recipes.swe.failures import one_line
from recipes.swe.rollout_metrics import rollout_metrics
from recipes.swe.shared_ids import TokenIds
from recipes.swe.types import STAGES, EndReason, Failure, Rollout, Trajectory, Turn, is_healthy

QUARANTINED = "quarantined"
"""Stop reason of a row whose verdict is suspicious: no failure of ours, and not trained on."""
FAILED = "failed_"
"""Stop reason of a failed rollout's row: this and the kind of failure."""
MESSAGES = "failure_messages"
"""Key of the output, beside SkyRL's own: a line for each row, empty where nothing failed."""
CUT_SHORT: tuple[EndReason, ...] = ("context", "turn_limit", "time")
"""Ends that are a limit's, not the model's: what overlong filtering takes the loss from."""


class HistoryError(Exception):
    """The record of a trajectory cannot be trained on as it stands."""


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
    """Scalar reward of the trajectory, the same in each of its rows."""
    stop_reason: str
    """How the trajectory ended."""


def trajectory_rows(trajectory: Trajectory, reward: float) -> list[Row]:
    """The rows of one trajectory, as few as its prompts allow. Raises HistoryError."""
    rows: list[Row] = []
    seen: TokenIds = ()
    for number, turn in enumerate(trajectory.turns, start=1):
        if not turn.response_ids or len(turn.response_ids) != len(turn.logprobs):
            raise HistoryError(
                f"turn {number} has {len(turn.response_ids)} ids, {len(turn.logprobs)} logprobs"
            )
        if not rows or turn.prompt_ids[: len(seen)] != seen:
            rows.append(Row(list(turn.prompt_ids), [], [], [], reward, trajectory.end))
            seen = turn.prompt_ids
        _extend(rows[-1], turn.prompt_ids[len(seen) :], turn)
        seen = turn.prompt_ids + turn.response_ids
    if not rows:
        raise HistoryError("a trajectory without turns has no rows")
    return rows


def _extend(row: Row, shown: Sequence[int], turn: Turn) -> None:
    row.response_ids.extend((*shown, *turn.response_ids))
    row.loss_mask.extend([0] * len(shown) + [1] * len(turn.response_ids))
    row.logprobs.extend([0.0] * len(shown) + list(turn.logprobs))


def rollout_rows(rollout: Rollout, *, pad_token_id: int, step_wise: bool) -> list[Row]:
    """The rows of a rollout, a placeholder when it is not trained on. Raises HistoryError."""
    if not is_healthy(rollout):
        quarantined = rollout.failure is None and rollout.quarantined
        kind = rollout.failure.kind if rollout.failure else "internal"
        reason = QUARANTINED if quarantined else FAILED + kind
        return [Row([pad_token_id], [pad_token_id], [0], [0.0], 0.0, reason)]
    assert rollout.trajectory is not None and rollout.reward is not None
    rows = trajectory_rows(rollout.trajectory, rollout.reward.reward)
    if len(rows) > 1 and not step_wise:
        raise HistoryError(f"its prompts make {len(rows)} rows, and generator.step_wise_trajectories is off")
    return rows


def trainable(
    rollouts: Sequence[Rollout], *, pad_token_id: int = 0, step_wise: bool
) -> tuple[list[Rollout], list[list[Row]]]:
    """The rollouts, those whose record cannot be made into rows turned into failures (`internal`), and the
    rows of each."""
    made = [_trainable(rollout, pad_token_id, step_wise) for rollout in rollouts]
    return [rollout for rollout, _ in made], [rows for _, rows in made]


def _trainable(rollout: Rollout, pad_token_id: int, step_wise: bool) -> tuple[Rollout, list[Row]]:
    if rollout.failure is None and not rollout.quarantined and not is_healthy(rollout):
        message = "neither failed nor complete: no turns, or no verdict"
        rollout = replace(rollout, failure=Failure("internal", message))
    try:
        return rollout, rollout_rows(rollout, pad_token_id=pad_token_id, step_wise=step_wise)
    except HistoryError as error:
        failed = replace(rollout, failure=Failure("internal", one_line(error)))
        return failed, rollout_rows(failed, pad_token_id=pad_token_id, step_wise=step_wise)


def to_generator_output(
    rollouts: Sequence[Rollout],
    *,
    pad_token_id: int,
    grouped: Sequence[list[Row]] | None = None,
    trajectory_ids: Sequence[TrajectoryID] | None = None,
    step_wise: bool = False,
    overlong_filtering: bool = False,
    extra_metrics: dict[str, float] | None = None,
) -> GeneratorOutput:
    """SkyRL's form of a batch, in the order of `rollouts`. Raises HistoryError, see `trainable`.

    One row a rollout, or with `step_wise` (which needs `trajectory_ids`) one or more. `grouped`: the rows of
    each rollout, where they are known."""
    if grouped is None:
        grouped = [rollout_rows(one, pad_token_id=pad_token_id, step_wise=step_wise) for one in rollouts]
    rows = [row for group in grouped for row in group]
    owners = [index for index, group in enumerate(grouped) for _ in group]
    output = GeneratorOutput(
        prompt_token_ids=[row.prompt_ids for row in rows],
        response_ids=[row.response_ids for row in rows],
        rewards=[row.reward for row in rows],
        loss_masks=_masks(rows, overlong_filtering=overlong_filtering),
        stop_reasons=[row.stop_reason for row in rows],
        rollout_metrics={
            **native_metrics(rollouts, grouped),
            **rollout_metrics(rollouts),
            **(extra_metrics or {}),
        },
        rollout_logprobs=[row.logprobs for row in rows],
        trajectory_ids=[trajectory_ids[owner] for owner in owners] if trajectory_ids is not None else None,
        trajectory_generation_times=[sum(rollouts[owner].stage_times_s.values()) for owner in owners],
        trajectory_time_splits={
            stage: [rollouts[owner].stage_times_s.get(stage, 0.0) for owner in owners] for stage in STAGES
        },
        rollout_expert_indices=None,
        rollout_sample_support=None,
        is_last_step=_last_of_each(owners) if step_wise else None,
        env_metrics=None,
        pixel_values=None,
        image_grid_thw=None,
    )
    failures = [rollout.failure for rollout in rollouts]
    messages = [failure.message if failure else "" for failure in failures]
    cast(dict[str, Any], output)[MESSAGES] = [messages[owner] for owner in owners]
    return output


def _last_of_each(owners: Sequence[int]) -> list[bool]:
    return [following != owner for owner, following in zip(owners, [*owners[1:], -1], strict=True)]


def _masks(rows: Sequence[Row], *, overlong_filtering: bool) -> list[list[int]]:
    masks = [row.loss_mask for row in rows]
    if not overlong_filtering:
        return masks
    # In SkyRL's words: what did not end with `stop` was cut.
    ends = ["length" if row.stop_reason in CUT_SHORT else "stop" for row in rows]
    return apply_overlong_filtering(masks, ends)


def native_metrics(rollouts: Sequence[Rollout], grouped: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """SkyRL's own `generate/*` numbers, over healthy rollouts; `grouped` are the rows of each.

    Of several rows the responses are joined: each sampled id counts once, and a gap keeps turns apart."""
    healthy = [
        (rollout, rows) for rollout, rows in zip(rollouts, grouped, strict=True) if is_healthy(rollout)
    ]
    if not healthy:
        return {}
    return get_rollout_metrics(
        responses=[list(chain.from_iterable(row.response_ids for row in rows)) for _, rows in healthy],
        rewards=[rows[0].reward for _, rows in healthy],
        loss_masks=[list(chain.from_iterable((*row.loss_mask, 0) for row in rows)) for _, rows in healthy],
        trajectory_completion_times=[sum(r.stage_times_s.values()) for r, _ in healthy],
        trajectory_time_splits={
            stage: [r.stage_times_s.get(stage, 0.0) for r, _ in healthy] for stage in STAGES
        },
    )
