"""Logs of sympy's own runner, `bin/test -C --verbose`.

Under a heading with the file, each test has a line with its outcome; failures come again with file and name.
Full ids are `path:test`; data sets know passed tests by their bare name.
"""

import re

from rewards.logs.base import Collector, ParsedLog, plain

_FILE = re.compile(r"(\S+\.py)\[(?:\d+|\?)\]")
_TEST = re.compile(r"(test_\w+)(?:\s.*)?\s(ok|F|E|f|s|X|\[OK\])(?:\s+\[(?:OK|FAIL)\])?\Z")
_HEADING = re.compile(r"_+ (\S+\.py):(\S+) _+\Z")
_END = re.compile(r"=* ?tests finished: (.+?), in [\d.]+ seconds")
_WORDS = {"ok": "passed", "F": "failed", "E": "error", "f": "xfailed", "s": "skipped", "X": "xpassed"}
_TOTALS = {
    "passed": "passed",
    "failed": "failed",
    "exceptions": "error",
    "skipped": "skipped",
    "expected to fail": "xfailed",
}


def parse_sympy(text: str) -> ParsedLog:
    """Results of one or several runs."""
    found = Collector()
    file = ""
    for raw in plain(text).split("\n"):
        line = raw.strip()
        if match := _FILE.match(line):
            file = match[1]
        elif match := _HEADING.match(line):
            known = found.statuses.get(f"{match[1]}:{match[2]}")
            found.add(f"{match[1]}:{match[2]}", known if known == "error" else "failed", match[2])
        elif match := _TEST.match(line):
            found.add(f"{file}:{match[1]}" if file else match[1], _WORDS.get(match[2], "passed"), match[1])
        elif match := _END.match(line):
            for number, noun in re.findall(r"(\d+) ([a-z ]+)", match[1]):
                if (status := _TOTALS.get(noun.strip())) is not None:
                    found.totals[status] += int(number)
    return found.parsed()
