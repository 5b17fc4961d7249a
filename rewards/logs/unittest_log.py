"""Logs of unittest and of Django's runner with verbosity 2.

A test begins with `name (module.Class) ... `; its outcome stands behind the dots, or at the start or end of a
later line when the test printed something in between. With a docstring the name stands on a line of its own
and the dots follow the docstring; data sets then know the test by the docstring.
"""

import re

from rewards.logs.base import Collector, ParsedLog, plain

_NAME = re.compile(r"\w+ \([\w.<>]+\)(?: \[.*?\]| \(.*?\))*")
_OUTCOME = r"(ok|OK|FAIL|ERROR|skipped(?: .*)?|expected failure|unexpected success)"
_DOTS = re.compile(r"(.*?) \.\.\. ?(.*)\Z")
_ENDS = re.compile(rf"(?:.*?\s|\A){_OUTCOME}\Z")
_BLOCK = re.compile(r"(FAIL|ERROR): (.+)\Z")
_WORDS = {
    "ok": "passed",
    "OK": "passed",
    "FAIL": "failed",
    "ERROR": "error",
    "expected failure": "xfailed",
    "unexpected success": "xpassed",
}
_TOTALS = {
    "failures": "failed",
    "errors": "error",
    "skipped": "skipped",
    "expected failures": "xfailed",
    "unexpected successes": "xpassed",
}


def parse_unittest(text: str) -> ParsedLog:
    """Results of one or several runs."""
    found = Collector()
    named: str | None = None
    waiting: tuple[str, str] | None = None
    for raw in plain(text).split("\n"):
        line = raw.strip()
        if match := _BLOCK.match(line):
            _block(match, found)
            waiting = None
        elif match := _DOTS.match(line):
            waiting = _started(match, named, found)
        elif waiting is not None and (match := _outcome_line(line)):
            _add(found, waiting, match)
            waiting = None
        elif match := re.match(r"(?:FAILED|OK) \((.+)\)\Z", line):
            _read_totals(match[1], found)
        named = line if _NAME.fullmatch(line) else None
    return found.parsed()


def _started(match: re.Match[str], named: str | None, found: Collector) -> tuple[str, str] | None:
    """A line with dots: the test, and its outcome when that is there too."""
    label = match[1]
    test = (named, label) if named is not None and not _NAME.fullmatch(label) else (label, "")
    # Something printed before the name, as by a migration: the name is what ends there.
    if not _NAME.fullmatch(test[0]) and (tail := re.search(rf"({_NAME.pattern})\Z", test[0])):
        test = (tail[1], test[1])
    if outcome := _outcome_line(match[2]):
        _add(found, test, outcome)
        return None
    return test


def _outcome_line(text: str) -> str | None:
    """The outcome that a text ends with (or, for `skipped`, begins with)."""
    text = text.strip()
    if text.startswith("skipped"):
        return "skipped"
    match = (
        _ENDS.match(text)
        if text.startswith(("ok", "OK", "FAIL", "ERROR", "expected", "unexpected"))
        else None
    )
    if match is None:
        match = re.search(r"(?:[.)\s])(ok)\Z", text)
    return match[1] if match else None


def _block(match: re.Match[str], found: Collector) -> None:
    """`FAIL: name (module.Class)` above a traceback; subtests add their parameters behind it."""
    name = _NAME.match(match[2])
    label = name[0] if name else match[2]
    label = re.sub(r"(\([\w.<>]+\)) [\[(].*", r"\1", label)
    found.add(label, _WORDS[match[1]], label.split()[0])


def _add(found: Collector, test: tuple[str, str], outcome: str) -> None:
    label, description = test
    status = _WORDS.get(outcome, "skipped")
    label = re.sub(r"(\A\w+ \([\w.<>]+\)) [\[(].*", r"\1", label)
    found.add(label, status, description)


def _read_totals(text: str, found: Collector) -> None:
    for noun, number in re.findall(r"([a-z ]+)=(\d+)", text):
        status = _TOTALS.get(noun.strip())
        # Subtests make more failures than tests: only their absence can be checked.
        if status in ("skipped", "xfailed", "xpassed"):
            found.totals[status] += int(number)
