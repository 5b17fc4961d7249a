"""Any data set through prepare: every row gets its status, kills cost nothing, and nothing is done twice."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from launch import prepare as command
from recipes.swe.build_env import EnvBuilder
from recipes.swe.dataset_types import SourceTask
from recipes.swe.prepare_check import Checker, Finding
from recipes.swe.prepare_store import StatusStore
from recipes.swe.prepare_types import CALM, Outcome
from recipes.swe.tasks import load_rows, load_tasks
from recipes.swe.tasks_patch import make_patch, reverse_patch
from sandbox.cache import EnvCache, layer_dir
from sandbox.mini import MiniBackend
from tests.tasks.conftest import MODULE, Workshop, tiny_sdist

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ".".join(map(str, sys.version_info[:3]))
BUG = make_patch("tiny.py", MODULE, MODULE.replace("if value > high", "if value > low"))
HANG = make_patch("tiny.py", MODULE, MODULE.replace("return value * 2", "while True: pass"))
BUGGED = MODULE.replace("if value > high", "if value > low")
FAILING = ["test_tiny.py::test_clamp[in the middle]"]
PASSING = ["test_tiny.py::test_double", "test_tiny.py::test_independent"]


def build(**more: Any) -> dict[str, Any]:
    """How the tiny project is built."""
    digest = hashlib.sha256(tiny_sdist()).hexdigest()
    source = {"kind": "sdist", "location": "tiny==1.0", "revision": digest}
    return {"source": source, "python": PYTHON, "packages": ["pytest"], "python_path": ["/testbed"], **more}


def row(name: str, **more: Any) -> dict[str, Any]:
    """A task of it, valid unless told otherwise."""
    return {
        "instance_id": name,
        "repo": "someone/tiny",
        "problem_statement": "clamp is wrong",
        "bug_patch": BUG,
        "patch": reverse_patch(more.get("bug_patch", BUG)),
        "FAIL_TO_PASS": FAILING,
        "PASS_TO_PASS": PASSING,
        "env_key": "tiny",
        "timeout_s": 30.0,
        "build": build(),
        **more,
    }


def without(name: str, field: str) -> dict[str, Any]:
    """A row that lacks a field."""
    return {key: value for key, value in row(name).items() if key != field}


ROWS: list[dict[str, Any] | str] = [
    row("good"),
    row("good with spaces ünd 中文"),
    row("good/with/slashes"),
    row("wrong-gold", patch=make_patch("tiny.py", BUGGED, BUGGED.replace("return low", "return 0"))),
    row("stale-gold", patch=make_patch("tiny.py", MODULE, MODULE.replace("> high", "> 2"))),
    row("never-failed", FAIL_TO_PASS=["test_tiny.py::test_double"], PASS_TO_PASS=[]),
    row("hang", bug_patch=HANG, FAIL_TO_PASS=["test_tiny.py::test_double"], PASS_TO_PASS=[], timeout_s=4.0),
    row("chance"),
    row("no-package", env_key="other", build=build(packages=["pytest", "no-such-package"])),
    row("no-python", env_key="third", build=build(python="3.99")),
    row("bad-command", env_key="fourth", build=build(python="3.99", install=["exit 3"])),
    row("stale-bug", bug_patch=BUG.replace("return low", "return lower")),
    without("no-tests", "FAIL_TO_PASS"),
    row("good"),
    row("no-statement", problem_statement="  \n"),
    '{"instance_id": "cut off',
    row("open-quote", build=build(test_command="pytest 'unclosed")),
    json.dumps(row("half a pair \ud800")),
    row("deep", FAIL_TO_PASS="[" * 100_000),
    row("for-ever", timeout_s=10**400),
]


def write_rows(folder: Path, rows: Iterable[dict[str, Any] | str]) -> Path:
    """A JSONL file."""
    lines = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in rows)
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def arguments(workshop: Workshop, cache: Path, rows: Path, *more: str) -> list[str]:
    """Command line."""
    return [
        f"paths.cache_dir={cache}",
        f"source.path={rows}",
        f"tasks_file={cache}/tasks/tiny.jsonl",
        f"index_url={workshop.index_url}",
        "data.name=tiny",
        "check.stress_processes=1",
        *more,
    ]


def statuses(cache: Path) -> dict[str, str]:
    """By id."""
    return {one.instance_id: one.status for one in StatusStore(cache, "tiny").all()}


@pytest.fixture(scope="module")
def prepared(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A cache after one run over all rows, and the rows."""
    cache = workshop.seeded(tmp_path_factory.mktemp("pipeline"))
    rows = write_rows(tmp_path_factory.mktemp("rows"), ROWS)
    really = Checker.repeat
    calls: list[str] = []

    async def sometimes(self: Checker, task: SourceTask, *rest: Any) -> Finding:
        calls.append(task.instance_id)
        if task.instance_id == "chance" and calls.count("chance") == 2:
            return Finding("failed", "a test fails by chance", "the log")
        return await really(self, task, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checker, "repeat", sometimes)
        assert command.main(arguments(workshop, cache, rows)) == 0
    return cache, rows


