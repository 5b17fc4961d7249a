"""Held-out tasks: the same ones whatever the order of rows, and never trained on."""

from pathlib import Path
from typing import Any

import pytest

from recipes.swe.task_sets import TaskSetError, load_task_sets, split_tasks, task_order, within_rates
from recipes.swe.tasks import TaskRow
from recipes.swe.types import TaskInstance
from rewards.types import TestSpec
from sandbox.types import EnvSpec

TASKS = [
    TaskInstance(f"r{i % 5}.{i:02d}", f"r{i % 5}", "Fix.", EnvSpec(str(i)), TestSpec((), (), ()))
    for i in range(40)
]


def ids(tasks) -> set[str]:
    return {task.instance_id for task in tasks}


@pytest.mark.parametrize("by", ["task", "repo"])
def test_the_split_depends_on_ids_and_seed_alone(by):
    rest, held_out = split_tasks(TASKS, 9, by=by, seed=1)
    again = split_tasks(TASKS[::-1], 9, by=by, seed=1)
    assert (ids(again[0]), ids(again[1])) == (ids(rest), ids(held_out))
    assert not ids(rest) & ids(held_out) and len(rest) + len(held_out) == 40
    assert any(ids(split_tasks(TASKS, 9, by=by, seed=seed)[1]) != ids(held_out) for seed in range(2, 9))
    if by == "repo":
        assert not {task.repo for task in rest} & {task.repo for task in held_out}
        assert len(held_out) == 16  # two whole repositories
    else:
        assert len(held_out) == 9
        more = split_tasks(TASKS, 12, by=by, seed=1)[1]
        assert ids(held_out) < ids(more)


def test_a_split_that_leaves_nothing_is_refused():
    with pytest.raises(TaskSetError, match="leave none"):
        split_tasks(TASKS, 33, by="repo", seed=1)
    assert split_tasks(TASKS, 0, by="task", seed=1) == (TASKS, [])


def test_tasks_out_of_the_measured_range_go_and_unmeasured_ones_stay():
    rates = {"r0.00": (0, 8), "r1.01": (8, 8), "r2.02": (3, 8), "r3.03": (0, 0)}
    kept = ids(within_rates(TASKS, rates, 0.1, 0.9))
    assert ids(TASKS) - kept == {"r0.00", "r1.01"}


def write(path: Path, numbers: range) -> str:
    rows = [
        TaskRow(f"a__b.1{n % 4}.x__{n:04d}", "diff", ("t::a",), (), "none", f"swesmith/a__b.1{n % 4}", "Fix.")
        for n in numbers
    ]
    path.write_text("\n".join(row.to_json() for row in rows))
    return str(path)


def settings(data_path: str, **evaluation: Any) -> dict[str, Any]:
    return {
        "seed": 1,
        "reward": {"timeout_s": 60},
        "data": {
            "path": data_path,
            "shuffle_seed": 42,
            "first": 10,
            "curriculum": {"rates": [], "order": "random", "min_rate": 0.0, "max_rate": 1.0},
            "skip": {"solved_epochs": 0, "unsolved_epochs": 0, "retry_after_epochs": 0},
        },
        "eval": {"path": None, "tasks": 0, "split_by": "task", "split_seed": 42, **evaluation},
    }


def test_the_sets_of_a_run(tmp_path: Path):
    data = write(tmp_path / "data.jsonl", range(20))
    plain = load_task_sets(settings(data))
    assert len(plain.train) == 10 and plain.held_out == ()
    assert task_order(settings(data), plain, 4) is None
    split = load_task_sets(settings(data, tasks=5))
    assert len(split.train) == 10 and len(split.held_out) == 5
    assert not ids(split.train) & ids(split.held_out)
    other = write(tmp_path / "other.jsonl", range(15, 30))
    apart = load_task_sets(settings(data, path=other))
    assert len(apart.held_out) == 15 and not ids(apart.train) & ids(apart.held_out)
    assert len(load_task_sets(settings(data, path=other, tasks=4)).held_out) == 4
    skipping = settings(data)
    skipping["data"]["skip"]["solved_epochs"] = 2
    order = task_order(skipping, plain, 4)
    assert order is not None and order.config.skip_solved_visits == 2 and set(order.names) == ids(plain.train)
