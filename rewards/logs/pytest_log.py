"""Logs of pytest: the short summary (`-rA`), and the lines of `-v`.

Summary lines count only inside a summary section, so that captured output that begins with PASSED is no
result. Ids are taken whole, with spaces and brackets; where a message follows, the id ends at the first
" - " outside of brackets, or where an id that `-v` listed ends.
"""

import re

from rewards.logs.base import Collector, ParsedLog, plain

_WORDS = {
    "PASSED": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
    "XPASS": "xpassed",
}
_NOUNS = {
    "passed": "passed",
    "failed": "failed",
    "error": "error",
    "errors": "error",
    "skipped": "skipped",
    "xfailed": "xfailed",
    "xpassed": "xpassed",
}
_SECTION = re.compile(r"=+ short test summary info =+\s*\Z")
_END = re.compile(r"(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.:]+ ?(?:s|seconds)\b.*\Z")
_SUMMARY = re.compile(r"(PASSED|FAILED|ERROR|XFAIL|XPASS)\s+(\S.*)\Z")
_SKIPPED = re.compile(r"SKIPPED (?:\[(\d+)\] )?(\S.*)\Z")
_VERBOSE = re.compile(
    r"(\S.*?(?:::|\.py\b).*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b(?: +\(.*\))?(?: +\[ *\d+%\])?\s*\Z"
)
_XDIST = re.compile(r"\[gw\d+\](?: \[ *\d+%\])? (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*)\Z")


def parse_pytest(text: str) -> ParsedLog:
    """Results of one or several pytest runs."""
    found = Collector()
    in_summary = False
    skipped = 0
    for line in plain(text).split("\n"):
        line = line.strip("\x00\x07\x0b\x0c\r")
        if _SECTION.match(line):
            in_summary = True
        elif match := _END.match(line):
            in_summary = False
            for number, noun in re.findall(r"(\d+) ([a-z]+)", match[1]):
                if noun in _NOUNS:
                    found.totals[_NOUNS[noun]] += int(number)
        elif in_summary:
            skipped += _summary_line(line, found)
        else:
            _verbose_line(line, found)
    listed = sum(status == "skipped" for status in found.statuses.values())
    # A summary tells skips by place, several at once; `-v` tells them by id.
    found.extra["skipped"] = max(skipped - listed, 0)
    return found.parsed()


def _summary_line(line: str, found: Collector) -> int:
    """Reads one; returns how many skips it stands for."""
    if match := _SKIPPED.match(line):
        if "::" in match[2] and not match[1]:
            _add(found, match[2], "skipped")
        return int(match[1] or 1)
    if match := _SUMMARY.match(line):
        _add(found, _id_of(match[2], match[1], found), _WORDS[match[1]])
    return 0


def _verbose_line(line: str, found: Collector) -> None:
    if match := _XDIST.match(line):
        _add(found, match[2].rstrip(), _WORDS[match[1]])
    elif (match := _VERBOSE.match(line)) and not line.startswith((" ", "E ", ">")):
        _add(found, match[1], _WORDS[match[2]])


def _id_of(rest: str, word: str, found: Collector) -> str:
    """The id at the start of a summary line."""
    if rest in found.statuses or (word == "PASSED" and " - " not in rest):
        return rest
    position = rest.find(" - ")
    while position >= 0:
        head = rest[:position]
        if head in found.statuses or "[" not in head or head.endswith("]"):
            return head
        position = rest.find(" - ", position + 1)
    return rest


def _add(found: Collector, test_id: str, status: str) -> None:
    test_id = test_id.rstrip()
    found.add(test_id, status, *other_names(test_id))


def other_names(test_id: str) -> tuple[str, ...]:
    """Names of this test in data sets that were made with swebench's parsers: cut at a space, paths and enums
    in parameters shortened. Empty when they are all the id itself."""
    short = test_id.split()[0]
    names = {short, _without_folders(short), _without_folders(test_id), _buttons(test_id)}
    return tuple(sorted(names - {test_id}))


def _without_folders(test_id: str) -> str:
    """As swebench shortens parameters that are paths: `test[/a/b]` becomes `test[/b]`."""
    match = re.match(r"(.*?)\[(.*)\]", test_id)
    if match is None or not match[2].startswith("/") or match[2].startswith("//") or "*" in match[2]:
        return test_id
    return f"{match[1]}[/{match[2].split('/')[-1]}]"


def _buttons(test_id: str) -> str:
    """As swebench writes matplotlib's enum parameters, which newer Pythons print by name."""
    return test_id.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3").split()[0]
