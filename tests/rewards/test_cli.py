"""The command: exit statuses, one-line errors, batches that go on where they stopped."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rewards import cli
from rewards.errors import GraderError
from rewards.grader import Case, Grader
from tests.rewards.project import GOLD, SPEC, LocalSandbox, write_project


class LocalTasks:
    """The small project, afresh for every grading."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened = 0
        self.grader = Grader()

    def open(self, task: str) -> Case:
        if task == "unknown":
            raise cli.UsageError("no task unknown is prepared")
        return Case(SPEC, lambda: self._sandbox(task), "small project")

    @asynccontextmanager
    async def _sandbox(self, task: str) -> AsyncIterator[LocalSandbox]:
        self.opened += 1
        if task == "broken":
            raise GraderError("the machine\nis on fire")
        root = self.root / str(self.opened)
        write_project(root)
        yield LocalSandbox(root)


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalTasks:
    made = LocalTasks(tmp_path / "sandboxes")

    @asynccontextmanager
    async def opened() -> AsyncIterator[LocalTasks]:
        yield made

    monkeypatch.setattr(cli, "_tasks", opened)
    return made


def test_one_patch(tasks: LocalTasks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gold.diff").write_text(GOLD)
    (tmp_path / "empty.diff").write_text("")
    for name, reward in (("gold", 1.0), ("empty", 0.0)):
        assert cli.main(["grade", "--task", "x", "--patch", str(tmp_path / f"{name}.diff")]) == 0
        verdict = json.loads(capsys.readouterr().out)
        assert (verdict["task"], verdict["reward"]) == ("x", reward)


@pytest.mark.parametrize(("task", "status"), [("unknown", 2), ("broken", 3)])
def test_errors_are_one_line(
    task: str, status: int, tasks: LocalTasks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p").write_text(GOLD)
    assert cli.main(["grade", "--task", task, "--patch", str(tmp_path / "p")]) == status
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["grade", "--task", "x", "--patch", str(tmp_path / "none")]) == 2


def test_a_wrong_patch_is_wrong_usage_and_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened() -> None:
        raise cli.UnusableError("no sandbox can be opened")

    monkeypatch.setattr(cli, "_tasks", opened)
    (tmp_path / "text").write_text("this is no patch\n")
    (tmp_path / "cut").write_text(GOLD[: GOLD.index("@@") + 30])
    (tmp_path / "good").write_text(GOLD)
    for name, words in (("none", "cannot be read"), (".", "cannot be read"), ("text", "no git-format patch")):
        assert cli.main(["grade", "--task", "x", "--patch", str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1
    assert cli.main(["grade", "--task", "x", "--patch", str(tmp_path / "cut")]) == 2
    assert cli.main(["grade", "--batch", str(tmp_path / "none")]) == 2
    assert cli.main(["grade", "--task", "x", "--patch", str(tmp_path / "good")]) == 3


def test_a_patch_that_does_not_apply_is_wrong_usage(
    tasks: LocalTasks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_text(GOLD.replace("shapes/core.py", "shapes/other.py"))
    assert cli.main(["grade", "--task", "x", "--patch", str(tmp_path / "other")]) == 2
    assert "does not apply" in capsys.readouterr().err


def test_wrong_usage_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["grade"], ["grade", "--task", "x"], ["grade", "--batch", "x", "--task", "x"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        cli.main(["grade", "--help"])
    assert ended.value.code == 0
    assert "--batch" in capsys.readouterr().out


def test_a_batch_goes_on_where_it_stopped(tasks: LocalTasks, tmp_path: Path) -> None:
    batch, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"task": "a", "patch": GOLD}, {"task": "broken", "patch": GOLD}, {"task": "b", "patch": ""}]
    batch.write_text("\n".join(map(json.dumps, rows)))
    output.write_text(json.dumps({"line": 3, "task": "b", "reward": 0.0}) + '\n{"line": 1, "ta')
    words = ["grade", "--batch", str(batch), "--output", str(output)]
    assert cli.main(words) == 3
    assert tasks.opened == 3  # the broken one is tried twice
    assert cli.main(words) == 3
    assert tasks.opened == 5
    rewards = [
        json.loads(line).get("reward") for line in output.read_text().split("\n") if '"reward"' in line
    ]
    assert sorted(rewards) == [0.0, 1.0]
    batch.write_text('{"task": 3}\n')
    assert cli.main(words) == 2
