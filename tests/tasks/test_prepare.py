"""The whole of prepare, over a tiny project, with real sandboxes and the real grader."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import prepare as command
from recipes.swe.tasks import gold_edits, gold_patch, load_rows, load_tasks
from rewards.grade import grade
from sandbox.cache import EnvCache
from sandbox.errors import SandboxUnavailableError
from sandbox.mini import MiniBackend
from sandbox.types import CachedEnv, EnvSpec, Limits
from tests.tasks.conftest import MODULE, Workshop

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cache(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared cache."""
    root = tmp_path_factory.mktemp("cache")
    assert command.main(workshop.overrides(workshop.seeded(root))) == 0
    return root


def report(cache: Path) -> dict[str, tuple[str, str]]:
    """Status and reason by the last part of the bug's name."""
    data = json.loads((cache / "tasks" / "local.report.json").read_text())
    return {entry["instance_id"][-8:]: (entry["status"], entry["reason"]) for entry in data["bugs"]}


def first_env(cache: Path) -> CachedEnv:
    """The environment of the first task."""
    row = load_rows(cache / "tasks" / "local.jsonl")[0]
    return EnvCache(cache).ensure(EnvSpec(row.instance_id))


def test_every_bug_meets_its_fate(cache: Path) -> None:
    fates = report(cache)
    assert {name: status for name, (status, _) in fates.items()} == {
        "validaaa": "valid",
        "validbbb": "valid",
        "harmless": "harmless",
        "noimport": "unusable",
        "stalexxx": "build_error",
    }
    assert "test_tiny.py cannot be imported" in fates["noimport"][1]
    assert "was made for" in fates["stalexxx"][1]


def test_rows_follow_the_schema(cache: Path) -> None:
    lines = (cache / "tasks" / "local.jsonl").read_text().splitlines()
    data = json.loads(lines[0])
    assert list(data) == [
        "instance_id", "patch", "FAIL_TO_PASS", "PASS_TO_PASS", "image_name", "repo", "problem_statement",
    ]  # fmt: skip
    names = ("high", "in the middle", "low")
    assert data["FAIL_TO_PASS"] == [f"test_tiny.py::test_clamp[{name}]" for name in names]
    assert "test_tiny.py::test_independent" in data["PASS_TO_PASS"]
    assert not any("skipped" in test for test in data["PASS_TO_PASS"])
    statement = data["problem_statement"]
    assert statement.startswith("# tiny: unexpected behaviour in `clamp`\n\nFile: tiny.py\n")
    assert len(statement) <= 400 and "assert" in statement


async def test_gold_earns_one_and_its_edits_fix_the_file(cache: Path) -> None:
    rows = load_rows(cache / "tasks" / "local.jsonl")
    environments = EnvCache(cache)
    async with MiniBackend() as backend:
        for row, task in zip(rows, load_tasks(cache / "tasks" / "local.jsonl"), strict=True):
            env = environments.ensure(task.env)
            async with await backend.open(env.spec(Limits())) as sandbox:
                assert (await grade(task.tests, gold_patch(row), sandbox)).reward == 1.0
            edits = gold_edits(row, environments)
            async with await backend.open(env.spec(Limits())) as sandbox:
                for path, old, new in edits:
                    text = (await sandbox.read_file(f"/testbed/{path}")).decode()
                    assert text.count(old) == 1
                    assert old.count("\n") < 3 and new.count("\n") < 3
                    await sandbox.write_file(f"/testbed/{path}", text.replace(old, new).encode())
                assert (await sandbox.read_file("/testbed/tiny.py")).decode() == MODULE
                patch = await sandbox.diff("/testbed")
            async with await backend.open(env.spec(Limits())) as sandbox:
                assert (await grade(task.tests, patch, sandbox)).reward == 1.0


async def test_repository_is_clean_and_holds_no_trace_of_the_fix(cache: Path) -> None:
    async with MiniBackend() as backend, await backend.open(first_env(cache).spec(Limits())) as sandbox:

        async def git(*arguments: str) -> str:
            done = await sandbox.exec(["git", *arguments], timeout_s=20)
            assert done.exit_status == 0, done.text
            return done.text

        assert await git("status", "--porcelain", "--ignored") == ""
        assert await git("diff") == ""
        assert (await git("rev-list", "--all", "--count")).strip() == "1"
        assert await git("remote") == await git("reflog") == await git("stash", "list") == ""
        assert (await git("count-objects")).startswith("0 objects")
        reachable = (await git("rev-list", "--objects", "--all")).splitlines()
        every = (await git("cat-file", "--batch-all-objects", "--batch-check")).splitlines()
        assert len(reachable) == len(every)
        assert "if value < low" not in await git("cat-file", "--batch-all-objects", "--batch", "--buffer")
        files = (await git("ls-files")).split()
        assert "ignored.txt" in files and "package/build/__init__.py" in files
        assert not any(name.startswith(("PKG-INFO", "tiny.egg-info", "build/")) for name in files)


