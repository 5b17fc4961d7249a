"""Task files: what is accepted, and that every bad line is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from recipes.swe.tasks import TaskFileError, load_rows, load_tasks

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
