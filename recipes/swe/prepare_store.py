"""Statuses and logs of a prepared set on disk: written whole, read by whoever asks, one file each a row.

    <cache>/prepare/<set>/status/<id>.json    what became of the row
    <cache>/prepare/<set>/logs/<id>.log       what was done for it, with the output of builds and tests

A status that cannot be read counts as none: the row is done again.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from recipes.swe.dataset_types import SourceTask
from recipes.swe.datasets_fields import safe_key
from recipes.swe.prepare_types import STATUSES, Outcome
from sandbox.cache_publish import write_atomically

MAX_LOG_BYTES = 4 << 20


def row_digest(task: SourceTask) -> str:
    """Of all that a row says."""
    text = json.dumps(asdict(task), sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_of(outcome: Outcome, task: SourceTask) -> bool:
    """Whether it is of the row as it is today: one that was changed since is not validated."""
    return outcome.instance_id == task.instance_id and outcome.row == row_digest(task)


class StatusStore:
    """Statuses and logs of one set."""

    def __init__(self, cache_dir: Path, name: str) -> None:
        """`name` of the set."""
        self.folder = cache_dir / "prepare" / safe_key(name)

    def get(self, instance_id: str) -> Outcome | None:
        """What became of a row; None when nothing is known."""
        outcome = _read(self.folder / "status" / f"{safe_key(instance_id)}.json")
        return outcome if outcome is not None and outcome.instance_id == instance_id else None

    def put(self, outcome: Outcome) -> None:
        """Keeps it."""
        data = json.dumps(asdict(outcome), ensure_ascii=False, indent=1) + "\n"
        path = self.folder / "status" / f"{safe_key(outcome.instance_id)}.json"
        write_atomically(path, data.encode("utf-8", "surrogatepass"))

    def log(self, instance_id: str, text: str) -> None:
        """Keeps the log of a row, its middle left out when it is too long."""
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_LOG_BYTES:
            half = MAX_LOG_BYTES // 2
            data = data[:half] + b"\n[... left out ...]\n" + data[-half:]
        write_atomically(self.log_path(instance_id), data)

    def log_path(self, instance_id: str) -> Path:
        """Where the log of a row lies."""
        return self.folder / "logs" / f"{safe_key(instance_id)}.log"

    def all(self) -> Iterator[Outcome]:
        """All that is known for good, by id: not what an interrupted run has still to run under stress."""
        found = (_read(path) for path in (self.folder / "status").glob("*.json"))
        yield from sorted(
            (outcome for outcome in found if outcome is not None and outcome.settled),
            key=lambda one: one.instance_id,
        )

    def with_earlier(self, tasks: Sequence[SourceTask], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Outcomes of a run, and of earlier ones for tasks that its filter left out, where the row is still
        the same, in the tasks' order."""
        now = {row.instance_id: row for row in outcomes}
        found: list[Outcome] = []
        for task in tasks:
            row = now.pop(task.instance_id, None) or self.get(task.instance_id)
            if row is not None and row.settled and is_of(row, task):
                found.append(row)
        return [*found, *now.values()]


def _read(path: Path) -> Outcome | None:
    try:
        data = json.loads(path.read_text("utf-8", "surrogatepass"))
        if data["status"] not in STATUSES:
            return None
        return Outcome(**{**data, "plugins": tuple(data["plugins"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
