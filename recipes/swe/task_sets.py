"""The tasks of a run: those it trains on and those it is only judged by.

Which tasks are held out depends on a seed and on ids or repositories alone, never on the order or the number
of rows; they are taken away before `data.first` is counted, so that both sets are disjoint and the training
set is as large as asked for. With `eval.path` the held-out tasks come from a file of their own, and what is
in there is not trained on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recipes.report.solve_rates import load_rates
from recipes.swe.task_order import OrderConfig, TaskOrder
from recipes.swe.task_selection import in_order, select_tasks
from recipes.swe.tasks import load_tasks
from recipes.swe.types import TaskInstance

SplitBy = Literal["task", "repo"]


class TaskSetError(ValueError):
    """There are not enough tasks for what is asked."""


@dataclass(frozen=True, slots=True)
class TaskSets:
    """Disjoint."""

    train: tuple[TaskInstance, ...]
    """What is trained on."""
    held_out: tuple[TaskInstance, ...]
    """What is only evaluated; empty without an evaluation."""
    rates: Mapping[str, tuple[int, int]]
    """(solved, counted) rollouts of earlier runs by instance id."""


def split_tasks(
    tasks: Sequence[TaskInstance], count: int, *, by: SplitBy, seed: int
) -> tuple[list[TaskInstance], list[TaskInstance]]:
    """(rest, held out). `task`: exactly `count` tasks; `repo`: whole repositories, drawn until there are
    `count` tasks. Raises TaskSetError when nothing would be left to train on."""
    if by == "task":
        chosen = {task.instance_id for task in in_order(tasks, seed, lambda task: task.instance_id)[:count]}
        held_out = [task for task in tasks if task.instance_id in chosen]
    else:
        repos: set[str] = set()
        held_out = []
        for repo in in_order(sorted({task.repo for task in tasks}), seed, lambda name: name):
            if len(held_out) >= count:
                break
            repos.add(repo)
            held_out = [task for task in tasks if task.repo in repos]
    out = {task.instance_id for task in held_out}
    rest = [task for task in tasks if task.instance_id not in out]
    if count and not rest:
        raise TaskSetError(
            f"eval.tasks: {count} tasks held out by {by} leave none of {len(tasks)} to train on"
        )
    return rest, held_out


def load_task_sets(settings: Mapping[str, Any]) -> TaskSets:
    """The tasks that the configuration's `data` and `eval` ask for.

    Raises TaskFileError, TaskSetError and SolveRatesError."""
    data, evaluation = settings["data"], settings["eval"]
    timeout_s = float(settings["reward"]["timeout_s"])
    tasks = load_tasks(Path(data["path"]), timeout_s=timeout_s)
    if evaluation["path"] is not None:
        every = load_tasks(Path(evaluation["path"]), timeout_s=timeout_s)
        held_out = in_order(every, evaluation["split_seed"], lambda task: task.instance_id)
        held_out = held_out[: evaluation["tasks"] or None]
        known = {task.instance_id for task in every}
        tasks = [task for task in tasks if task.instance_id not in known]
    else:
        tasks, held_out = split_tasks(
            tasks, evaluation["tasks"], by=evaluation["split_by"], seed=evaluation["split_seed"]
        )
    curriculum = data["curriculum"]
    rates = load_rates([Path(path) for path in curriculum["rates"]])
    tasks = within_rates(tasks, rates, curriculum["min_rate"], curriculum["max_rate"])
    train = select_tasks(tasks, shuffle_seed=data.get("shuffle_seed"), first=data.get("first"))
    return TaskSets(tuple(train), tuple(held_out), rates)


def within_rates(
    tasks: Sequence[TaskInstance], rates: Mapping[str, tuple[int, int]], low: float, high: float
) -> list[TaskInstance]:
    """Tasks whose measured solve rate lies within [low, high], and those that were never measured."""
    return [
        task
        for task in tasks
        if not (counts := rates.get(task.instance_id, (0, 0)))[1] or low <= counts[0] / counts[1] <= high
    ]


def task_order(settings: Mapping[str, Any], sets: TaskSets, batch_size: int) -> TaskOrder | None:
    """The configured order; None when SkyRL's own shuffle will do."""
    curriculum, skip = settings["data"]["curriculum"], settings["data"]["skip"]
    config = OrderConfig(
        seed=int(settings["seed"]),
        order=curriculum["order"],
        skip_solved_visits=skip["solved_epochs"],
        skip_unsolved_visits=skip["unsolved_epochs"],
        retry_after_passes=skip["retry_after_epochs"],
    )
    if config.is_default:
        return None
    return TaskOrder([task.instance_id for task in sets.train], batch_size, config, sets.rates)
