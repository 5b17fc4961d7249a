"""Prompts as edits: always rebuilt exactly, and small in the two cases that occur."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.report.token_delta import edits, rebuild
from recipes.report.trajectories import read_rollouts, write_rollouts
from recipes.swe.types import Rollout, Trajectory, Turn
from rewards.types import RewardResult

ids = st.lists(st.integers(0, 3), max_size=60).map(tuple)


@given(before=ids, wanted=ids)
def test_anything_is_rebuilt(before: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    assert rebuild(before, json.loads(json.dumps(edits(before, wanted)))) == wanted


@given(head=ids, cut=ids, note=ids, tail=ids, added=ids)
def test_a_replaced_middle_is_rebuilt(head: tuple[int, ...], cut, note, tail, added) -> None:  # type: ignore[no-untyped-def]
    before, wanted = head + cut + tail, head + note + tail + added
    assert rebuild(before, json.loads(json.dumps(edits(before, wanted)))) == wanted


def test_what_is_repeated_is_not_stored() -> None:
    before = tuple(range(8000))
    extended = edits(before, (*before, 1, 2, 3))
    assert extended == [{"at": 0, "n": 8000}, [1, 2, 3]]
    elided = edits(before, (*before[:3000], 70, 71, *before[3400:], 1, 2))
    assert elided == [{"at": 0, "n": 3000}, [70, 71], {"at": 3400, "n": 4600}, [1, 2]]


@pytest.mark.parametrize("elides", [False, True])
def test_records_of_rollouts_are_read_back(tmp_path: Path, elides: bool) -> None:
    turns: list[Turn] = []
    prompt: tuple[int, ...] = tuple(range(20))
    for number in range(6):
        response = tuple(range(100 * number, 100 * number + 12))
        turns.append(Turn(prompt, response, (-0.5,) * 12, "stop", "text", "call", "shown"))
        start = (*prompt[: 20 - number], 7, *prompt[25:]) if elides else prompt
        prompt = start + response + (5, 6)
    rollout = Rollout(
        "t/0", "t", Trajectory(tuple(turns), "", "submitted"), RewardResult(1.0, True, 1.0, 0), {"llm": 1.0}
    )
    path = write_rollouts(tmp_path, 1, [rollout, rollout]).with_suffix(".jsonl")
    assert read_rollouts(path) == [rollout, rollout]