def test_every_row_has_its_status_and_its_log(prepared: tuple[Path, Path]) -> None:
    cache, _ = prepared
    found = {one.instance_id: one for one in StatusStore(cache, "tiny").all()}
    assert {name: one.status for name, one in found.items()} == {
        "good": "passed",
        "good with spaces ünd 中文": "passed",
        "good/with/slashes": "passed",
        "wrong-gold": "failed",
        "stale-gold": "failed",
        "never-failed": "failed",
        "hang": "timeout",
        "chance": "flaky",
        "no-package": "build_error",
        "no-python": "build_error",
        "bad-command": "build_error",
        "stale-bug": "build_error",
        "no-tests": "bad_row",
        "good (row 13)": "bad_row",
        "no-statement": "bad_row",
        "row 15": "bad_row",
        "open-quote": "bad_row",
        "half a pair \\ud800": "bad_row",
        "deep": "bad_row",
        "for-ever": "bad_row",
    }
    says = {
        "never-failed": "pass without the fix",
        "no-package": "no-such-package",
        "no-python": "Python 3.99 is not installed",
        "stale-bug": "the start patch does not apply",
        "no-tests": "FAIL_TO_PASS",
        "no-statement": "problem_statement",
        "row 15": "not JSON",
        "chance": "of 2 repeats 1 failed, 1 passed",
        "stale-gold": "does not apply",
        "open-quote": "No closing quotation",
        "for-ever": "timeout_s is not above 0",
    }
    for name, words in says.items():
        assert words in found[name].reason, name
    logs = StatusStore(cache, "tiny")
    assert all(logs.log_path(name).is_file() for name in found)
    assert "with the gold patch" in logs.log_path("good").read_text()


def test_a_bug_that_tests_find_only_by_chance_is_no_task(workshop: Workshop, tmp_path: Path) -> None:
    """Each repeat looks whether it fails without the fix, those under stress too."""
    cache, rows = workshop.seeded(tmp_path / "cache"), write_rows(tmp_path, [row("luck")])
    really = Checker._before  # pyright: ignore[reportPrivateUsage]
    calls: list[None] = []

    async def lucky(self: Checker, *rest: Any) -> Finding:
        calls.append(None)
        return Finding("failed", "passes", "") if len(calls) == 4 else await really(self, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checker, "_before", lucky)
        more = ("check.repeats=1", "check.stress_repeats=4")
        assert command.main(arguments(workshop, cache, rows, *more)) == 1
    (found,) = StatusStore(cache, "tiny").all()
    assert found.status == "flaky" and found.reason == "of 5 repeats 1 failed, 4 passed: passes"


def test_what_passed_is_ready_for_training(prepared: tuple[Path, Path]) -> None:
    cache, _ = prepared
    file = cache / "tasks" / "tiny.jsonl"
    rows = load_rows(file)
    assert [one.instance_id for one in rows] == ["good", "good with spaces ünd 中文", "good/with/slashes"]
    environments = EnvCache(cache)
    for task, one in zip(load_tasks(file), rows, strict=True):
        env = environments.ensure(task.env)
        assert env.digest == one.env_digest and len(env.layers) == 4 and not env.binds
    report = json.loads((cache / "tasks" / "tiny.report.json").read_text())
    assert report["counts"]["passed"] == 3 and report["repositories"]["someone/tiny"]["flaky"] == 1


