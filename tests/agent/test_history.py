"""Prompts with old observations elided: which ones, by what, and that every id is kept as it was sampled."""

from dataclasses import replace
from typing import Any

import pytest

from recipes.swe.agent import run_agent
from recipes.swe.agent_config import AgentConfig, AgentConfigError
from recipes.swe.chat import ChatCodec
from recipes.swe.history import ELIDED, History, elided_count
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.types import Completion
from tests.agent.fakes import FakeSandbox, task
from tests.agent.test_agent import DEMO, LS, SUBMIT, play


@pytest.mark.parametrize(
    ("keep", "every", "expected"),
    [
        # observations so far:      0  1  2  3  4  5  6  7
        (2, 1, [0, 0, 0, 1, 2, 3, 4, 5]),
        (5, 1, [0, 0, 0, 0, 0, 0, 1, 2]),
        # SWE-agent counts the task's message as one more: elided in jumps when that count is even.
        (2, 2, [0, 0, 0, 1, 1, 3, 3, 5]),
        (2, 3, [0, 0, 0, 0, 0, 3, 3, 3]),
        (None, 1, [0] * 8),
    ],
)
def test_which_observations_are_elided(keep: int | None, every: int, expected: list[int]) -> None:
    assert [elided_count(seen, keep, every) for seen in range(8)] == expected


async def test_old_observations_give_way_to_a_note(codec: ChatCodec) -> None:
    outputs = iter([(f"line {n}\n" * (n + 1), 0) for n in range(5)])
    config = replace(DEMO, keep_last_observations=2)
    turns = (await play(codec, [LS] * 5 + [SUBMIT], config, lambda _: next(outputs))).turns
    prompt = codec.decode(turns[-1].prompt_ids)
    for n in range(3):
        assert f"line {n}" not in prompt
        assert ELIDED.format(lines=n + 1) in prompt
    assert "line 3\n" in prompt
    assert "line 4\n" in prompt
    assert prompt.count("I look.") == 5, "responses are never elided"
    assert "add() subtracts." in prompt, "neither is the task"
    assert [turn.observation.count("line") for turn in turns] == [1, 2, 3, 4, 5, 0], "the record keeps them"


async def test_prompts_are_made_of_the_ids_of_each_message(codec: ChatCodec) -> None:
    outputs = iter([(f"line {n}\n", 0) for n in range(4)])
    config = replace(DEMO, keep_last_observations=1)
    turns = (await play(codec, [LS] * 4 + [SUBMIT], config, lambda _: next(outputs))).turns
    for number, turn in enumerate(turns):
        expected = list(turns[0].prompt_ids)
        for before, earlier in enumerate(turns[:number]):
            text = earlier.observation if before == number - 1 else ELIDED.format(lines=1)
            expected += [*earlier.response_ids, *codec.continue_(text, closed=True)]
        assert list(turn.prompt_ids) == expected


async def test_without_elision_each_prompt_extends_the_last(codec: ChatCodec) -> None:
    texts, outputs = [LS] * 5 + [SUBMIT], ("out\n", 0)
    whole = await play(codec, texts, DEMO, lambda _: outputs)
    roomy = await play(codec, texts, replace(DEMO, keep_last_observations=9), lambda _: outputs)
    assert whole == roomy


async def test_non_canonical_ids_stay_in_every_later_prompt(codec: ChatCodec, tokenizer: Any) -> None:
    """Elision rebuilds the prompt around a response whose spelling the tokenizer would not choose."""
    text = "def add(a, b):\n    return a"
    ids = tuple(i for char in text for i in tokenizer.encode(char, add_special_tokens=False))
    assert ids != codec.encode_response(text)[:-1]

    class Spelled(ScriptedPolicy):
        async def sample(self, prompt_ids: tuple[int, ...], **options: Any) -> Completion:
            return Completion(ids, (-1.0,) * len(ids), "length")

    config = replace(DEMO, max_turns=4, keep_last_observations=1, max_format_errors=9)
    turns = (await run_agent(FakeSandbox({}), Spelled(codec, []), codec, task(), config)).turns
    for number, turn in enumerate(turns):
        assert turn.response_ids == ids
        found = sum(turn.prompt_ids[i : i + len(ids)] == ids for i in range(len(turn.prompt_ids)))
        assert found == number
    assert turns[3].prompt_ids[: len(turns[2].prompt_ids)] != turns[2].prompt_ids


def test_a_cut_response_is_closed_in_elided_pieces_too(codec: ChatCodec) -> None:
    history = History(codec, (1, 2), keep_last=1)
    history.add((5, 6), "first\nsecond")
    history.add((7, codec.end_id), "third")
    note = codec.continue_(ELIDED.format(lines=2), closed=False)
    assert note[0] == codec.end_id
    shown = codec.continue_("third", closed=True)
    assert history.prompt == (1, 2, 5, 6, *note, 7, codec.end_id, *shown)


def test_keys_are_checked() -> None:
    plain = {"name": "x", "system_template": "s", "instance_template": "i"}
    assert AgentConfig.from_mapping(plain | {"keep_last_observations": None}).keep_last_observations is None
    assert AgentConfig.from_mapping(plain | {"keep_last_observations": 5}).keep_last_observations == 5
    wrong = {"keep_last_observations": "5", "elide_every_turns": None, "model_token_s": "fast"}
    with pytest.raises(AgentConfigError) as caught:
        AgentConfig.from_mapping(plain | wrong)
    assert len(caught.value.problems) == 3
    with pytest.raises(AgentConfigError) as caught:
        AgentConfig.from_mapping(plain | {"keep_last_observations": 0, "wait_limit_s": 0, "model_call_s": -1})
    assert len(caught.value.problems) == 3
