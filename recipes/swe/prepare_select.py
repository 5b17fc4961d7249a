"""Which rows are meant: by a filter on ids and repositories, and by what is to be done again."""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from recipes.swe.prepare_types import STATUSES, Outcome, PrepareRequest


class SelectionError(ValueError):
    """A filter cannot be used; the message says why."""


def matcher(pattern: str) -> Callable[[str], bool]:
    """A glob, or a regular expression after `re:` that is searched for. Raises SelectionError."""
    if not pattern.startswith("re:"):
        return lambda text: fnmatchcase(text, pattern)
    try:
        expression = re.compile(pattern.removeprefix("re:"))
    except re.error as error:
        raise SelectionError(f"{pattern!r} is no regular expression: {error}") from error
    return lambda text: expression.search(text) is not None


class Selection:
    """The choice that a request makes."""

    def __init__(self, request: PrepareRequest) -> None:
        """Raises SelectionError."""
        self._filter = request.filter
        self._force = request.force
        self._wanted = matcher(request.filter) if request.filter else lambda _: True
        self._statuses = {name for name in request.retry if name in STATUSES}
        self._ids = {name: matcher(name) for name in request.retry if name not in STATUSES}

    def wants(self, instance_id: str, repo: str) -> bool:
        """Whether a row is meant at all."""
        return self._wanted(instance_id) or (bool(repo) and self._wanted(repo))

    def again(self, known: Outcome) -> bool:
        """Whether a row that is done is to be done again."""
        if self._force or known.status in self._statuses:
            return True
        return any(matches(known.instance_id) for matches in self._ids.values())

    def faults(self, rows: Sequence[tuple[str, str]]) -> list[str]:
        """What of the request means none of the rows, given as (id, repository): a line for each."""
        if not rows:
            return []
        lines: list[str] = []
        if not any(self.wants(*row) for row in rows):
            some = " of ".join(part for part in rows[0] if part)
            lines.append(
                f"filter: {self._filter!r} matches no id and no repository of {len(rows)} rows; "
                f"the first is {some}"
            )
        for name, matches in self._ids.items():
            if not any(matches(instance_id) for instance_id, _ in rows):
                lines.append(
                    f"retry: {name!r} is no status ({', '.join(STATUSES)}) and no id of {len(rows)} rows"
                )
        return lines
