"""Which of the validated tasks a run trains on: `data.shuffle_seed` and `data.first`.

A task's place depends on the seed and its own id alone (a hash of both), not on the file's order nor on which
others are there. So "shuffle all rows, take the first n that validate" and "shuffle those that validated and
take n" are the same n, and preparing more tasks changes nothing before them. It judges no task: whether one
is fit to train on was found when it was prepared.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.swe.tasks import load_tasks
from recipes.swe.types import TaskInstance


def place(shuffle_seed: int, instance_id: str) -> bytes:
    """Where a task stands in the shuffled order: smaller is earlier."""
    return hashlib.sha256(f"{shuffle_seed}/{instance_id}".encode()).digest()


def in_order[Row](rows: Sequence[Row], shuffle_seed: int | None, key: Callable[[Row], str]) -> list[Row]:
    """Rows of any kind in the order in which they are taken; without a seed as they come."""
    if shuffle_seed is None:
        return list(rows)
    return sorted(rows, key=lambda row: place(shuffle_seed, key(row)))


def select_tasks(
    tasks: Sequence[TaskInstance], *, shuffle_seed: int | None, first: int | None
) -> list[TaskInstance]:
    """The first tasks of the shuffled order; all of them when there are fewer or `first` is None."""
    return in_order(tasks, shuffle_seed, lambda task: task.instance_id)[:first]


def training_tasks(data: Mapping[str, Any], *, timeout_s: float) -> list[TaskInstance]:
    """The tasks that the configuration's `data` section asks for. Raises TaskFileError."""
    tasks = load_tasks(Path(data["path"]), timeout_s=timeout_s)
    return select_tasks(tasks, shuffle_seed=data.get("shuffle_seed"), first=data.get("first"))
