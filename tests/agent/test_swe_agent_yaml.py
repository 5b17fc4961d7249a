"""A SWE-agent config file as our agent's configuration."""

from pathlib import Path

import pytest
import yaml

from recipes.swe.agent import AgentConfig, AgentConfigError
from recipes.swe.swe_agent_yaml import read_swe_agent_yaml

FILE = {
    "agent": {
        "templates": {
            "system_template": "Use functions.",
            "instance_template": "In {{working_dir}}: {{problem_statement}}",
            "next_step_template": "OBSERVATION:\n{{observation}}",
            "next_step_no_output_template": "Nothing printed.",
            "max_observation_length": 70000,
        },
        "tools": {
            "bundles": [
                {"path": "tools/registry"},
                {"path": "tools/edit_anthropic"},
                {"path": "tools/submit"},
            ],
            "env_variables": {"USE_FILEMAP": "true", "PAGER": "cat"},
            "registry_variables": {"USE_FILEMAP": "true"},
            "enable_bash_tool": True,
            "parse_function": {"type": "xml_function_calling"},
            "execution_timeout": 300,
        },
        "history_processors": [
            {"type": "cache_control"},
            {"type": "last_n_observations", "n": 5, "polling": 3, "always_keep_output_for_tags": ["x"]},
        ],
        "model": {"name": "x", "temperature": 0.0, "per_instance_call_limit": 75},
    }
}


def write(folder: Path, content: object) -> Path:
    path = folder / "swe_agent.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_published_shape(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, FILE)
    ours = {"name": "x", "system_template": "y", "instance_template": "z", "time_limit_s": 300}
    config = AgentConfig.from_mapping({**ours, "swe_agent_yaml": str(path)})
    assert config.system_template == "Use functions."
    assert config.observation_template == "OBSERVATION:\n{{observation}}"
    assert config.empty_observation_template == "Nothing printed."
    assert (config.max_turns, config.command_timeout_s, config.observation_limit_chars) == (75, 300, 70000)
    assert config.time_limit_s == 300
    assert config.shell_env["PAGER"] == "cat"
    assert config.allow_multiple_calls
    assert (config.keep_last_observations, config.elide_every_turns) == (5, 3)
    assert "last_n_observations.always_keep_output_for_tags has no effect" in caplog.text


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    agent = FILE["agent"]
    tools = {
        "bundles": [{"path": "tools/windowed"}],
        "parse_function": {"type": "function_calling"},
        "submit_command": "x",
    }
    history = [{"type": "closed_window"}]
    path = write(tmp_path, {"agent": {**agent, "tools": tools, "history_processors": history, "surprise": 1}})
    with pytest.raises(AgentConfigError) as caught:
        read_swe_agent_yaml(path)
    assert len(caught.value.problems) == 5
    text = str(caught.value)
    for part in ("windowed", "function_calling", "submit_command", "closed_window", "surprise"):
        assert part in text


def test_a_variable_that_is_not_provided_is_named(tmp_path: Path) -> None:
    templates = {**FILE["agent"]["templates"], "instance_template": "{{problem_statement}} {{open_file}}"}
    path = write(tmp_path, {"agent": {**FILE["agent"], "templates": templates}})
    with pytest.raises(AgentConfigError, match="open_file"):
        AgentConfig.from_mapping({"swe_agent_yaml": str(path)})


@pytest.mark.parametrize("content", ["just text", {"env": {}}])
def test_not_a_swe_agent_file(tmp_path: Path, content: object) -> None:
    with pytest.raises(AgentConfigError, match="no `agent` section"):
        read_swe_agent_yaml(write(tmp_path, content))
    with pytest.raises(AgentConfigError, match="cannot read"):
        read_swe_agent_yaml(tmp_path / "missing.yaml")
