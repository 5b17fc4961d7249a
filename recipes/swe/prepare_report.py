"""What became of a data set, as tables, as JSON, and as the file of tasks that training reads."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from recipes.swe.dataset_types import SourceTask
from recipes.swe.prepare_check import test_command
from recipes.swe.prepare_types import STATUSES, Outcome
from recipes.swe.tasks import from_source
from sandbox.cache_publish import write_atomically


def summary(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Counts by status and by repository, and every row, ready for JSON."""
    rows = list(outcomes)
    by_repo: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_repo[row.repo or "-"][row.status] += 1
    return {
        "counts": dict(Counter(row.status for row in rows)),
        "repositories": {repo: dict(counts) for repo, counts in sorted(by_repo.items())},
        "rows": [
            {
                "instance_id": row.instance_id,
                "repo": row.repo,
                "status": row.status,
                "reason": row.reason,
                "duration_s": row.duration_s,
                "again": not row.lasting,
            }
            for row in rows
        ],
    }


def by_repository(outcomes: Iterable[Outcome]) -> Table:
    """A line for each repository, a column for each status."""
    data = summary(outcomes)
    table = Table(box=None)
    table.add_column("repository", overflow="fold")
    used = [status for status in STATUSES if data["counts"].get(status)]
    for status in used:
        table.add_column(status, justify="right")
    repositories: Mapping[str, Mapping[str, int]] = data["repositories"]
    for repo, counts in repositories.items():
        table.add_row(repo, *(str(counts.get(status, "")) for status in used))
    table.add_row("all", *(str(data["counts"][status]) for status in used), style="bold")
    return table


def failures(outcomes: Iterable[Outcome], limit: int) -> Table | None:
    """Rows that did not pass, with the reason; None when all passed."""
    bad = [row for row in outcomes if row.status != "passed"]
    if not bad:
        return None
    table = Table(box=None)
    for heading in ("row", "status", "reason"):
        table.add_column(heading, overflow="fold")
    for row in bad[:limit]:
        table.add_row(row.instance_id, row.status, row.reason.replace("\n", " ")[:300])
    if len(bad) > limit:
        table.add_row(f"and {len(bad) - limit} more", "", "see the report")
    return table


def write_report(path: Path, outcomes: Iterable[Outcome]) -> None:
    """The summary as a JSON file."""
    write_atomically(path, (json.dumps(summary(outcomes), ensure_ascii=False, indent=1) + "\n").encode())


def export(path: Path, tasks: Sequence[SourceTask], outcomes: Iterable[Outcome]) -> int:
    """Writes the tasks that passed, in the order of the data set; how many.

    The same tasks give the same bytes, and a file that has them already is left alone. Without any that
    passed nothing is written."""
    passed = {row.instance_id: row for row in outcomes if row.status == "passed"}
    lines = [
        from_source(
            task,
            test_command=test_command(task, passed[task.instance_id].plugins),
            env_digest=passed[task.instance_id].digest,
        ).to_json()
        for task in tasks
        if task.instance_id in passed
    ]
    data = "".join(f"{line}\n" for line in lines).encode()
    if lines and (not path.is_file() or path.read_bytes() != data):
        write_atomically(path, data)
    return len(lines)
