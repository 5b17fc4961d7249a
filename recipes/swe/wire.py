"""Rollouts on their way from a worker to the driver: as small as what they add, not as what they repeat.

A turn's prompt repeats all turns before it, so a plain pickle of a long rollout grows with the square of its
turns (30 turns of a 16,000-token context: half a million Python ints). Here each prompt is stored as edits of
what came before, with new ids in arrays, which pickle as bytes; on arrival prompts that extend each other
share their ids. It changes no value: `unpack(pack(rollout)) == rollout`.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from recipes.report.token_delta import SIZE, edits, rebuild
from recipes.swe.shared_ids import Edit, SharedIds, TokenIds
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
    before: TokenIds = ()
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
    """The rollout as it was; prompts that extend each other share their ids."""
    if packed.turns is None or packed.rollout.trajectory is None:
        return packed.rollout
    turns: list[Turn] = []
    before: TokenIds = ()
    for run in _runs(packed.turns):
        turns += _unpacked(run, before)
        before = turns[-1].prompt_ids + turns[-1].response_ids
    trajectory = replace(packed.rollout.trajectory, turns=tuple(turns))
    return replace(packed.rollout, trajectory=trajectory)


def _runs(turns: Sequence[PackedTurn]) -> list[list[PackedTurn]]:
    """Runs of turns in which each prompt extends all that was before it."""
    runs: list[list[PackedTurn]] = []
    length = 0
    for turn in turns:
        first, *rest = turn.prompt or (b"",)
        extends = runs and first == {"at": 0, "n": length} and all(isinstance(one, bytes) for one in rest)
        runs[-1].append(turn) if extends else runs.append([turn])
        length = _length(turn.prompt) + len(turn.response_ids) // SIZE
    return runs


def _length(prompt: Sequence[dict[str, int] | bytes]) -> int:
    return sum(edit["n"] if isinstance(edit, dict) else len(edit) // SIZE for edit in prompt)


def _unpacked(turns: Sequence[PackedTurn], before: TokenIds) -> list[Turn]:
    """Turns of one run; `before` is what its first prompt is edits of."""
    whole: list[int] = []
    ends: list[int] = []
    made: list[list[Edit]] = []
    for turn in turns:
        made.append([edit if isinstance(edit, dict) else _ids(edit) for edit in turn.prompt])
        new = made[-1] if whole else [list(rebuild(before, made[0]))]
        whole += chain.from_iterable(edit for edit in new if not isinstance(edit, dict))
        ends.append(len(whole))
        whole += _ids(turn.response_ids)
    ids = tuple(whole)
    unpacked: list[Turn] = []
    for turn, end, its in zip(turns, ends, made, strict=True):
        prompt = SharedIds(ids, end, (before, its))
        response = ids[end : end + len(turn.response_ids) // SIZE]
        logprobs = tuple(_array("d", turn.logprobs))
        unpacked.append(replace(turn.rest, prompt_ids=prompt, response_ids=response, logprobs=logprobs))
        before = SharedIds(ids, end + len(response))
    return unpacked


def _ids(data: bytes) -> list[int]:
    return _array("q", data).tolist()


def _array(kind: str, data: bytes) -> array:  # type: ignore[type-arg]
    values: array = array(kind)  # type: ignore[type-arg]
    values.frombytes(data)
    return values
