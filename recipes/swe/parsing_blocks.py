"""SWE-agent's `thought_action` format: reasoning, and the command in a block of backticks.

    I look for the place where the value is read.
    ```
    grep -rn foo src
    ```

The last block that is not inside another one counts. It is a command line for the shell, except that
`submit` and `str_replace_editor` are the tools of these names, with SWE-agent's signature
(`str_replace_editor view /testbed/a.py --view_range 1 20`). Whatever is wrong raises FormatError, whose
message is meant for the model. This module runs nothing.
"""

import re
import shlex

from recipes.swe.parsing import FormatError, ToolCall, checked_call

_FENCE = re.compile(r"^```(\S*)[ \t]*$", re.MULTILINE)
_EDITOR = "str_replace_editor"


def parse_block(response: str) -> ToolCall:
    """Read the command of a response."""
    found = _last_block(response)
    if found is None:
        raise FormatError("missing", "Your response has no command in a block of three backticks.")
    start, end, command = found
    thought = (response[:start] + response[end:]).strip()
    words = command.split(None, 1)
    if not words:
        raise FormatError("missing", "The block of backticks in your response is empty.")
    if words[0] == "submit":
        return checked_call("submit", {}, thought)
    if words[0] == _EDITOR:
        return checked_call(_EDITOR, _editor_arguments(command), thought)
    return checked_call("bash", {"command": command}, thought)


def _last_block(response: str) -> tuple[int, int, str] | None:
    """Start and end of the last outermost block, fences included, and its content."""
    opened: list[re.Match[str]] = []
    last: tuple[int, int, str] | None = None
    for fence in _FENCE.finditer(response):
        if fence.group(1) or not opened:
            opened.append(fence)
            continue
        start = opened.pop()
        if not opened:
            content = response[start.end() + 1 : fence.start()].removesuffix("\n")
            last = (start.start(), fence.end(), content)
    return last


def _editor_arguments(command: str) -> dict[str, str]:
    """`str_replace_editor COMMAND PATH [--name value …]` as raw values by name."""
    try:
        words = shlex.split(command)[1:]
    except ValueError as error:
        raise FormatError("bad_arg", f"The command line cannot be read: {error}.") from error
    values: dict[str, str] = {}
    positional = ["command", "path"]
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            if not positional:
                raise FormatError("unexpected_arg", f"`{_EDITOR}` got `{word[:80]}` too much.")
            values[positional.pop(0)] = word
        elif name == "view_range" and not equals:
            values[name] = f"[{', '.join(words[:2])}]"
            del words[:2]
        elif equals or words:
            values[name] = value if equals else words.pop(0)
        else:
            raise FormatError("bad_arg", f"`--{name}` has no value.")
    return values
