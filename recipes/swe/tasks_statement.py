"""Problem statements of local tasks: short, made from the first failing test, in the style of an issue.

SWE-smith has its statements written by a language model; ours need none. They name the function, the
file and one failure, never the fix.
"""

import re

from recipes.swe.tasks_projects import Bug, Project

MAX_CHARACTERS = 400
MAX_ERROR_CHARACTERS = 120
_SECTION = re.compile(r"^_{3,} (.+?) _{3,}$")


def problem_statement(project: Project, bug: Bug, failing: tuple[str, ...], output: str | bytes) -> str:
    """At most MAX_CHARACTERS. `output` is pytest's, with short tracebacks."""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    test = min(failing, key=lambda name: (len(name), name))
    heading = f"# {project.name}: unexpected behaviour in `{bug.symbol}`\n\nFile: {bug.path}\n"
    call, error = failure_of(test, text)
    name = _cut(test.split("::", 1)[1] if "::" in test else test, 60)
    shown = "\n".join([f"{name}:", *([f"    {_cut(call, 80)}"] if call else []), error])
    statement = f"{heading}\n```\n{shown}\n```\n"
    return statement if len(statement) <= MAX_CHARACTERS else f"{heading}\n```\n{name}: {error}\n```\n"


def failure_of(test: str, output: str) -> tuple[str, str]:
    """(statement of the test that fails, error), from pytest's short tracebacks."""
    title = ".".join(test.split("::")[1:])
    lines = output.splitlines()
    for at, line in enumerate(lines):
        found = _SECTION.match(line)
        if found is None or found.group(1) != title:
            continue
        body = lines[at + 1 :]
        ends = (k for k, text in enumerate(body) if _SECTION.match(text) or text.startswith("===="))
        end = next(ends, len(body))
        return _read_section(body[:end], test.split("::", 1)[0])
    return "", "it fails"


def _read_section(body: list[str], file: str) -> tuple[str, str]:
    call = ""
    for at, line in enumerate(body[:-1]):
        if line.startswith(f"{file}:") and body[at + 1].startswith("    "):
            call = body[at + 1].strip()
    errors = [line[1:].strip() for line in body if line.startswith("E ")]
    error = next((line for line in errors if line), "it fails")
    return call, _cut(re.sub(r"0x[0-9a-f]{6,}", "0x...", error), MAX_ERROR_CHARACTERS)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
