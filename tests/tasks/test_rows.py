"""Task files: what is accepted, and that every bad line is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipes.swe.dataset_types import BuildSpec, RepoSource, SourceTask
from recipes.swe.datasets_fields import safe_key
from recipes.swe.tasks import TaskFileError, from_source, gold_patch, load_rows, load_tasks
from recipes.swe.tasks_patch import reverse_patch
from rewards.types import TestSpec
from sandbox.types import EnvSpec

ROW: dict[str, Any] = {
    "instance_id": "someone__tiny.00000000.func_pm_test__aaaaaaaa",
    "patch": "diff --git a/x b/x\n",
    "FAIL_TO_PASS": ["test_x.py::test[a b\u2028c]"],
    "PASS_TO_PASS": [],
    "image_name": "image",
    "repo": "swesmith/someone__tiny.00000000",
    "problem_statement": "It fails.",
}


def write(path: Path, *rows: Any) -> Path:
    """A task file; texts are written as they are."""
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_rows_become_tasks(tmp_path: Path) -> None:
    swe_bench = {
        **ROW,
        "instance_id": "b",
        "FAIL_TO_PASS": '["t.py::one"]',
        "PASS_TO_PASS": '["t.py::two"]',
        "extra": 1,
    }
    first, second = load_tasks(write(tmp_path / "t.jsonl", ROW, "", swe_bench), timeout_s=7.0)
    assert first.tests.fail_to_pass == ("test_x.py::test[a b\u2028c]",)
    assert (first.tests.timeout_s, first.env.key) == (7.0, first.instance_id)
    assert second.tests.pass_to_pass == ("t.py::two",)


def test_a_row_survives_writing_and_reading(tmp_path: Path) -> None:
    (row,) = load_rows(write(tmp_path / "t.jsonl", ROW))
    assert json.loads(row.to_json()) == ROW


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repo": None}, "missing repo"),
        ({"problem_statement": "  "}, "problem_statement is empty"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS is no list of texts"),
        ({"FAIL_TO_PASS": "x"}, "no JSON list"),
        ({"FAIL_TO_PASS": ["x", "x"]}, "lists a test twice"),
        ({"PASS_TO_PASS": ["test_x.py::test[a b\u2028c]"]}, "in FAIL_TO_PASS and PASS_TO_PASS"),
        ({"patch": 3}, "patch is empty or no text"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.jsonl", {**ROW, "instance_id": "good"}, {**ROW, **change})
    with pytest.raises(TaskFileError, match="line 2: .*" + message) as caught:
        load_rows(path)
    assert str(path) in str(caught.value)


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", ROW, "{", "[1]", ROW)
    with pytest.raises(TaskFileError) as caught:
        load_rows(path)
    text = str(caught.value)
    assert (
        "line 2: not JSON" in text and "line 3: a row is an object" in text and "line 4: instance_id" in text
    )
    assert "repeats line 1" in text


def test_missing_and_empty_files_say_so(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match=r"python launch/prepare\.py"):
        load_rows(tmp_path / "none.jsonl")
    with pytest.raises(TaskFileError, match="no rows"):
        load_rows(write(tmp_path / "t.jsonl", ""))


OWN: dict[str, Any] = {
    "test_command": ["env", "A=b c", "python", "bin/test", "-C"],
    "runner": "log",
    "log_format": "sympy",
    "targets": ["sympy/a/tests/test_b.py"],
    "test_patch": "diff --git a/t b/t\n",
    "gold_patch": "diff --git a/x b/x\n",
    "lint": False,
    "timeout_s": 77.0,
    "test_timeout_s": 5.0,
    "env_key": "key~0123456789abcdef",
    "env_digest": "abc",
}


def test_own_columns_reach_the_grader(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {**ROW, **OWN, "patch": ""}, {**ROW, "instance_id": "plain"})
    own, plain = load_tasks(path, timeout_s=7.0)
    assert own.env == EnvSpec("key~0123456789abcdef", "abc")
    assert own.tests == TestSpec(
        command=("env", "A=b c", "python", "bin/test", "-C"),
        fail_to_pass=tuple(ROW["FAIL_TO_PASS"]),
        pass_to_pass=(),
        timeout_s=77.0,
        runner="log",
        test_timeout_s=5.0,
        targets=("sympy/a/tests/test_b.py",),
        log_format="sympy",
        test_patch="diff --git a/t b/t\n",
        lint=False,
    )
    assert plain.tests == TestSpec(("python", "-m", "pytest"), tuple(ROW["FAIL_TO_PASS"]), (), 7.0)
    row, _ = load_rows(path)
    assert gold_patch(row) == "diff --git a/x b/x\n"
    assert json.loads(row.to_json()) == {**ROW, **OWN, "patch": ""}
    assert "test_patch" not in own.problem_statement and OWN["test_patch"] not in own.problem_statement


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch": ""}, "patch is empty"),
        ({"patch": None}, "missing patch"),
        ({"gold_patch": 1}, "gold_patch is no text"),
        ({"runner": "nose"}, "runner is none of pytest, unittest, django, wrapped, log: 'nose'"),
        ({"test_command": "pytest"}, "test_command is text, but no JSON list"),
        ({"targets": [1]}, "targets is no list of texts"),
        ({"timeout_s": -1}, "timeout_s is no positive number"),
        ({"lint": "no"}, "lint is neither true nor false"),
        ({"test_timeout_s": True}, "test_timeout_s is no positive number"),
    ],
)
def test_wrong_own_columns_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskFileError, match=message):
        load_rows(write(tmp_path / "t.jsonl", {**ROW, **change}))


def test_a_task_of_a_data_set_becomes_a_row_and_comes_back(tmp_path: Path) -> None:
    bug = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    build = BuildSpec(RepoSource("dir", "/"), "3.12", test_command="pytest")
    task = SourceTask("a/b c", "r", "It fails.", "env", build, bug, reverse_patch(bug), "", ("t",), ("u",))
    hidden = replace(task, start_patch="", test_patch=bug, instance_id="plain")
    rows = [from_source(item, test_command=("pytest", "-p", "x"), env_digest="d") for item in (task, hidden)]
    path = write(tmp_path / "t.jsonl", *(row.to_json() for row in rows))
    assert load_rows(path) == rows
    first, second = load_tasks(path)
    assert (first.instance_id, first.env.key) == ("a/b c", safe_key("a/b c"))
    assert (second.instance_id, second.env.key) == ("plain", "plain")
    assert (first.tests.test_patch, second.tests.test_patch) == ("", bug)
    assert [gold_patch(row) for row in rows] == [reverse_patch(bug)] * 2
    assert json.loads(rows[0].to_json()).get("gold_patch") is None
