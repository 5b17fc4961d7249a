"""Which task comes when: skips, difficulty, and that neither a look ahead nor a resume changes anything."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.report.recorder import RolloutRecorder
from recipes.report.solve_rates import SolveRatesError, load_rates, main
from recipes.swe.dataset import TaskDataset
from recipes.swe.lookahead import Lookahead
from recipes.swe.task_loader import TaskLoader
from recipes.swe.task_order import ORDERS, OrderConfig, TaskOrder
from recipes.swe.types import TaskInstance
from rewards.types import TestSpec
from sandbox.types import EnvSpec
from tests.launch.fake_run import make_rollout

NAMES = [f"task{i:02d}" for i in range(12)]
ALWAYS, NEVER = {"task00", "task01"}, {"task02", "task03", "task04"}
SKIP = OrderConfig(seed=3, skip_solved_visits=1, skip_unsolved_visits=2, retry_after_passes=3)


def solved_by_rule(name: str) -> int:
    return 4 if name in ALWAYS else 0 if name in NEVER else 2


def group(name: str, solved: int, of: int = 4):
    return [make_rollout(name, solved=i < solved, repetition=i) for i in range(of)]


def run_batches(order: TaskOrder, count: int) -> list[list[str]]:
    batches = []
    for _ in range(count):
        batch = order.next_batch()
        batches.append(batch)
        for name in batch:
            order.note(name, solved_by_rule(name), 4)
    return batches


def test_without_skips_a_pass_is_every_task_once_and_passes_differ():
    order = TaskOrder(NAMES, 4, OrderConfig(seed=1, order="easy_first"))
    batches = run_batches(order, 6)
    first, second = ([name for batch in half for name in batch] for half in (batches[:3], batches[3:]))
    assert sorted(first) == sorted(second) == NAMES
    assert first != second
    assert run_batches(TaskOrder(NAMES[::-1], 4, OrderConfig(seed=1, order="easy_first")), 6) == batches
    assert run_batches(TaskOrder(NAMES, 4, OrderConfig(seed=2, order="easy_first")), 6) != batches


def test_tasks_solved_always_or_never_are_left_out_and_tried_again():
    order = TaskOrder(NAMES, 3, SKIP)
    batches = run_batches(order, 60)
    passes: dict[int, set[str]] = {}
    replay = TaskOrder(NAMES, 3, SKIP)
    for batch in batches:
        assert replay.next_batch() == batch
        for name in batch:
            passes.setdefault(replay.passes, set()).add(name)
            replay.note(name, solved_by_rule(name), 4)
    useful = set(NAMES) - ALWAYS - NEVER
    for made in list(passes.values())[:-1]:
        assert len(useful - made) <= 2  # one at the border of two passes may count to its neighbour
    visits = {name: sum(batch.count(name) for batch in batches) for name in NAMES}
    assert max(visits[n] for n in ALWAYS | NEVER) * 2 < min(visits[n] for n in useful)
    assert min(visits[n] for n in ALWAYS) >= 3  # they came back
    never_again = run_batches(TaskOrder(NAMES, 3, replace(SKIP, retry_after_passes=0)), 60)
    assert max(sum(batch.count(name) for batch in never_again) for name in ALWAYS) <= 2
    metrics = order.metrics()
    assert metrics["data/num_tasks_active"] + metrics["data/num_tasks_skipped_solved"] + metrics[
        "data/num_tasks_skipped_unsolved"
    ] == len(NAMES)


def test_when_too_few_are_left_the_longest_skipped_are_let_in():
    order = TaskOrder(NAMES[:4], 4, OrderConfig(skip_solved_visits=1))
    for _ in range(6):
        batch = order.next_batch()
        assert sorted(batch) == NAMES[:4]
        for name in batch:
            order.note(name, 4, 4)


def test_rollouts_that_failed_say_nothing():
    order = TaskOrder(NAMES[:2], 1, OrderConfig(skip_unsolved_visits=1))
    for _ in range(8):
        (name,) = order.next_batch()
        failed = make_rollout(name, solved=False, failed=True)
        order.observe([failed, failed] if name == "task00" else group(name, 0))
    assert order.metrics()["data/num_tasks_skipped_unsolved"] == 1
    assert order.next_batch() == ["task00"]


@settings(max_examples=60)
@given(
    size=st.integers(1, 5),
    solved=st.lists(st.integers(0, 4), min_size=12, max_size=12),
    config=st.builds(
        OrderConfig,
        seed=st.integers(0, 9),
        order=st.sampled_from(ORDERS),
        skip_solved_visits=st.integers(0, 2),
        skip_unsolved_visits=st.integers(0, 2),
        retry_after_passes=st.integers(0, 2),
    ),
)
def test_batches_are_full_and_never_hold_a_task_twice(size, solved, config):
    order = TaskOrder(NAMES, size, config, {"task05": (3, 4), "task06": (0, 4)})
    for _ in range(40):
        batch = order.next_batch()
        assert len(set(batch)) == size
        for name in batch:
            order.note(name, solved[NAMES.index(name)], 4)


def test_difficulty_decides_the_order():
    rates = {name: (i, 11) for i, name in enumerate(NAMES)}
    easy = TaskOrder(NAMES, 12, OrderConfig(order="easy_first"), rates).next_batch()
    hard = TaskOrder(NAMES, 12, OrderConfig(order="hard_first"), rates).next_batch()
    middle = TaskOrder(NAMES, 12, OrderConfig(order="middle_first"), rates).next_batch()
    assert easy[0] == "task11" and easy[-1] in ("task00", "task01") and hard[0] in ("task00", "task01")
    assert set(middle[:2]) == {"task05", "task06"} and set(middle[-2:]) == {"task00", "task11"}
    early = [
        TaskOrder(NAMES, 12, OrderConfig(order="weighted", seed=s), rates).next_batch() for s in range(60)
    ]
    place = {n: sum(batch.index(n) for batch in early) / 60 for n in NAMES}
    assert place["task05"] + 2 < min(place["task00"], place["task11"])


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="same instance id"):
        TaskOrder(["a", "a"], 1, OrderConfig())
    with pytest.raises(ValueError, match="do not fill"):
        TaskOrder(["a"], 2, OrderConfig())


def make_loader(folder: Path) -> tuple[TaskLoader, Lookahead]:
    tasks = [TaskInstance(name, "r", f"Fix {name}.", EnvSpec(name), TestSpec((), (), ())) for name in NAMES]
    dataset = TaskDataset(tasks)
    loader = TaskLoader(dataset, TaskOrder(NAMES, 3, replace(SKIP, retry_after_passes=1)), run_dir=folder)
    return loader, Lookahead(loader)


def train(folder: Path, steps: int, *, resume_from: dict[int, str], keep: dict[int, str], first: int = 1):
    """What SkyRL's loop does with a loader: epochs of batches, a checkpoint of its state after each step."""
    loader, ahead = make_loader(folder)
    recorder = RolloutRecorder(folder)
    if first > 1:
        ahead.load_state_dict(json.loads(resume_from[first - 1]))
        recorder.keep_until(first - 1)
        loader.read_outcomes(first - 1)
    step, made = first - 1, []
    while step < steps:
        for rows in ahead:
            step += 1
            names = [row["uid"] for row in rows]
            made.append(names)
            rollouts = [rollout for name in names for rollout in group(name, solved_by_rule(name))]
            for observer in (recorder, loader):
                asyncio.run(observer.observe("train", step, rollouts))
            keep[step] = json.dumps(ahead.state_dict())
            if step == steps:
                break
    return made


