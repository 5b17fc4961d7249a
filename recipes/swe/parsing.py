"""The function-call format of SWE-agent-LM models, read from a response and written for a transcript.

A response is a thought followed by exactly one call:

    <function=bash>
    <parameter=command>grep -rn foo src</parameter>
    </function>

Values are raw text: nothing is escaped, and one newline directly inside each end of a value is layout, not
content. It is read by position, so a value may hold anything but `</parameter>`. Names known from other
agents are accepted (`execute_bash`, `finish`). Whatever is wrong raises FormatError, whose message is meant
for the model. This module runs nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Value = str | int | tuple[int, int]
ErrorCode = Literal[
    "missing", "multiple", "unclosed", "invalid_command", "missing_arg", "unexpected_arg", "bad_arg"
]


class FormatError(Exception):
    """The response holds no call that can be run; the message says what to do about it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    """As written in the tag."""
    kind: Literal["string", "integer", "range"] = "string"
    """How its value is read; a range is `[first, last]`."""
    required: bool = False
    """Whether a call without it is malformed."""
    allowed: tuple[str, ...] = ()
    """The only values accepted; empty for any."""


EDITOR_COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
TOOLS: Mapping[str, tuple[Parameter, ...]] = MappingProxyType(
    {
        "bash": (Parameter("command", required=True),),
        "str_replace_editor": (
            Parameter("command", required=True, allowed=EDITOR_COMMANDS),
            Parameter("path", required=True),
            Parameter("file_text"),
            Parameter("old_str"),
            Parameter("new_str"),
            Parameter("insert_line", kind="integer"),
            Parameter("view_range", kind="range"),
        ),
        "submit": (),
    }
)
ALIASES: Mapping[str, str] = MappingProxyType({"execute_bash": "bash", "finish": "submit"})

_FUNCTION = re.compile(r"<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
_NEXT = re.compile(r"<parameter=[^<>\n]*>|</function>")
_VALUE_END = "</parameter>"
_RANGE = re.compile(r"\[\s*(-?\d+)\s*,\s*(-?\d+)\s*\]")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed call."""

    name: str
    """One of TOOLS."""
    arguments: Mapping[str, Value]
    """Checked values by parameter name."""
    thought: str
    """Text around the call, stripped."""


def parse(response: str, *, allow_multiple: bool = False) -> ToolCall:
    """Read the one call of a response. `allow_multiple` takes the first of several, as SWE-agent does."""
    opening = _FUNCTION.search(response)
    if opening is None:
        raise FormatError("missing", "Your response has no function call.")
    raw, end = _read_parameters(response, opening.end())
    if not allow_multiple and _FUNCTION.search(response, end):
        raise FormatError("multiple", "Your response has more than one function call; give exactly one.")
    name = ALIASES.get(opening.group(1).strip(), opening.group(1).strip())
    if name not in TOOLS:
        raise FormatError("invalid_command", f"There is no function `{name}`, only: {', '.join(TOOLS)}.")
    thought = (response[: opening.start()] + response[end:]).strip()
    return ToolCall(name, _check(name, raw), thought)


def checked_call(name: str, raw: Mapping[str, str], thought: str) -> ToolCall:
    """A call whose raw values were read by another format; the same checks."""
    return ToolCall(name, _check(name, raw), thought)


def format_call(name: str, arguments: Mapping[str, Value]) -> str:
    """Write a call so that `parse` reads the same values back."""
    lines = [f"<function={name}>"]
    for key, value in arguments.items():
        text = f"[{value[0]}, {value[1]}]" if isinstance(value, tuple) else str(value)
        layout = "\n" if "\n" in text else ""
        lines.append(f"<parameter={key}>{layout}{text}{layout}{_VALUE_END}")
    return "\n".join([*lines, "</function>"])


def _read_parameters(response: str, start: int) -> tuple[dict[str, str], int]:
    """Raw values by name and the position after `</function>`; text between parameters is ignored."""
    values: dict[str, str] = {}
    position = start
    while (tag := _NEXT.search(response, position)) is not None:
        if tag.group() == "</function>":
            return values, tag.end()
        match = _PARAMETER.match(response, tag.start())
        name = match.group(1).strip() if match else ""
        close = response.find(_VALUE_END, tag.end())
        if close < 0:
            raise FormatError("unclosed", f"Parameter `{name}` is not closed with `{_VALUE_END}`.")
        if name in values:
            raise FormatError("bad_arg", f"Parameter `{name}` is given twice.")
        values[name] = response[tag.end() : close].removeprefix("\n").removesuffix("\n")
        position = close + len(_VALUE_END)
    raise FormatError("unclosed", "Your function call is not closed with `</function>`.")


def _check(tool: str, raw: Mapping[str, str]) -> dict[str, Value]:
    known = {parameter.name: parameter for parameter in TOOLS[tool]}
    if missing := [p.name for p in known.values() if p.required and p.name not in raw]:
        raise FormatError("missing_arg", f"`{tool}` needs: {', '.join(missing)}.")
    if extra := [name for name in raw if name not in known]:
        accepted = ", ".join(known) or "no parameters"
        raise FormatError("unexpected_arg", f"`{tool}` has no `{extra[0]}`; it takes {accepted}.")
    return {name: _convert(known[name], text) for name, text in raw.items()}


def _convert(parameter: Parameter, text: str) -> Value:
    if parameter.allowed and text.strip() not in parameter.allowed:
        raise FormatError(
            "bad_arg", f"`{parameter.name}` must be one of {', '.join(parameter.allowed)}, not `{text[:80]}`."
        )
    if parameter.allowed:
        return text.strip()
    if parameter.kind == "integer":
        if not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", text):
            raise FormatError("bad_arg", f"`{parameter.name}` must be a whole number, not `{text[:80]}`.")
        return int(text)
    if parameter.kind == "range":
        match = _RANGE.fullmatch(text.strip())
        if match is None or max(len(match.group(1)), len(match.group(2))) > 10:
            raise FormatError("bad_arg", f"`{parameter.name}` must look like [1, 9], not `{text[:80]}`.")
        return int(match.group(1)), int(match.group(2))
    return text