async def test_the_agent_starts_from_one_commit_of_the_bug(prepared: tuple[Path, Path]) -> None:
    cache, _ = prepared
    (task, *_) = load_tasks(cache / "tasks" / "tiny.jsonl")
    env = EnvCache(cache).ensure(task.env)
    script = (
        "git status --porcelain --ignored; git rev-list --all --count; git remote; git count-objects;"
        "git cat-file --batch-all-objects --batch --buffer | grep -c 'value > high';"
        "grep -c 'value > low' tiny.py"
    )
    async with MiniBackend() as backend, await backend.open(env.spec(command_limits())) as sandbox:
        done = await sandbox.exec(["bash", "-c", script], timeout_s=30)
    assert done.text.split("\n")[:4] == ["1", "0 objects, 0 kilobytes", "0", "1"]


def command_limits() -> Any:
    from sandbox.types import Limits

    return Limits()


def forbid(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of sandboxes that were opened from here on."""
    opened: list[str] = []
    really = MiniBackend.open

    async def count(self: MiniBackend, spec: Any) -> Any:
        opened.append(str(spec.layers))
        return await really(self, spec)

    monkeypatch.setattr(MiniBackend, "open", count)
    return opened


def test_a_second_run_only_tries_again_what_may_end_otherwise(
    prepared: tuple[Path, Path], workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, rows = prepared
    file = cache / "tasks" / "tiny.jsonl"
    before = file.stat().st_mtime_ns
    opened = forbid(monkeypatch)
    assert command.main(arguments(workshop, cache, rows, "filter='good*'")) == 0
    assert not opened and file.stat().st_mtime_ns == before
    assert len(load_rows(file)) == 3
    assert command.main(arguments(workshop, cache, rows, "filter='good*'", "retry=['good with*']")) == 0
    assert opened
    opened.clear()
    assert (
        command.main(arguments(workshop, cache, rows, "filter='re:^(good|wrong-gold)$'", "retry=[failed]"))
        == 0
    )
    assert opened and len(load_rows(file)) == 3


def test_report_and_export_build_nothing(
    prepared: tuple[Path, Path],
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cache, rows = prepared
    opened = forbid(monkeypatch)
    assert command.main(arguments(workshop, cache, rows, "action=report")) == 0
    shown = capfd.readouterr().err
    assert "someone/tiny" in shown and "flaky" in shown and "bad_row" in shown
    with monkeypatch.context() as offline:
        offline.setattr(command, "read_tasks", None)
        assert command.main(arguments(workshop, cache, rows, "action=report")) == 0
    capfd.readouterr()
    other = cache / "other.jsonl"
    assert command.main([*arguments(workshop, cache, rows, "action=export"), f"tasks_file={other}"]) == 0
    assert not opened and other.read_bytes() == (cache / "tasks" / "tiny.jsonl").read_bytes()


def test_a_row_that_was_changed_since_is_not_exported(
    prepared: tuple[Path, Path], workshop: Workshop, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cache, _ = prepared
    rows = write_rows(tmp_path, [row("good", FAIL_TO_PASS=["test_tiny.py::nope"]), *ROWS[1:3]])
    other = tmp_path / "other.jsonl"
    assert command.main([*arguments(workshop, cache, rows, "action=export"), f"tasks_file={other}"]) == 0
    assert [one.instance_id for one in load_rows(other)] == ["good with spaces ünd 中文", "good/with/slashes"]
    assert "1 rows were changed since they were validated" in capfd.readouterr().err


def test_rows_of_ones_own_do_not_replace_a_set_that_is_made_here(
    workshop: Workshop, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = write_rows(tmp_path, ROWS[:1])
    assert command.main([f"paths.cache_dir={tmp_path}", f"source.path={rows}"]) == 2
    shown = capfd.readouterr().err
    assert "data.name: local is made here" in shown and "tasks_file:" in shown
    assert not (tmp_path / "tasks").exists()


def test_an_id_that_another_set_gave_to_another_environment_is_taken_back(
    workshop: Workshop, tmp_path: Path
) -> None:
    cache, rows = workshop.seeded(tmp_path / "cache"), write_rows(tmp_path, [row("one")])
    quick = arguments(workshop, cache, rows, "check.repeats=1", "check.stress_repeats=0")
    assert command.main(quick) == 0
    record = cache / "envs" / "one.json"
    good = record.read_bytes()
    record.write_bytes(good.replace(b'"digest": "', b'"digest": "0'))
    assert command.main(quick) == 0
    assert record.read_bytes() == good
    (task,) = load_tasks(cache / "tasks" / "tiny.jsonl")
    assert EnvCache(cache).ensure(task.env)


def test_a_choice_that_means_nothing_is_refused(
    prepared: tuple[Path, Path],
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cache, rows = prepared
    opened = forbid(monkeypatch)
    for action in ("run", "report", "export"):
        wrong = ("filter=nobody*", "retry=[flaky,good,nosuch]", f"action={action}")
        assert command.main(arguments(workshop, cache, rows, *wrong)) == 2
        shown = capfd.readouterr().err
        assert "2 error(s)" in shown and "'nobody*' matches no id and no repository of" in shown
        assert "'nosuch' is no status (passed, failed, flaky," in shown and "'good'" not in shown
    assert not opened


def test_a_report_of_a_part_leaves_the_file(
    prepared: tuple[Path, Path], workshop: Workshop, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cache, rows = prepared
    path = cache / "tasks" / "tiny.report.json"
    before = path.read_bytes()
    assert command.main(arguments(workshop, cache, rows, "action=report", "filter=good*")) == 0
    shown = capfd.readouterr().err
    assert "left as it is" in shown and "flaky" not in shown
    assert path.read_bytes() == before
    assert command.main(arguments(workshop, tmp_path, rows, "action=report")) == 1
    assert "no row of data=tiny is known here" in capfd.readouterr().err


def content(cache: Path) -> dict[str, bytes | str]:
    """All that a run leaves for training, by path."""
    found: dict[str, bytes | str] = {}
    for folder in ("layers", "envs", "tasks"):
        for path in sorted((cache / folder).rglob("*")):
            name = str(path.relative_to(cache))
            if path.is_symlink():
                found[name] = str(path.readlink())
            elif path.name == "layer.json":
                facts = json.loads(path.read_text())
                facts.pop("disk_bytes")  # what the file system made of it
                found[name] = json.dumps(facts)
            elif path.is_file() and not name.endswith(".report.json"):
                found[name] = path.read_bytes()
    return found


QUICK = ("check.repeats=1", "check.stress_repeats=0")


@pytest.fixture(scope="module")
def undisturbed(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | str]:
    """What a run over the first rows leaves that nothing disturbs."""
    cache = workshop.seeded(tmp_path_factory.mktemp("undisturbed"))
    rows = write_rows(tmp_path_factory.mktemp("first"), ROWS[:4])
    assert command.main(arguments(workshop, cache, rows, *QUICK)) == 0
    return content(cache)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "moment", ["layers/repo-*", "layers/venv-*", "layers/task-*", "prepare/tiny/status/*"]
)
def test_a_killed_run_goes_on_to_the_same_bytes(
    undisturbed: dict[str, bytes | str], workshop: Workshop, tmp_path: Path, moment: str
) -> None:
    cache = workshop.seeded(tmp_path / "cache")
    rows = write_rows(tmp_path, ROWS[:4])
    argv = [sys.executable, str(ROOT / "launch" / "prepare.py"), *arguments(workshop, cache, rows, *QUICK)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: bool(list(cache.glob(moment))), process)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    done = {path: path.stat().st_mtime_ns for path in cache.glob("layers/*/layer.json")}
    assert command.main(arguments(workshop, cache, rows, *QUICK)) == 0
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in done.items())  # nothing was built again
    found = content(cache)
    assert {name for name in found if not name.startswith("layers/.tmp")} == set(undisturbed)
    assert [name for name in undisturbed if found[name] != undisturbed[name]] == []


def until(there: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    """Waits while the process runs."""
    deadline = time.monotonic() + 300
    while not there() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def test_a_damaged_layer_is_built_again(workshop: Workshop, tmp_path: Path) -> None:
    cache = workshop.seeded(tmp_path / "cache")
    rows = write_rows(tmp_path, [row("good")])
    assert command.main(arguments(workshop, cache, rows, *QUICK)) == 0
    (venv,) = (path.name for path in (cache / "layers").glob("venv-*"))
    shutil.rmtree(layer_dir(cache, venv) / "root")
    (layer_dir(cache, venv) / "layer.json").unlink()
    assert command.main(arguments(workshop, cache, rows, *QUICK)) == 0
    assert (layer_dir(cache, venv) / "layer.json").is_file() and statuses(cache) == {"good": "passed"}
    for path in (cache / "layers").glob("[rtv]*-*"):  # repo, task, venv
        shutil.rmtree(path / "root")
    assert command.main(arguments(workshop, cache, rows, *QUICK)) == 0
    assert statuses(cache) == {"good": "passed"} and load_tasks(cache / "tasks" / "tiny.jsonl")


def test_dead_index_is_told_and_tried_again(workshop: Workshop, tmp_path: Path) -> None:
    cache = workshop.seeded(tmp_path / "cache")
    rows = write_rows(tmp_path, [row("good")])
    dead = [*arguments(workshop, cache, rows, *QUICK), "index_url=http://127.0.0.2:9/simple"]
    assert command.main(dead) == 1
    (outcome,) = StatusStore(cache, "tiny").all()
    assert outcome.status == "build_error" and "PIP_INDEX_URL" in outcome.reason and not outcome.lasting
    assert command.main(arguments(workshop, cache, rows, *QUICK)) == 0
    assert statuses(cache) == {"good": "passed"}


def test_a_full_disk_costs_its_rows_only(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file system holds the layers; the statuses lie elsewhere."""
    cache = workshop.seeded(tmp_path / "cache")
    rows = write_rows(tmp_path, [row("good"), row("no-python", env_key="x", build=build(python="3.99"))])
    really = EnvBuilder.build

    async def full(self: EnvBuilder, *arguments: Any) -> Any:
        if arguments[0].python == "3.99":
            return await really(self, *arguments)
        raise OSError(28, "No space left on device", str(cache / "layers"))

    monkeypatch.setattr(EnvBuilder, "build", full)
    assert command.main(arguments(workshop, cache, rows)) == 1
    found = {one.instance_id: one for one in StatusStore(cache, "tiny").all()}
    assert "No space left" in found["good"].reason and not found["good"].lasting
    assert "not installed" in found["no-python"].reason and found["no-python"].lasting


def test_an_unusable_data_set_is_a_fault_of_the_configuration(
    workshop: Workshop, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path, words in (
        (tmp_path / "none.jsonl", "no"),
        (write_rows(tmp_path, ["{"]), "no row that can be read"),
    ):
        assert command.main(arguments(workshop, tmp_path / "cache", path)) == 2
        assert words in capfd.readouterr().err
    assert (
        command.main(arguments(workshop, tmp_path / "c", write_rows(tmp_path, ROWS[:1]), "filter='re:('"))
        == 2
    )
    assert "no regular expression" in capfd.readouterr().err


def test_stress_ends_with_its_owner() -> None:
    script = (
        "import asyncio, os\nfrom recipes.swe.prepare_stress import cpu_stress\n"
        "async def main():\n    async with cpu_stress(2):\n"
        "        print('busy', flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    assert owner.stdout is not None and owner.stdout.readline() == b"busy\n"
    children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
    owner.kill()
    owner.wait(30)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) == 2 and not any(Path(f"/proc/{child}/cmdline").exists() for child in children)


def test_stress_is_over_after_the_block() -> None:
    async def children() -> tuple[int, int]:
        from recipes.swe.prepare_stress import cpu_stress

        mine = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        before = set(mine.read_text().split())
        async with cpu_stress(3):
            inside = set(mine.read_text().split()) - before
        return len(inside), len(set(mine.read_text().split()) - before)

    assert asyncio.run(children()) == (3, 0)


def test_what_was_not_run_under_stress_yet_is_neither_reported_nor_exported(tmp_path: Path) -> None:
    """An interrupted run has such rows; the next run goes on with them."""
    store = StatusStore(tmp_path, "tiny")
    store.put(Outcome("a__a.1", "a/a", "passed", "", inputs="1" + CALM))
    store.put(Outcome("a__a.2", "a/a", "passed", "", inputs="2"))
    assert [one.instance_id for one in store.all()] == ["a__a.2"]
    assert [one.instance_id for one in store.with_earlier([], list(store.all()))] == ["a__a.2"]
    known = store.get("a__a.1")
    assert known is not None and not known.settled
