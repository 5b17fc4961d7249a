"""The committed lists, and the local task set where it was prepared."""

from pathlib import Path

import pytest

from recipes.swe.tasks import LOCAL_TASKS, gold_edits, gold_patch, load_rows, to_task
from recipes.swe.tasks_projects import ListError, load_bugs, load_projects
from rewards.grade import grade
from sandbox.cache import EnvCache
from sandbox.mini import MiniBackend
from sandbox.types import Limits

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "configs" / "data"
CACHE = ROOT / ".cache"


def test_committed_lists_are_sound_and_large_enough() -> None:
    projects = load_projects(DATA / "projects.yaml")
    bugs = load_bugs(DATA / "local_bugs.yaml", projects)
    assert len(bugs) >= 24 and len({bug.project for bug in bugs}) >= 4
    for bug in bugs:
        assert bug.end_line - bug.start_line < 3 and len(bug.new_lines) <= 3
        assert all(len(line) <= 100 for line in bug.new_lines)


def test_every_fault_of_a_project_list_is_named(tmp_path: Path) -> None:
    text = (DATA / "projects.yaml").read_text()
    text = text.replace("repo: swesmith/mewwts__addict.b3b2210e", "repo: swesmith/addict")
    text = text.replace("test_files: [test_schema.py]", "test_files: [/etc/passwd]")
    text = text.replace("sha256: 9121e2c1", "sha256: xx")
    bad = tmp_path / "projects.yaml"
    bad.write_text(text)
    with pytest.raises(ListError) as caught:
        load_projects(bad)
    message = str(caught.value)
    assert "wheel iniconfig==2.3.1" in message
    assert "project 1" in message and "project 2" in message
    with pytest.raises(ListError, match="cannot be read"):
        load_projects(tmp_path / "none.yaml")


@pytest.mark.skipif(not (CACHE / LOCAL_TASKS).is_file(), reason="make prepare was not run here")
async def test_prepared_tasks_are_what_training_needs() -> None:
    rows = load_rows(CACHE / LOCAL_TASKS)
    cache = EnvCache(CACHE)
    assert len(rows) >= 24 and len({row.repo for row in rows}) >= 4
    for row in rows:
        (edit,) = gold_edits(row, cache)
        assert all(len(side.split("\n")) <= 3 for side in edit[1:])
        assert len(row.problem_statement) <= 400
    one_each = {row.repo: row for row in rows}
    async with MiniBackend() as backend:
        for row in one_each.values():
            task = to_task(row, timeout_s=60.0)
            async with await backend.open(cache.ensure(task.env).spec(Limits())) as sandbox:
                status = await sandbox.exec(["git", "status", "--porcelain"], timeout_s=30)
                assert (status.exit_status, status.output) == (0, b"")
                assert (await grade(task.tests, gold_patch(row), sandbox)).reward == 1.0
