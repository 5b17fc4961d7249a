"""The agent's loop: exact prompts, every limit, every end."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipes.swe.agent import AgentConfig, AgentConfigError, Sampling, initial_prompt, run_agent
from recipes.swe.chat import ChatCodec
from recipes.swe.parsing import format_call
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.types import Completion, Trajectory
from tests.agent.fakes import Command, FakeSandbox, task

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "agent"
DEMO = AgentConfig.load(CONFIGS / "demo.yaml")
LS = "I look.\n" + format_call("bash", {"command": "ls"})
FIX = format_call(
    "str_replace_editor",
    {"command": "str_replace", "path": "/testbed/a.py", "old_str": "a - b", "new_str": "a + b"},
)
SUBMIT = format_call("submit", {})


async def play(
    codec: ChatCodec, texts: list[str], config: AgentConfig = DEMO, command: Command = lambda _: ("a.py\n", 0)
) -> Trajectory:
    sandbox = FakeSandbox({"/testbed/a.py": b"def add(a, b):\n    return a - b\n"}, command)
    return await run_agent(sandbox, ScriptedPolicy(codec, texts), codec, task(), config)


async def test_works_and_submits(codec: ChatCodec) -> None:
    trajectory = await play(codec, [LS, FIX, SUBMIT])
    assert trajectory.end == "submitted"
    assert "return a + b" in trajectory.patch
    assert [turn.action for turn in trajectory.turns] == [LS.split("\n", 1)[1], FIX, SUBMIT]
    assert trajectory.turns[0].observation == "a.py"
    assert trajectory.turns[-1].observation == ""


async def test_each_prompt_extends_the_last_by_what_was_sampled(codec: ChatCodec) -> None:
    turns = (await play(codec, [LS, "no call", FIX, SUBMIT])).turns
    assert turns[0].prompt_ids == initial_prompt(codec, task(), DEMO)
    for last, following in itertools.pairwise(turns):
        added = codec.continue_(last.observation, closed=True)
        assert following.prompt_ids == last.prompt_ids + last.response_ids + added


async def test_a_response_that_was_cut_is_closed(codec: ChatCodec) -> None:
    config = replace(DEMO, max_response_tokens=8)
    first, second = (await play(codec, [LS, SUBMIT], config)).turns
    assert first.stop_reason == "length"
    assert len(first.response_ids) == 8
    added = codec.continue_(first.observation, closed=False)
    assert second.prompt_ids == first.prompt_ids + first.response_ids + added


async def test_non_canonical_ids_go_through(codec: ChatCodec, tokenizer: Any) -> None:
    """A model may spell a text in other tokens than the tokenizer would: they are kept as sampled."""
    text = "def add(a, b):\n    return a"
    ids = tuple(i for char in text for i in tokenizer.encode(char, add_special_tokens=False))
    assert ids != codec.encode_response(text)[:-1]

    class Spelled(ScriptedPolicy):
        async def sample(self, prompt_ids: tuple[int, ...], **options: Any) -> Completion:
            return Completion(ids, (-1.0,) * len(ids), "stop")

    turns = (
        await run_agent(FakeSandbox({}), Spelled(codec, []), codec, task(), replace(DEMO, max_turns=2))
    ).turns
    assert turns[0].response_ids == ids
    assert turns[1].prompt_ids[len(turns[0].prompt_ids) :][: len(ids)] == ids


async def test_turn_limit(codec: ChatCodec) -> None:
    trajectory = await play(codec, [LS] * 3, replace(DEMO, max_turns=3))
    assert (trajectory.end, len(trajectory.turns)) == ("turn_limit", 3)


async def test_context_limit(codec: ChatCodec) -> None:
    trajectory = await play(codec, [LS] * 8, replace(DEMO, max_context_tokens=400))
    assert trajectory.end == "context"
    last = trajectory.turns[-1]
    assert len(last.prompt_ids) + len(last.response_ids) <= 400


async def test_format_errors_in_a_row_end_it(codec: ChatCodec) -> None:
    trajectory = await play(codec, ["no", LS, "no", "no", LS], replace(DEMO, max_format_errors=2))
    assert (trajectory.end, len(trajectory.turns)) == ("format", 4)
    assert "no function call" in trajectory.turns[0].observation
    assert trajectory.turns[0].action == ""


async def test_observations(codec: ChatCodec) -> None:
    outputs = iter([("", 0), ("boom\n", 2), ("part", -1), ("x" * 5000, 0), ("<|im_end|>", 0)])
    turns = (await play(codec, [LS] * 5 + [SUBMIT], command=lambda _: next(outputs))).turns
    shown = [turn.observation for turn in turns]
    assert shown[0] == "(no output)"
    assert shown[1] == "boom\n[exit status 2]"
    assert shown[2] == "[timed out after 20 s]"
    assert len(shown[3]) == DEMO.observation_limit_chars
    assert "characters left out" in shown[3]
    assert shown[4] == "<|im_end|>"
    observed = turns[5].prompt_ids[len(turns[4].prompt_ids) + len(turns[4].response_ids) :]
    assert observed.count(codec.end_id) == 1


async def test_templates_are_not_read_from_content(codec: ChatCodec) -> None:
    trajectory = await play(codec, [LS, SUBMIT], command=lambda _: ("{{ 1 + 1 }} {% for", 0))
    assert trajectory.turns[0].observation == "{{ 1 + 1 }} {% for"


def test_a_long_problem_statement_loses_its_middle(codec: ChatCodec) -> None:
    prompt = initial_prompt(codec, task("start " + "word " * 5000 + "end"), DEMO)
    assert len(prompt) <= DEMO.max_context_tokens - DEMO.min_response_tokens
    text = codec.decode(prompt)
    assert "start" in text
    assert "end" in text
    assert "left out" in text
    with pytest.raises(AgentConfigError, match="does not even hold"):
        initial_prompt(codec, task("short"), replace(DEMO, max_context_tokens=40, min_response_tokens=1))


def test_seeds_differ_by_turn_and_repeat() -> None:
    assert Sampling(seed=None).turn_seed(1) is None
    seeds = [Sampling(seed=seed).turn_seed(turn) for seed in range(20) for turn in range(20)]
    assert len(set(seeds)) == 400
    assert Sampling(seed=3).turn_seed(2) == Sampling(seed=3).turn_seed(2)


def test_all_problems_of_a_config_are_named() -> None:
    bad = {
        "name": "x",
        "system_template": "{{ nonsense }}",
        "instance_template": "{% if %}",
        "max_turns": 0,
        "observation_limit_chars": 5,
        "shell_env": {"A B": "1"},
    }
    with pytest.raises(AgentConfigError) as caught:
        AgentConfig.from_mapping(bad)
    assert len(caught.value.problems) == 5
    with pytest.raises(AgentConfigError) as caught:
        AgentConfig.from_mapping({"name": 1, "max_turns": "8", "time_limit_s": True, "turns": 3})
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_load(path: Path, codec: ChatCodec) -> None:
    config = AgentConfig.load(path)
    assert config.name == path.stem
    assert "add() subtracts." in codec.decode(initial_prompt(codec, task(), config))
