"""Sample trajectories for a person to look at in the tracker: which ones, and as what columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recipes.report.trajectories import rollout_text, verdict
from recipes.swe.types import Rollout

COLUMNS = (
    "step", "phase", "instance_id", "trajectory_id", "verdict", "reward", "end", "failure", "turns",
    "sampled_tokens", "seconds", "patch", "trajectory",
)  # fmt: skip
MOST_CHARS = 20_000
"""Of a trajectory's text in the table; the whole is in the run's folder under its trajectory id."""
ORDER = ("solved", "unsolved", "failed")


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout that may be shown."""

    phase: str
    """train or eval."""
    step: int
    """Trainer step."""
    rollout: Rollout
    """The rollout."""


def pick_samples(samples: Sequence[Sample], most: int) -> list[Sample]:
    """At most `most`: solved, unsolved and failed ones in turn, so that none hides the others."""
    piles = [[s for s in samples if verdict(s.rollout) == kind] for kind in ORDER]
    picked: list[Sample] = []
    while len(picked) < most and any(piles):
        for pile in piles:
            if pile and len(picked) < most:
                picked.append(pile.pop(0))
    return picked


def sample_row(sample: Sample) -> tuple[Any, ...]:
    """The values of COLUMNS."""
    rollout = sample.rollout
    turns = rollout.trajectory.turns if rollout.trajectory else ()
    return (
        sample.step,
        sample.phase,
        rollout.instance_id,
        rollout.trajectory_id,
        verdict(rollout),
        rollout.reward.reward if rollout.reward else None,
        rollout.trajectory.end if rollout.trajectory else None,
        rollout.failure.kind if rollout.failure else None,
        len(turns),
        sum(len(turn.response_ids) for turn in turns),
        round(sum(rollout.stage_times_s.values()), 3),
        _cut(rollout.trajectory.patch if rollout.trajectory else ""),
        _cut(rollout_text(rollout)),
    )


def _cut(text: str) -> str:
    """`text` without its middle when it is too long, and with what JSON cannot hold replaced."""
    if len(text) > MOST_CHARS:
        half = MOST_CHARS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
