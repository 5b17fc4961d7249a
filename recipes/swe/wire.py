"""Rollouts on their way from a worker to the driver: as small as what they add, not as what they repeat.

A turn's prompt repeats all turns before it, so a plain pickle of a long rollout grows with the square of its
turns (30 turns of a 16,000-token context: half a million Python ints). Here each prompt is stored as edits of
what came before, with new ids in arrays, which pickle as bytes. It changes no value:
`unpack(pack(rollout)) == rollout`.
"""

from array import array
from dataclasses import dataclass, replace

from recipes.report.token_delta import edits, rebuild
from recipes.swe.types import Rollout, Turn


@dataclass(frozen=True, slots=True)
class PackedTurn:
    """A turn without what the turns before hold already."""

    prompt: tuple[dict[str, int] | bytes, ...]
    """Edits of the last turn's prompt and response; new ids as signed 64-bit integers of this machine."""
    response_ids: bytes
    """Sampled ids, likewise."""
    logprobs: bytes
    """One double per sampled id."""
    rest: Turn
    """All else; its ids and log-probabilities are empty."""


@dataclass(frozen=True, slots=True)
class PackedRollout:
    """A rollout whose turns are packed."""

    rollout: Rollout
    """All but the turns."""
    turns: tuple[PackedTurn, ...] | None
    """None when there is no trajectory."""


def pack(rollout: Rollout) -> PackedRollout:
    """Make it small."""
    if rollout.trajectory is None:
        return PackedRollout(rollout, None)
    before: tuple[int, ...] = ()
    turns: list[PackedTurn] = []
    for turn in rollout.trajectory.turns:
        made = edits(before, turn.prompt_ids)
        turns.append(
            PackedTurn(
                prompt=tuple(edit if isinstance(edit, dict) else array("q", edit).tobytes() for edit in made),
                response_ids=array("q", turn.response_ids).tobytes(),
                logprobs=array("d", turn.logprobs).tobytes(),
                rest=replace(turn, prompt_ids=(), response_ids=(), logprobs=()),
            )
        )
        before = turn.prompt_ids + turn.response_ids
    return PackedRollout(replace(rollout, trajectory=replace(rollout.trajectory, turns=())), tuple(turns))


def unpack(packed: PackedRollout) -> Rollout:
    """The rollout as it was."""
    if packed.turns is None or packed.rollout.trajectory is None:
        return packed.rollout
    before: tuple[int, ...] = ()
    turns: list[Turn] = []
    for turn in packed.turns:
        made = [edit if isinstance(edit, dict) else list(_array("q", edit)) for edit in turn.prompt]
        prompt = rebuild(before, made)
        response = tuple(_array("q", turn.response_ids))
        logprobs = tuple(_array("d", turn.logprobs))
        turns.append(replace(turn.rest, prompt_ids=prompt, response_ids=response, logprobs=logprobs))
        before = prompt + response
    trajectory = replace(packed.rollout.trajectory, turns=tuple(turns))
    return replace(packed.rollout, trajectory=trajectory)


def _array(kind: str, data: bytes) -> array:  # type: ignore[type-arg]
    values: array = array(kind)  # type: ignore[type-arg]
    values.frombytes(data)
    return values
