"""The agent's configuration: limits with their units, and prompts as templates.

`AgentConfig.from_mapping` takes the plain mapping of configs/agent/*.yaml (or Hydra's `agent` node), checks
names, types and ranges itself and reports every problem at once. A key `swe_agent_yaml` points to a
SWE-agent config whose prompts and settings then replace those of the file.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml

from recipes.swe.prompts import (
    FORMAT_ERROR_VARIABLES,
    INSTANCE_VARIABLES,
    OBSERVATION_VARIABLES,
    REVIEW_VARIABLES,
    SYSTEM_VARIABLES,
    TIMEOUT_VARIABLES,
    TRUNCATED_VARIABLES,
    template_problem,
)

logger = logging.getLogger(__name__)

CallFormat = Literal["xml_function_calling", "thought_action"]
"""How a response writes its call: tags (`recipes.swe.parsing`), or a block (`recipes.swe.parsing_blocks`)."""


class AgentConfigError(ValueError):
    """The agent's configuration is wrong; `problems` lists all that is."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What bounds the agent and what it is told."""

    name: str
    """For logs."""
    system_template: str
    """System message (Jinja2); may use working_dir and command_docs."""
    instance_template: str
    """First user message; may use problem_statement, working_dir and instance_id."""
    observation_template: str = "{{ observation }}"
    """User message after a call; may use observation."""
    empty_observation_template: str = "(no output)"
    """The same when the call printed nothing."""
    truncated_observation_template: str = ""
    """For an observation above its limit; may use observation (whole), max_observation_length, elided_chars.
    Empty: the middle is left out, with a note."""
    submit_reviews: tuple[str, ...] = ()
    """What calls of submit show, one after the other, before one ends the work; may use diff and
    problem_statement."""
    call_format: CallFormat = "xml_function_calling"
    """How calls are written."""
    format_error_template: str = "{{ error }}"
    """After a malformed response; may use error, error_code and exception_message."""
    timeout_template: str = "{{ observation }}\n[timed out after {{ timeout }} s and was killed]"
    """After a command ran out of time; may use command, timeout and observation."""
    max_turns: int = 150
    """Calls of the policy."""
    max_context_tokens: int = 20480
    """Prompt and response of one call together."""
    max_response_tokens: int = 4096
    """Sampled in one call."""
    min_response_tokens: int = 64
    """With less room than this left in the context the agent ends (`context`)."""
    time_limit_s: float = 300.0
    """The agent's own time in seconds: its tools, and its model as if nobody else used the server."""
    model_call_s: float = 1.0
    """Of a model call's time, so many seconds are the agent's own at most …"""
    model_token_s: float = 0.02
    """… and so many for each sampled token; what a call takes beyond both is waiting (ours)."""
    wait_limit_s: float = 600.0
    """Waiting for the model in one rollout, in seconds; more is a failure of ours (`deadline`)."""
    llm_timeout_s: float = 600.0
    """Wall time of one model call in seconds; longer is a failure of ours (`provider`)."""
    command_timeout_s: float = 60.0
    """Wall time of one command in seconds."""
    keep_last_observations: int | None = None
    """Observations that stay in the prompt, older ones are elided; null for all. Trained row by row."""
    elide_every_turns: int = 1
    """Elide only each so many turns: fewer and longer training rows, a few more observations in sight."""
    observation_limit_chars: int = 70_000
    """Characters of one observation; the middle of a longer one is left out."""
    max_format_errors: int = 3
    """Malformed responses in a row that end the agent (`format`)."""
    snippet_lines: int = 4
    """Lines shown above and below an edit."""
    show_exit_status: bool = True
    """Whether a command's non-zero exit status is told."""
    shell_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables exported in the shell before the first turn."""
    allow_multiple_calls: bool = False
    """Run the first of several calls in a response, rather than refuse it."""

    def __post_init__(self) -> None:
        problems = [*self._range_problems(), *self._template_problems()]
        if problems:
            raise AgentConfigError(problems)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Build from configuration. Raises AgentConfigError with every problem."""
        values = dict(mapping)
        if source := values.pop("swe_agent_yaml", None):
            # Imported here: that module builds on this one.
            from recipes.swe.swe_agent_yaml import read_swe_agent_yaml

            settings = read_swe_agent_yaml(Path(source))
            values |= settings.values
            for warning in settings.warnings:
                logger.warning("%s: %s", source, warning)
        known = {one.name: one for one in fields(cls)}
        problems = [f"agent.{name}: unknown key" for name in values if name not in known]
        required = ("name", "system_template", "instance_template")
        problems += [f"agent.{name}: missing" for name in required if name not in values]
        accepted: dict[str, Any] = {}
        for name, value in values.items():
            if name in known:
                accepted[name], problem = _checked(value, known[name].type, f"agent.{name}")
                problems += problem
        if problems:
            raise AgentConfigError(problems)
        return cls(**accepted)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Build from a YAML file of configs/agent."""
        loaded: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(loaded, dict):
            raise AgentConfigError([f"{path}: not a mapping"])
        return cls.from_mapping(loaded)

    def _range_problems(self) -> list[str]:
        counts = ["max_turns", "max_response_tokens", "min_response_tokens", "max_format_errors"]
        counts += ["elide_every_turns"]
        counts += ["keep_last_observations"] if self.keep_last_observations is not None else []
        problems = [f"agent.{name}: must be at least 1" for name in counts if getattr(self, name) < 1]
        seconds = ("time_limit_s", "command_timeout_s", "wait_limit_s", "llm_timeout_s")
        problems += [f"agent.{name}: must be above 0" for name in seconds if getattr(self, name) <= 0]
        own = ("model_call_s", "model_token_s")
        problems += [f"agent.{name}: must not be negative" for name in own if getattr(self, name) < 0]
        if self.max_context_tokens <= self.min_response_tokens:
            problems.append("agent.max_context_tokens: must be above min_response_tokens")
        if self.observation_limit_chars < 100:
            problems.append("agent.observation_limit_chars: must be at least 100")
        bad_names = [name for name in self.shell_env if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
        problems += [f"agent.shell_env: {name!r} cannot name a variable" for name in bad_names]
        if self.snippet_lines < 0:
            problems.append("agent.snippet_lines: must not be negative")
        return problems

    def _template_problems(self) -> list[str]:
        allowed = {
            "system_template": SYSTEM_VARIABLES,
            "instance_template": INSTANCE_VARIABLES,
            "observation_template": OBSERVATION_VARIABLES,
            "empty_observation_template": OBSERVATION_VARIABLES,
            "format_error_template": FORMAT_ERROR_VARIABLES,
            "timeout_template": TIMEOUT_VARIABLES,
            "truncated_observation_template": TRUNCATED_VARIABLES,
        }
        reviews = ((review, template_problem(review, REVIEW_VARIABLES)) for review in self.submit_reviews)
        problems = [f"agent.submit_reviews: {problem}" for _, problem in reviews if problem]
        found = ((name, template_problem(getattr(self, name), names)) for name, names in allowed.items())
        return problems + [f"agent.{name}: {problem}" for name, problem in found if problem]


def _checked(value: Any, kind: Any, name: str) -> tuple[Any, list[str]]:
    """The value as its field's type, and what is wrong with it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float:
        problem = [] if number else [f"{name}: must be a number, not {value!r}"]
        return (float(value) if number else value), problem
    if kind == (int | None) and value is None:
        return value, []
    if kind is int or kind == (int | None):
        good = number and isinstance(value, int)
        return value, [] if good else [f"{name}: must be a whole number, not {value!r}"]
    if kind == CallFormat:
        allowed = get_args(CallFormat)
        return value, [] if value in allowed else [f"{name}: must be one of {', '.join(allowed)}"]
    if kind == tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return tuple(value), []
        return value, [f"{name}: must be a list of texts"]
    if kind in (str, bool):
        good = isinstance(value, kind)
        return value, [] if good else [f"{name}: must be {kind.__name__}, not {value!r}"]
    good = isinstance(value, Mapping) and all(isinstance(v, str) for pair in value.items() for v in pair)
    return value, [] if good else [f"{name}: must map names to strings, not {value!r}"]
