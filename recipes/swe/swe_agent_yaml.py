"""Reads a SWE-agent configuration file (as published for SWE-agent-LM) into our agent's settings.

Prompts, the call format, observations, limits, reviews on submit and environment variables are taken over.
What would change what the model sees or may do, and does not exist here, is an error; what only has no effect
here is a warning. Both name the key. Nothing of SWE-agent is needed or run. docs/agent.md has the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from recipes.swe.agent_config import AgentConfigError

TEMPLATES = {
    "system_template": "system_template",
    "instance_template": "instance_template",
    "next_step_template": "observation_template",
    "next_step_no_output_template": "empty_observation_template",
    "next_step_truncated_observation_template": "truncated_observation_template",
    "command_cancelled_timeout_template": "timeout_template",
    "max_observation_length": "observation_limit_chars",
}
"""Keys of `agent.templates` and ours."""
TEMPLATES_IGNORED = frozenset(
    {
        "shell_check_error_template",
        "strategy_template",
        "put_demos_in_history",
        "disable_image_processing",
    }
)
BUNDLES = frozenset({"registry", "edit_anthropic", "submit", "review_on_submit_m", "diff_state"})
"""Tool bundles whose functions exist here, or that add none."""
TOOLS_IGNORED = frozenset(
    {
        "filter",
        "install_timeout",
        "total_execution_timeout",
        "max_consecutive_execution_timeouts",
        "multi_line_command_endings",
        "command_docs",
    }
)
TOOLS_AS_HERE = frozenset({"parse_function", "str_replace_editor"})
"""Read elsewhere, or what is so here anyway: view_range is written [first, last]."""
REGISTRY_AS_HERE = frozenset({"USE_FILEMAP", "SUBMIT_REVIEW_MESSAGES"})
"""Variables of SWE-agent's registry that are read, or only choose how large files are shown."""
PARSERS = frozenset({"xml_function_calling", "thought_action"})
AGENT_IGNORED = frozenset({"type", "name", "action_sampler"})
FORMAT_ERROR = """\
{{ error }}
Write your reasoning and then exactly one function call. If you are done, or cannot go on, call `submit`."""
"""Used when the file has no `format_error_template` of its own."""
BLOCK_FORMAT_ERROR = """\
{{ error }}
Write your reasoning and then exactly one command in a block of three backticks:
```
ls
```
If you are done, or cannot go on, use the command `submit`."""
"""The same for `thought_action`."""
TRUNCATED = """\
OBSERVATION:
{{ observation[:max_observation_length] }}<response clipped>
<NOTE>Only the first {{ max_observation_length }} characters are shown, {{ elided_chars }} were left out. Use
a command that prints less, or head, tail, grep or a file.</NOTE>"""
"""Used when the file has no `next_step_truncated_observation_template`: the head alone, as in SWE-agent."""
SWE_AGENT_OBSERVATION_LIMIT = 100_000
"""SWE-agent's own default of `max_observation_length`, characters."""


@dataclass(slots=True)
class SweAgentSettings:
    """What a file says, in our terms."""

    values: dict[str, Any]
    """Fields of AgentConfig."""
    warnings: list[str] = field(default_factory=list[str])
    """What the file asks for that has no effect here."""
    errors: list[str] = field(default_factory=list[str])
    """What it asks for that cannot be honoured."""


def read_swe_agent_yaml(path: Path) -> SweAgentSettings:
    """Raises AgentConfigError naming everything that is not supported."""
    try:
        loaded: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise AgentConfigError([f"agent.swe_agent_yaml: cannot read {path}: {error}"]) from error
    agent = loaded.get("agent") if isinstance(loaded, Mapping) else None
    if not isinstance(agent, Mapping):
        raise AgentConfigError([f"agent.swe_agent_yaml: {path} has no `agent` section"])
    settings = SweAgentSettings(
        {
            "name": path.stem,
            # As SWE-agent does: the first of several calls runs, and no exit status is told.
            "allow_multiple_calls": True,
            "show_exit_status": False,
            "format_error_template": FORMAT_ERROR,
            "truncated_observation_template": TRUNCATED,
            "observation_limit_chars": SWE_AGENT_OBSERVATION_LIMIT,
        }
    )
    sections = {
        "templates": _templates,
        "tools": _tools,
        "model": _model,
        "history_processors": _history_processors,
    }
    for key, value in agent.items():
        if key in sections:
            sections[key](value or {}, settings)
        elif key == "max_requeries":
            settings.values["max_format_errors"] = int(value) + 1
        elif key == "step_limit":
            settings.values["max_turns"] = value
        elif key == "total_time_limit":
            settings.values["time_limit_s"] = value
        elif key in AGENT_IGNORED and value:
            settings.warnings.append(f"agent.{key} has no effect here")
        elif value:
            settings.errors.append(f"agent.{key} is not supported")
    if settings.errors:
        raise AgentConfigError([f"{path}: {problem}" for problem in settings.errors])
    return settings


