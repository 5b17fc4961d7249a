"""Rollouts on their way from a worker to the driver: as small as what they add, not as what they repeat.

A turn's prompt repeats all turns before it, so a plain pickle of a long rollout grows with the square of its
turns (30 turns of a 16,000-token context: half a million Python ints). Here each prompt is stored as edits of
what came before, with new ids in arrays, which pickle as bytes; on arrival prompts that extend each other
share their ids. It changes no value: `unpack(pack(rollout)) == rollout`.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from recipes.report.token_delta import SIZE, edits, rebuild
from recipes.swe.shared_ids import PackedEdit, SharedIds, TokenIds, packed, unpacked, unpacked_ids
from recipes.swe.types import Rollout, Turn


@dataclass(frozen=True, slots=True)
class PackedTurn:
    """A turn without what the turns before hold already."""

    prompt: tuple[PackedEdit, ...]
    """Edits of the last turn's prompt and response."""
    response_ids: bytes
    """Sampled ids, as in edits."""
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
        turns.append(
            PackedTurn(
                prompt=packed(edits(before, turn.prompt_ids)),
                response_ids=array("q", turn.response_ids).tobytes(),
                logprobs=array("d", turn.logprobs).tobytes(),
                rest=replace(turn, prompt_ids=(), response_ids=(), logprobs=()),
            )
        )
        before = turn.prompt_ids + turn.response_ids
    return PackedRollout(replace(rollout, trajectory=replace(rollout.trajectory, turns=())), tuple(turns))


def unpack(received: PackedRollout) -> Rollout:
    """The rollout as it was; prompts that extend each other share their ids."""
    if received.turns is None or received.rollout.trajectory is None:
        return received.rollout
    turns: list[Turn] = []
    before: TokenIds = ()
    for run in _runs(received.turns):
        turns += _unpacked(run, before)
        before = turns[-1].prompt_ids + turns[-1].response_ids
    trajectory = replace(received.rollout.trajectory, turns=tuple(turns))
    return replace(received.rollout, trajectory=trajectory)


def _runs(turns: Sequence[PackedTurn]) -> list[list[PackedTurn]]:
    """Runs of turns in which each prompt extends all that was before it."""
    runs: list[list[PackedTurn]] = []
    length = 0
    for turn in turns:
        first, *rest = turn.prompt or (b"",)
        if not runs or first != {"at": 0, "n": length} or any(isinstance(one, dict) for one in rest):
            runs.append([])
        runs[-1].append(turn)
        length = _length(turn.prompt) + len(turn.response_ids) // SIZE
    return runs


def _length(prompt: Sequence[PackedEdit]) -> int:
    return sum(edit["n"] if isinstance(edit, dict) else len(edit) // SIZE for edit in prompt)


def _unpacked(turns: Sequence[PackedTurn], before: TokenIds) -> list[Turn]:
    """Turns of one run; `before` is what its first prompt is edits of."""
    new = b"".join(chain.from_iterable((*_new(turn), turn.response_ids) for turn in turns[1:]))
    ids = tuple(rebuild(before, unpacked(turns[0].prompt)))
    ids += tuple(unpacked_ids(turns[0].response_ids + new))
    made: list[Turn] = []
    for turn in turns:
        end = _length(turn.prompt)
        prompt = SharedIds(ids, end, (before, turn.prompt))
        response = ids[end : end + len(turn.response_ids) // SIZE]
        logprobs = array("d", turn.logprobs)
        made.append(replace(turn.rest, prompt_ids=prompt, response_ids=response, logprobs=tuple(logprobs)))
        before = SharedIds(ids, end + len(response))
    return made


def _new(turn: PackedTurn) -> Iterator[bytes]:
    return (edit for edit in turn.prompt if isinstance(edit, bytes))
