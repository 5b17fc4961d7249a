"""From a data set to tasks: `read_tasks` reads rows one by one and turns each into a SourceTask or a BadRow.

Which adapter fits is said or seen from the first row's fields. A row that cannot be used (a field missing, a
patch that is none, an id that was there before) is a BadRow with the reason, and the rest goes on. Nothing is
built here, and nothing but a named hub data set needs a network.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from recipes.swe.dataset_types import BadRow, SourceTask
from recipes.swe.datasets_commands import command_words
from recipes.swe.datasets_custom import custom
from recipes.swe.datasets_fields import FieldError
from recipes.swe.datasets_profiles import Profiles
from recipes.swe.datasets_r2e import r2e_gym
from recipes.swe.datasets_read import DataSource, Row, SourceError, Unreadable, read_rows
from recipes.swe.datasets_swebench import swe_bench, swe_gym, swe_rebench
from recipes.swe.datasets_swesmith import swe_smith

type Adapter = Callable[[Mapping[str, Any], Profiles], SourceTask]

ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {
        "swe_smith": swe_smith,
        "swe_bench": swe_bench,
        "swe_gym": swe_gym,
        "swe_rebench": swe_rebench,
        "r2e_gym": r2e_gym,
        "custom": custom,
    }
)
"""By the name that configurations use; `auto` looks at the rows."""
_SIGNS = (
    ("custom", ("build",)),
    ("swe_rebench", ("install_config",)),
    ("r2e_gym", ("repo_name", "parsed_commit_content")),
    ("swe_bench", ("base_commit", "environment_setup_commit")),
    ("swe_gym", ("base_commit", "version")),
    ("swe_smith", ("image_name", "repo")),
)
"""Fields by which a form is known, the most telling first. SWE-Gym has SWE-bench's but one."""


def guess_adapter(row: Row) -> str:
    """Name of the adapter for rows like this one. Raises SourceError."""
    for name, fields in _SIGNS:
        if all(field in row for field in fields):
            return name
    raise SourceError(
        f"no adapter knows rows with the fields {', '.join(sorted(map(str, row)))[:300]}; "
        f"name one of {', '.join(ADAPTERS)}, or write plain rows (docs/datasets.md)"
    )


def read_tasks(
    source: DataSource, profiles: Profiles, *, adapter: str = "auto"
) -> Iterator[SourceTask | BadRow]:
    """The tasks of a data set, in its order. Raises SourceError when it cannot be opened or read to its end,
    or when no adapter fits."""
    if adapter != "auto" and adapter not in ADAPTERS:
        raise SourceError(f"no adapter is named {adapter}; there are auto, {', '.join(ADAPTERS)}")
    rows = read_rows(source)
    if adapter == "auto":
        head, rows = _first_row(rows)
        if head is None:
            raise SourceError(f"{source.path} holds no row that can be read")
        adapter = guess_adapter(head)
    return _tasks(rows, ADAPTERS[adapter], profiles)


def _first_row(rows: Iterator[Row | Unreadable]) -> tuple[Row | None, Iterator[Row | Unreadable]]:
    """The first readable row, and all of them."""
    seen: list[Row | Unreadable] = []
    for row in rows:
        seen.append(row)
        if not isinstance(row, Unreadable):
            return row, itertools.chain(seen, rows)
    return None, iter(seen)


def _printable(text: str) -> str:
    """JSON can hold half of a surrogate pair, which no file and no terminal can."""
    return text.encode("utf-8", "backslashreplace").decode()


def _tasks(
    rows: Iterable[Row | Unreadable], adapt: Adapter, profiles: Profiles
) -> Iterator[SourceTask | BadRow]:
    seen: dict[str, int] = {}
    for position, row in enumerate(rows):
        if isinstance(row, Unreadable):
            yield BadRow(f"row {position}", position, row.reason)
            continue
        named = row.get("instance_id")
        row_id = _printable(named) if isinstance(named, str) and named.strip() else f"row {position}"
        try:
            task = adapt(row, profiles)
            command_words(task.build.test_command)
        except FieldError as error:
            yield BadRow(row_id, position, str(error))
            continue
        first = seen.setdefault(task.instance_id, position)
        if first != position:
            yield BadRow(task.instance_id, position, f"its id was already that of row {first}")
            continue
        yield task
