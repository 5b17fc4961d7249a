"""What a log parser gives back, and what all of them share."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

WORST_FIRST = ("error", "failed", "xpassed", "xfailed", "skipped", "passed")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """The results that a test command printed."""

    statuses: Mapping[str, str]
    """Full id -> passed, failed, error, skipped, xfailed or xpassed; the worst where lines contradict."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Names that data sets made with swebench's parsers use -> full ids: cut at a space, a docstring, …"""
    totals: Mapping[str, int] = field(default_factory=dict[str, int])
    """Status -> number, as the log's own summary says."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Status -> number of results found, to compare with `totals`."""


class Collector:
    """Gathers results while a parser reads."""

    def __init__(self) -> None:
        self.statuses: dict[str, str] = {}
        self.aliases: dict[str, set[str]] = {}
        self.totals: Counter[str] = Counter()
        self.extra: Counter[str] = Counter()

    def add(self, test_id: str, status: str, *aliases: str) -> None:
        """One result; the worst of an id is kept."""
        known = self.statuses.get(test_id, status)
        self.statuses[test_id] = min(known, status, key=WORST_FIRST.index)
        for alias in aliases:
            if alias and alias != test_id:
                self.aliases.setdefault(alias, set()).add(test_id)

    def parsed(self, counts: Mapping[str, int] | None = None) -> ParsedLog:
        """Everything gathered; `counts` when one id may stand for several results."""
        found = Counter(self.statuses.values()) + self.extra
        aliases = {
            name: tuple(sorted(ids)) for name, ids in self.aliases.items() if name not in self.statuses
        }
        return ParsedLog(self.statuses, aliases, dict(self.totals), dict(counts or found))


def plain(text: str) -> str:
    """Without colours and carriage returns."""
    return _COLOUR.sub("", text).replace("\r\n", "\n")
