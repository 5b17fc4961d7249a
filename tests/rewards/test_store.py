"""Verdicts on disk: shared, and never believed when damaged."""

import asyncio
import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rewards.cache import GradeCache
from rewards.store import VerdictStore, task_digest
from rewards.types import RewardResult
from tests.rewards.project import SPEC

ONE = RewardResult(1.0, True, 1.0, 0, dropped_paths=("conftest.py",), dropped_by_reason={"x": 1})
TASK = task_digest(SPEC, "layers")


def only_file(folder: Path) -> Path:
    (path,) = folder.rglob("*.json")
    return path


def test_kept_for_the_same_task_patch_and_grader_only(tmp_path: Path) -> None:
    VerdictStore(tmp_path).save(TASK, "patch", ONE)
    assert VerdictStore(tmp_path).load(TASK, "patch") == ONE
    assert VerdictStore(tmp_path).load(TASK, "patch\n") is None
    assert VerdictStore(tmp_path).load(task_digest(SPEC, "other layers"), "patch") is None
    assert VerdictStore(tmp_path).load(task_digest(replace(SPEC, timeout_s=1), "layers"), "patch") is None
    assert VerdictStore(tmp_path, grader="another").load(TASK, "patch") is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b"[1]", None])
def test_a_damaged_file_is_told_and_ignored(
    damage: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = VerdictStore(tmp_path)
    store.save(TASK, "patch", replace(ONE, reward=0.0, resolved=False))
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"false", b"true") if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        assert store.load(TASK, "patch") is None
    assert "ignored" in caplog.text


def test_a_file_under_another_name_is_not_believed(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path)
    store.save(TASK, "good", ONE)
    good = only_file(tmp_path).read_bytes()
    store.save(TASK, "bad", replace(ONE, reward=0.0, resolved=False))
    for path in tmp_path.rglob("*.json"):
        path.write_bytes(good)
    assert sorted((store.load(TASK, "good") == ONE, store.load(TASK, "bad") is None)) == [True, True]


def test_what_hangs_on_the_machine_is_not_kept(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path)
    store.save(TASK, "patch", RewardResult(0.0, False, 0.0, 0, reasons=("time limit",)))
    store.save(TASK, "patch", RewardResult(0.0, False, 0.0, 0, exhausted="memory"))
    assert list(tmp_path.rglob("*.json")) == []


async def test_the_cache_in_memory_is_a_front_of_it(tmp_path: Path) -> None:
    calls = 0

    async def grade() -> RewardResult:
        nonlocal calls
        calls += 1
        return ONE

    for _ in range(3):
        assert await GradeCache(store=VerdictStore(tmp_path)).get(TASK, "patch", grade) == ONE
    assert calls == 1


async def test_two_workers_at_once_go_on_with_one_verdict(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    async def worker(found: RewardResult) -> RewardResult:
        async def grade() -> RewardResult:
            await both.wait()  # neither finds the other's verdict before it grades
            return found

        return await GradeCache(store=VerdictStore(tmp_path)).get(TASK, "patch", grade)

    first, second = await asyncio.gather(worker(ONE), worker(replace(ONE, reasons=("flaky",))))
    assert first == second == VerdictStore(tmp_path).load(TASK, "patch")
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


def test_a_damaged_verdict_is_replaced(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path)
    assert store.save(TASK, "patch", ONE) == ONE
    only_file(tmp_path).write_bytes(b"damaged")
    other = replace(ONE, reasons=("again",))
    assert store.save(TASK, "patch", other) == other
    assert store.load(TASK, "patch") == other


def save_many(folder: Path, mark: str) -> list[RewardResult]:
    store = VerdictStore(folder, grader="g")
    return [store.save(TASK, str(number), replace(ONE, reasons=(mark,))) for number in range(200)]


def test_processes_that_save_the_same_agree(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        one, two = pool.map(save_many, [tmp_path, tmp_path], ["a", "b"])
    assert one == two
