"""data.shuffle_seed and data.first choose tasks, always the same ones."""

import random
from pathlib import Path

from launch.config_validate import load_config
from recipes.swe.task_selection import in_order, select_tasks, training_tasks
from recipes.swe.types import TaskInstance
from rewards.types import TestSpec as Spec
from sandbox.types import EnvSpec
from tests.launch.runner import write_tasks


def task(number: int) -> TaskInstance:
    name = f"owner__project.0123abcd.func__{number:08d}"
    spec = Spec(command=("python", "-m", "pytest"), fail_to_pass=("t::a",), pass_to_pass=(), timeout_s=1)
    return TaskInstance(name, "owner/project", "It fails.", EnvSpec(key=name), spec)


def ids(tasks: list[TaskInstance]) -> list[str]:
    return [one.instance_id for one in tasks]


def test_the_same_tasks_whatever_the_order_of_the_file() -> None:
    tasks = [task(number) for number in range(5000)]
    mixed = random.Random(1).sample(tasks, len(tasks))
    chosen = select_tasks(tasks, shuffle_seed=42, first=1600)
    assert len(chosen) == 1600
    assert ids(chosen) == ids(select_tasks(mixed, shuffle_seed=42, first=1600))
    assert ids(chosen) != ids(select_tasks(tasks, shuffle_seed=43, first=1600))
    assert set(ids(chosen)) != set(ids(tasks[:1600]))
    low = len(set(ids(chosen)) & set(ids(tasks[:2500])))
    assert 700 < low < 900, "the choice leans to one end of the file"


def test_first_that_validate_is_the_same_before_and_after_validation() -> None:
    tasks = [task(number) for number in range(3000)]
    valid = [one for one in tasks if int(one.instance_id[-2:]) % 3]
    fit = set(ids(valid))
    shuffled = select_tasks(tasks, shuffle_seed=42, first=None)
    shuffled_first = [one for one in shuffled if one.instance_id in fit][:500]
    assert ids(shuffled_first) == ids(select_tasks(valid, shuffle_seed=42, first=500))


def test_without_a_seed_the_file_decides_and_fewer_than_wanted_are_all() -> None:
    tasks = [task(number) for number in (3, 1, 2)]
    assert select_tasks(tasks, shuffle_seed=None, first=2) == tasks[:2]
    assert set(ids(select_tasks(tasks, shuffle_seed=42, first=1600))) == set(ids(tasks))
    assert in_order(["b", "a"], None, str) == ["b", "a"]


def test_the_configuration_selects(tmp_path: Path) -> None:
    path = write_tasks(tmp_path, 9)
    overrides = [f"data.path={path}", "data.shuffle_seed=42", "data.first=4", "reward.timeout_s=7"]
    config = load_config(["+recipe=cpu_demo", *overrides])
    chosen = training_tasks(config["data"], timeout_s=config["reward"]["timeout_s"])
    everything = sorted(f"task{n}" for n in range(9))
    assert ids(chosen) == in_order(everything, 42, str)[:4]
    assert chosen[0].tests.timeout_s == 7
