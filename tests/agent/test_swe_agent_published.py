"""Files with the structure of SWE-agent's published ones give its call format and observations."""

import logging
from pathlib import Path

import pytest

from launch.config_compose import ConfigError
from launch.config_validate import load_config
from recipes.swe.agent import AgentConfig, run_agent
from recipes.swe.chat import ChatCodec
from recipes.swe.parsing import FormatError
from recipes.swe.parsing_blocks import parse_block
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.types import Trajectory
from tests.agent.fakes import FakeSandbox, task

DATA = Path(__file__).parent / "data"
PUBLISHED = DATA / "swe_agent_lm.yaml"
BACKTICKS = DATA / "default_backticks.yaml"
SOURCE = {"/testbed/a.py": b"def add(a, b):\n    return a - b\n"}


def config(path: Path, **more: object) -> AgentConfig:
    return AgentConfig.from_mapping({"name": "x", "swe_agent_yaml": str(path)} | more)


async def run(codec: ChatCodec, path: Path, texts: list[str], output: str = "") -> Trajectory:
    sandbox = FakeSandbox(SOURCE, lambda command: ("" if command.startswith("export") else output, 0))
    return await run_agent(
        sandbox, ScriptedPolicy(codec, texts), codec, task(), config(path, max_context_tokens=200_000)
    )


def test_the_published_file_is_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    read = config(PUBLISHED)
    assert read.call_format == "xml_function_calling"
    assert (read.keep_last_observations, read.elide_every_turns) == (5, 1)
    assert (read.max_turns, read.command_timeout_s, read.observation_limit_chars) == (75, 300, 70000)
    assert read.shell_env == {"USE_FILEMAP": "true"}
    assert read.submit_reviews == ()
    assert [record.message.split(": ", 2)[1] for record in caplog.records] == ["agent.model"]


def test_it_composes_as_a_recipe() -> None:
    agent = load_config(["+recipe=swe_smith_1600", f"agent.swe_agent_yaml={PUBLISHED}"])
    assert agent["skyrl"]["generator"]["step_wise_trajectories"] is True
    with pytest.raises(ConfigError, match=r"no_such_file\.yaml"):
        load_config(["+recipe=swe_smith_1600", "agent.swe_agent_yaml=/no_such_file.yaml"])


async def test_calls_and_observations_are_swe_agents(codec: ChatCodec) -> None:
    view = (
        "I look.\n<function=str_replace_editor>\n<parameter=command>view</parameter>\n"
        "<parameter=path>/testbed/a.py</parameter>\n<parameter=view_range>[1, 2]</parameter>\n</function>"
    )
    bash = "<function=bash>\n<parameter=command>ls</parameter>\n</function>"
    submit = "<function=submit>\n</function>"
    done = await run(codec, PUBLISHED, [view, bash + bash, "nothing", submit])
    assert done.end == "submitted"
    seen = [turn.observation for turn in done.turns]
    assert seen[0].startswith("OBSERVATION:\n") and "return a - b" in seen[0]
    assert seen[1] == "The command ran and printed nothing.", "the first of two calls ran"
    assert "no function call" in seen[2]


async def test_a_long_observation_keeps_its_head_and_says_how_much_is_gone(codec: ChatCodec) -> None:
    bash = "<function=bash>\n<parameter=command>cat big</parameter>\n</function>"
    done = await run(codec, PUBLISHED, [bash, "<function=submit>\n</function>"], "x" * 70_000 + "y" * 500)
    seen = done.turns[0].observation
    assert seen.startswith("OBSERVATION:\n" + "x" * 70_000 + "<response clipped>")
    assert "500 were left out" in seen and "y" * 20 not in seen


async def test_a_templates_own_words_for_a_long_observation(tmp_path: Path, codec: ChatCodec) -> None:
    template = "{{observation[:max_observation_length]}} +{{elided_chars}}"
    text = PUBLISHED.read_text().replace(
        "    max_observation_length: 70000",
        f'    max_observation_length: 100\n    next_step_truncated_observation_template: "{template}"',
    )
    path = tmp_path / "own.yaml"
    path.write_text(text)
    bash = "<function=bash>\n<parameter=command>cat big</parameter>\n</function>"
    done = await run(codec, path, [bash, "<function=submit>\n</function>"], "x" * 120)
    assert done.turns[0].observation == "x" * 100 + " +20"


async def test_backticks_and_the_review_on_submit(codec: ChatCodec) -> None:
    edit = "str_replace_editor str_replace /testbed/a.py --old_str 'a - b' --new_str 'a + b'"
    texts = [
        f"I fix it.\n```\n{edit}\n```",
        "```\nsubmit\n```",
        "```\necho hi\n```",
        "Done.\n```\nsubmit\n```",
    ]
    done = await run(codec, BACKTICKS, texts, "hi")
    assert (done.end, len(done.turns)) == ("submitted", 4)
    review = done.turns[1].observation
    assert review.startswith("OBSERVATION:\nLook at your changes once more")
    assert "return a + b" in review, "the review shows the changes"
    assert done.turns[2].observation == "OBSERVATION:\nhi"
    assert "return a + b" in done.patch


@pytest.mark.parametrize(
    ("response", "name", "arguments"),
    [
        ("Look.\n```\nls -l\n```", "bash", {"command": "ls -l"}),
        (
            "```\nfirst\n```\nthen\n```bash\ngrep -n '`' x\ncat y\n```\nend",
            "bash",
            {"command": "grep -n '`' x\ncat y"},
        ),
        ("```\n  submit\n```", "submit", {}),
        (
            "```\nstr_replace_editor view /testbed/a.py --view_range 1 9\n```",
            "str_replace_editor",
            {"command": "view", "path": "/testbed/a.py", "view_range": (1, 9)},
        ),
        (
            "```\nstr_replace_editor insert /a --insert_line=3 --new_str 'x = 1\ny'\n```",
            "str_replace_editor",
            {"command": "insert", "path": "/a", "insert_line": 3, "new_str": "x = 1\ny"},
        ),
    ],
)
def test_blocks(response: str, name: str, arguments: dict[str, object]) -> None:
    call = parse_block(response)
    assert (call.name, dict(call.arguments)) == (name, arguments)


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("no block", "missing"),
        ("```\nnever closed", "missing"),
        ("```\n\n```", "missing"),
        ("```\nstr_replace_editor view '/a\n```", "bad_arg"),
        ("```\nstr_replace_editor view /a /b\n```", "unexpected_arg"),
        ("```\nstr_replace_editor view /a --bogus 1\n```", "unexpected_arg"),
        ("```\nstr_replace_editor view\n```", "missing_arg"),
        ("```\nstr_replace_editor view /a --view_range 1\n```", "bad_arg"),
        ("```\nstr_replace_editor view /a --old_str\n```", "bad_arg"),
    ],
)
def test_bad_blocks(response: str, code: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_block(response)
    assert caught.value.code == code


def test_what_is_thought_about_is_kept() -> None:
    assert parse_block("Before.\n```\nls\n```\nAfter.").thought == "Before.\n\nAfter."


def test_a_config_of_ours_may_use_the_same_keys() -> None:
    ours = {
        "name": "x",
        "system_template": "s",
        "instance_template": "i",
        "submit_reviews": ["Again? {{ diff }}"],
    }
    assert AgentConfig.from_mapping({**ours, "call_format": "thought_action"}).submit_reviews
    for wrong in ({"call_format": "json"}, {"submit_reviews": "text"}, {"submit_reviews": ["{{ nope }}"]}):
        with pytest.raises(ValueError, match=r"call_format|submit_reviews"):
            AgentConfig.from_mapping({**ours, **wrong})
