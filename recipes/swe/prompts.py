"""Templates of what the agent is told, rendered with Jinja2.

The texts are configuration (configs/agent/*.yaml). A name that a template uses and we do not provide is
found when the configuration is read, not in the middle of a run. What the sandbox or the task wrote goes in
as a value and is never read as a template.
"""

from collections.abc import Set as AbstractSet
from functools import lru_cache

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

SYSTEM_VARIABLES = frozenset({"working_dir", "command_docs"})
INSTANCE_VARIABLES = SYSTEM_VARIABLES | {"problem_statement", "instance_id"}
OBSERVATION_VARIABLES = frozenset({"observation", "working_dir"})
TRUNCATED_VARIABLES = OBSERVATION_VARIABLES | {"max_observation_length", "elided_chars"}
REVIEW_VARIABLES = frozenset({"diff", "problem_statement"})
FORMAT_ERROR_VARIABLES = frozenset({"error", "error_code", "exception_message", "command_docs"})
TIMEOUT_VARIABLES = frozenset({"command", "timeout", "observation"})

TOOL_DOCS = """\
bash
  Runs a command in a shell that stays open between calls.
  command (string, required): the command line.
str_replace_editor
  Shows and edits files.
  command (string, required): view, create, str_replace, insert or undo_edit.
  path (string, required): absolute path of a file; `view` also takes a directory.
  view_range (list, optional): [first, last] line for `view`, counted from 1; last may be -1.
  file_text (string): content of the new file, for `create`.
  old_str (string): text that occurs exactly once, for `str_replace`.
  new_str (string): what replaces it, or the lines to add for `insert`.
  insert_line (integer): `insert` adds after this line; 0 is the top of the file.
submit
  Ends the work; takes no parameters."""
"""Value of `command_docs`."""


def template_problem(source: str, allowed: AbstractSet[str]) -> str | None:
    """What is wrong with a template that may use the `allowed` names; None when nothing is."""
    try:
        used = meta.find_undeclared_variables(_environment().parse(source))
    except TemplateSyntaxError as error:
        return f"template line {error.lineno}: {error.message}"
    unknown = sorted(used - allowed)
    return f"template uses {', '.join(unknown)}, which is not provided here" if unknown else None


def render(source: str, **values: str | int) -> str:
    """Render a template."""
    return _compiled(source).render(**values)


def elide(text: str, limit_chars: int) -> str:
    """`text`, or its head and tail with a note of how much was left out, in at most `limit_chars`."""
    if len(text) <= limit_chars:
        return text
    note = f"\n[... {len(text) - limit_chars} or more characters left out ...]\n"
    kept = max(limit_chars - len(note), 2)
    return text[: kept - kept // 2] + note + text[len(text) - kept // 2 :]


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


@lru_cache(maxsize=64)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)
