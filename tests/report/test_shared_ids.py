"""Prompts that share ids are, to whoever asks, the tuples that they stand for; and they cost no copies."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.report.token_delta import edits, rebuild
from recipes.swe.shared_ids import SharedIds, packed
from recipes.swe.types import Rollout, Trajectory, Turn
from recipes.swe.wire import pack, unpack

ids = st.lists(st.integers(0, 3), max_size=12).map(tuple)
ends = st.one_of(st.none(), st.integers(-15, 15))
Ids = tuple[int, ...]


@given(whole=ids, cut=st.integers(0, 12), other=ids, start=ends, stop=ends)
def test_it_is_the_tuple(whole: Ids, cut: int, other: Ids, start: int | None, stop: int | None) -> None:
    cut = min(cut, len(whole))
    shared, plain = SharedIds(whole, cut), whole[:cut]
    assert shared == plain and plain == shared
    assert hash(shared) == hash(plain)
    assert (shared == other, shared != other) == (plain == other, plain != other)
    assert (list(shared), len(shared), repr(shared)) == (list(plain), len(plain), repr(plain))
    assert shared[start:stop] == plain[start:stop]
    assert shared[start:stop:2] == plain[start:stop:2]
    assert shared[start:stop:-1] == plain[start:stop:-1]
    assert shared + other == plain + other
    assert other + shared == other + plain
    assert shared + SharedIds(whole, cut) == plain + plain
    assert shared + whole[cut:] == whole
    assert pickle.loads(pickle.dumps(shared)) == plain
    assert [shared[at] for at in range(-cut, cut)] == [plain[at] for at in range(-cut, cut)]
    assert shared != list(plain)


@given(whole=ids, other=ids, before=ids)
def test_edits_are_kept_for_what_they_are_edits_of(whole: Ids, other: Ids, before: Ids) -> None:
    made = edits(before, whole)
    shared = SharedIds(whole, len(whole), (before, packed(made)))
    assert shared.edits_of(before) == made == edits(before, shared)
    assert rebuild(other, edits(other, shared)) == whole
    assert edits(before, pickle.loads(pickle.dumps(shared))) == made
    assert shared[:2].edits_of(before) is None


def test_it_ends_where_the_tuple_ends() -> None:
    shared = SharedIds((1, 2, 3), 2)
    for at in (2, -3):
        with pytest.raises(IndexError):
            shared[at]
    with pytest.raises(ValueError, match="4 of 3"):
        SharedIds((1, 2, 3), 4)


turn = st.tuples(ids, st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), st.integers(0, 30))


@given(first=ids, pieces=st.lists(turn, min_size=1, max_size=8))
def test_any_conversation_crosses_the_wire_unchanged(first: Ids, pieces: list[tuple[Ids, Ids, int]]) -> None:
    """Prompts that extend what was before, and prompts that lost some of its middle."""
    prompt, turns = first, []
    for shown, response, lost in pieces:
        turns.append(Turn(prompt, response, (-0.5,) * len(response), "stop", "text", "", shown and "seen"))
        kept = prompt + response
        prompt = (kept if lost > 12 else kept[:lost] + kept[lost + 2 :]) + shown
    rollout = Rollout("t/0", "t", Trajectory(tuple(turns), "", "submitted"), None)
    assert unpack(pack(rollout)) == rollout
    assert pack(unpack(pack(rollout))) == pack(rollout)


def test_what_a_long_conversation_holds_does_not_grow_with_its_square() -> None:
    prompt, turns = tuple(range(100)), []
    for number in range(150):
        response = tuple(range(number, number + 50))
        turns.append(Turn(prompt, response, (-0.5,) * 50, "stop", "text", "call", "seen"))
        prompt = (*prompt, *response, *range(50))
    rollout = Rollout("t/0", "t", Trajectory(tuple(turns), "", "submitted"), None)
    here = unpack(pack(rollout))
    assert here == rollout
    assert here.trajectory is not None
    assert len(pickle.dumps(replace(here, reward=None))) < len(pickle.dumps(rollout)) / 10
    before, last = here.trajectory.turns[-2:]
    seen = before.prompt_ids + before.response_ids
    assert isinstance(seen, SharedIds) and isinstance(last.prompt_ids[: len(seen)], SharedIds)
    assert edits(seen, last.prompt_ids) == [{"at": 0, "n": len(seen)}, list(range(50))]
