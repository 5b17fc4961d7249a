"""Rollouts on their way from a worker to the driver: as small as what they add, not as what they repeat.

A turn's prompt repeats all turns before it, so a plain pickle of a long rollout grows with the square of its
turns (30 turns of a 16,000-token context: half a million Python ints). Here each prompt is stored as edits of
what came before, with new ids in arrays, which pickle as bytes; on arrival prompts that extend each other
share their ids. It changes no value: `unpack(pack(rollout)) == rollout`.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recipes.report.token_delta import SIZE, edits, rebuild
from recipes.swe.shared_ids import SharedIds, TokenIds
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
    for chain in _chains(packed.turns):
        turns += _unpacked(chain, before)
        before = turns[-1].prompt_ids + turns[-1].response_ids
    trajectory = replace(packed.rollout.trajectory, turns=tuple(turns))
    return replace(packed.rollout, trajectory=trajectory)


def _chains(turns: Sequence[PackedTurn]) -> list[list[PackedTurn]]:
    """Runs of turns in which each prompt extends all that was before it."""
    chains: list[list[PackedTurn]] = []
    length = 0
    for turn in turns:
        first, *rest = turn.prompt or (b"",)
        extends = chains and first == {"at": 0, "n": length} and all(isinstance(one, bytes) for one in rest)
        chains[-1].append(turn) if extends else chains.append([turn])
        length = _length(turn.prompt) + len(turn.response_ids) // SIZE
    return chains


def _length(prompt: Sequence[dict[str, int] | bytes]) -> int:
    return sum(edit["n"] if isinstance(edit, dict) else len(edit) // SIZE for edit in prompt)


def _unpacked(chain: Sequence[PackedTurn], before: TokenIds) -> list[Turn]:
    """Turns of one chain; `before` is what its first prompt is edits of."""
    made = [edit if isinstance(edit, dict) else list(_array("q", edit)) for edit in chain[0].prompt]
    whole = _array("q", array("q", rebuild(before, made)).tobytes() + chain[0].response_ids)
    for turn in chain[1:]:
        whole.frombytes(b"".join(edit for edit in turn.prompt if isinstance(edit, bytes)) + turn.response_ids)
    ids = tuple(whole)
    turns: list[Turn] = []
    for turn in chain:
        length = _length(turn.prompt)
        response = ids[length : length + len(turn.response_ids) // SIZE]
        turns.append(
            replace(
                turn.rest,
                prompt_ids=SharedIds(ids, length),
                response_ids=response,
                logprobs=tuple(_array("d", turn.logprobs)),
            )
        )
    return turns


def _array(kind: str, data: bytes) -> array:  # type: ignore[type-arg]
    values: array = array(kind)  # type: ignore[type-arg]
    values.frombytes(data)
    return values