def test_a_resume_goes_on_as_if_nothing_had_happened(tmp_path: Path):
    states: dict[int, str] = {}
    whole = train(tmp_path / "whole", 26, resume_from={}, keep=states)
    assert any(len(set(whole[i]) & (ALWAYS | NEVER)) == 0 for i in range(6, 26))
    for stop in (1, 4, 7, 8, 13, 17):
        folder = tmp_path / f"stop{stop}"
        kept: dict[int, str] = {}
        # It had gone on for three steps after its last checkpoint when it was killed.
        assert train(folder, stop + 3, resume_from={}, keep=kept) == whole[: stop + 3]
        resumed = train(folder, 26, resume_from=kept, keep={}, first=stop + 1)
        assert resumed == whole[stop:], stop


def test_solve_rates_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for number in (1, 2):
        recorder = RolloutRecorder(tmp_path / f"run{number}")
        failed = make_rollout("task00", solved=False, failed=True)
        recorder.write("train", 1, [*group("task00", 1), *group("task01", number, of=2), failed])
    merged = RolloutRecorder(tmp_path / "run2").finish()
    assert merged is not None
    expected = {"task00": (2, 8), "task01": (3, 4)}
    assert load_rates([tmp_path / "run1", merged]) == expected
    out = tmp_path / "rates.parquet"
    assert main([str(tmp_path / "run1"), str(tmp_path / "run2"), "--out", str(out)]) == 0
    assert "2 tasks, mean solve rate 0.500" in capsys.readouterr().out
    assert load_rates([out]) == expected
    (tmp_path / "bad.parquet").write_text("no")
    for bad in (tmp_path / "bad.parquet", tmp_path / "none.parquet", tmp_path):
        with pytest.raises(SolveRatesError, match=bad.name):
            load_rates([bad])
    assert main([str(tmp_path), "--out", str(out)]) == 2