def _templates(section: Mapping[str, Any], settings: SweAgentSettings) -> None:
    for key, value in section.items():
        if key in TEMPLATES and value is not None:
            settings.values[TEMPLATES[key]] = value
        elif key in TEMPLATES_IGNORED and value:
            settings.warnings.append(f"agent.templates.{key} has no effect here")
        elif value:
            settings.errors.append(f"agent.templates.{key} is not supported")


def _tools(section: Mapping[str, Any], settings: SweAgentSettings) -> None:
    _parser(section, settings)
    names = [Path(str(bundle.get("path", ""))).name for bundle in section.get("bundles") or []]
    settings.errors += [
        f"agent.tools.bundles: {name} is not supported" for name in names if name not in BUNDLES
    ]
    _registry(section.get("registry_variables") or {}, "review_on_submit_m" in names, settings)
    for key, value in section.items():
        if key in ("bundles", "registry_variables") or key in TOOLS_AS_HERE:
            continue
        if key == "env_variables":
            settings.values["shell_env"] = {str(name): str(text) for name, text in (value or {}).items()}
        elif key == "execution_timeout":
            settings.values["command_timeout_s"] = value
        elif key == "format_error_template" and value:
            settings.values["format_error_template"] = value
        elif key == "enable_bash_tool":
            if value is False:
                settings.errors.append("agent.tools.enable_bash_tool=false is not supported")
        elif key == "submit_command":
            if value != "submit":
                settings.errors.append(f"agent.tools.submit_command {value} is not supported: submit is")
        elif key in TOOLS_IGNORED:
            if value:
                settings.warnings.append(f"agent.tools.{key} has no effect here")
        elif value:
            settings.errors.append(f"agent.tools.{key} is not supported")


def _parser(section: Mapping[str, Any], settings: SweAgentSettings) -> None:
    """How calls are written. SWE-agent's default, function_calling, needs an API's own tool calls."""
    parser = (section.get("parse_function") or {}).get("type", "function_calling")
    if parser not in PARSERS:
        known = " and ".join(sorted(PARSERS, reverse=True))
        settings.errors.append(f"agent.tools.parse_function: {parser} is not supported, {known} are")
        return
    settings.values["call_format"] = parser
    if parser == "thought_action":
        settings.values["format_error_template"] = BLOCK_FORMAT_ERROR


def _registry(variables: Mapping[str, Any], reviews: bool, settings: SweAgentSettings) -> None:
    """Messages of a review are shown by the bundle review_on_submit_m alone."""
    settings.values["submit_reviews"] = list(variables.get("SUBMIT_REVIEW_MESSAGES") or []) if reviews else []
    for name in variables.keys() - REGISTRY_AS_HERE:
        settings.warnings.append(f"agent.tools.registry_variables.{name} has no effect here")


def _model(section: Mapping[str, Any], settings: SweAgentSettings) -> None:
    """The model and its sampling are the trainer's; only limits of the agent are read."""
    if section.get("per_instance_call_limit"):
        settings.values["max_turns"] = section["per_instance_call_limit"]
    ignored = [key for key in section if key != "per_instance_call_limit"]
    if ignored:
        settings.warnings.append(f"agent.model: {', '.join(ignored)} are set in other groups here")


def _history_processors(section: Any, settings: SweAgentSettings) -> None:
    for processor in section:
        kind = processor.get("type")
        if kind == "cache_control":
            continue  # About a provider's billing.
        if kind != "last_n_observations":
            settings.errors.append(f"agent.history_processors: {kind} is not supported")
            continue
        settings.values["keep_last_observations"] = processor.get("n")
        settings.values["elide_every_turns"] = processor.get("polling", 1)
        for key in sorted(processor.keys() - {"type", "n", "polling"}):  # tags, which nothing here sets
            settings.warnings.append(f"agent.history_processors: {kind}.{key} has no effect here")