async def test_project_and_venv_are_used_in_place(cache: Path) -> None:
    async with MiniBackend() as backend, await backend.open(first_env(cache).spec(Limits())) as sandbox:
        script = "import sys, tiny, pytest; print(tiny.__file__, sys.prefix, pytest.__cached__)"
        done = await sandbox.exec(["python", "-c", script], timeout_s=20, cwd="/")
        module, prefix, cached = done.text.split()
        assert (module, prefix) == ("/testbed/tiny.py", "/opt/venv")
        assert (await sandbox.exec(["test", "-f", cached], timeout_s=20)).exit_status == 0


def test_chance_is_no_task_and_is_judged_again(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = workshop.overrides(workshop.seeded(tmp_path), f"bugs_file={workshop.folder}/flaky.yaml")
    assert command.main(overrides) == 1  # fewer than min_tasks
    status, reason = report(tmp_path)["chanceaa"]
    assert status == "flaky" and "test_chance[" in reason
    assert f"chanceaa: flaky: {reason}" in capsys.readouterr().err
    assert not list(tmp_path.glob("tasks/verdicts/*")) and not list(tmp_path.glob("envs/*"))


def test_second_run_opens_no_sandbox_and_fetches_nothing(
    cache: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise AssertionError("a sandbox was opened")

    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    monkeypatch.setattr(MiniBackend, "open", refuse)
    assert command.main(workshop.overrides(cache, "index_url=file:///nonexistent")) == 0
    after = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert all(
        name.endswith((".report.json", ".lock")) or name.startswith("someone__tiny") for name in changed
    )
    assert not list(cache.rglob(".tmp-*"))


def test_interrupted_run_leaves_nothing_half_done_and_goes_on(workshop: Workshop, tmp_path: Path) -> None:
    overrides = workshop.overrides(workshop.seeded(tmp_path))
    argv = [sys.executable, str(ROOT / "launch" / "prepare.py"), *overrides]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("layers/task-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert not (tmp_path / "tasks" / "local.jsonl").exists()
    assert not list(tmp_path.glob("layers/.tmp-*"))
    assert command.main(workshop.overrides(tmp_path)) == 0
    assert len(load_rows(tmp_path / "tasks" / "local.jsonl")) >= 2


def test_configuration_faults_are_all_named(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = workshop.overrides(tmp_path, "parallel=many", "min_task=3", "min_projects=-1")
    assert command.main(overrides) == 2
    errors = capsys.readouterr().err
    assert "4 error(s)" in errors or "3 error(s)" in errors
    for key in ("parallel", "min_task", "min_projects"):
        assert key in errors
    assert not list(tmp_path.iterdir())


def test_faults_of_a_list_are_all_named(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        workshop.bugs_file.read_text()
        .replace("end_line: 9", "end_line: 2")
        .replace("path: tiny.py", "path: ../x", 1)
    )
    bad = tmp_path / "bugs.yaml"
    bad.write_text(text)
    assert command.main(workshop.overrides(tmp_path / "cache", f"bugs_file={bad}")) == 2
    errors = capsys.readouterr().err
    assert "bug 1: ../x does not lie inside" in errors and "bug 2:" in errors and "no range" in errors


def test_unusable_kernel_exits_3(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def unusable(_: object) -> None:
        raise SandboxUnavailableError("user namespaces are off")

    monkeypatch.setattr(MiniBackend, "__aenter__", unusable)
    assert command.main(workshop.overrides(tmp_path)) == 3
    assert "user namespaces are off" in capsys.readouterr().err


def test_dead_index_is_a_failure_that_says_what_to_do(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(workshop.overrides(workshop.seeded(tmp_path), "index_url=file:///nonexistent")) == 1
    assert "PIP_INDEX_URL" in capsys.readouterr().err


def test_rows_are_chosen_only_where_they_are_validated(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(workshop.overrides(tmp_path, "filter=*validaaa", "force=true")) == 2
    errors = capsys.readouterr().err
    assert "filter: data=local is made whole" in errors and "force: " in errors
    assert not list(tmp_path.iterdir())


def test_a_validated_set_keeps_what_a_filter_leaves_out(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = ("validate=true", "check.repeats=1", "check.stress_repeats=0")
    overrides = workshop.overrides(workshop.seeded(tmp_path), *checks)
    assert command.main(overrides) == 0
    tasks = (tmp_path / "tasks" / "local.jsonl").read_bytes()
    assert tasks.count(b"\n") == 2
    assert command.main([*overrides, "filter=*validbbb", "retry=[passed]"]) == 0
    assert (tmp_path / "tasks" / "local.jsonl").read_bytes() == tasks
    assert command.main([*overrides, "filter=*nosuch"]) == 2
    assert "matches no id and no repository of 5 rows" in capsys.readouterr().err


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "min_tasks=None" in shown and "Exit status" in shown
