"""SWE-bench Verified: a row in its published form for every version of its repositories, exported offline."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch import export_specs
from recipes.swe.dataset_types import SourceTask
from recipes.swe.datasets import read_tasks
from recipes.swe.datasets_commands import command_words
from recipes.swe.datasets_profiles import load_profiles
from recipes.swe.datasets_read import DataSource
from rewards.logs import PARSERS

ROOT = Path(__file__).parents[2]
VERSIONS = {
    "astropy/astropy": "0.1 0.2 0.3 0.4 1.1 1.2 1.3 3.0 3.1 3.2 4.1 4.2 4.3 5.0 5.1 5.2 v5.3",
    "django/django": "1.4 1.5 1.6 1.7 1.8 1.9 1.10 1.11 2.0 2.1 2.2 3.0 3.1 3.2 4.0 4.1 4.2 5.0 5.1 5.2",
    "matplotlib/matplotlib": "1.0 1.1 1.2 1.3 1.4 1.5 2.0 2.1 2.2 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8 3.9",
    "mwaskom/seaborn": "0.11 0.12 0.13 0.14",
    "pallets/flask": "2.0 2.1 2.2 2.3 3.0 3.1",
    "psf/requests": "0.7 0.8 0.9 0.11 0.13 0.14 1.1 1.2 2.0 2.2 2.3 2.4 2.5 2.7 2.8 2.9 2.10 2.11 2.12 "
    "2.17 2.18 2.19 2.22 2.25 2.26 2.27 2.31 3.0",
    "pydata/xarray": "0.12 0.18 0.19 0.20 2022.03 2022.06 2022.09 2023.07 2024.05",
    "pylint-dev/pylint": "2.8 2.9 2.10 2.11 2.13 2.14 2.15 2.16 2.17 3.0 3.1 3.2 3.3 4.0",
    "pytest-dev/pytest": "4.4 4.5 4.6 5.0 5.1 5.2 5.3 5.4 6.0 6.2 6.3 7.0 7.1 7.2 7.4 8.0 8.1 8.2 8.3 8.4",
    "scikit-learn/scikit-learn": "0.20 0.21 0.22 1.3 1.4 1.5 1.6",
    "sphinx-doc/sphinx": "1.5 1.6 1.7 1.8 2.0 2.1 2.2 2.3 2.4 3.0 3.1 3.2 3.3 3.4 3.5 4.0 4.1 4.2 4.3 4.4 "
    "4.5 5.0 5.1 5.2 5.3 6.0 6.2 7.0 7.1 7.2 7.3 7.4 8.0 8.1",
    "sympy/sympy": "0.7 1.0 1.1 1.2 1.4 1.5 1.6 1.7 1.8 1.9 1.10 1.11 1.12 1.13 1.14",
}
"""The twelve repositories, with every version that swebench 4.1.0 can build."""
IDS = {
    "django/django": ["test_it (app.tests.ThingTests)", "A docstring that Django prints instead."],
    "sympy/sympy": ["test_it"],
}


def diff(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


def verified_row(repo: str, version: str, number: int) -> dict[str, Any]:
    """All columns of the data set, with its types: ids are lists as JSON text."""
    return {
        "repo": repo,
        "instance_id": f"{repo.replace('/', '__')}-{number}",
        "base_commit": f"{number:040x}",
        "patch": diff("src/thing.py"),
        "test_patch": diff("tests/app/test_thing.py") + diff("tests/app/data.json"),
        "problem_statement": "It is wrong.\r\nVery.",
        "hints_text": "",
        "created_at": "2020-01-01T00:00:00Z",
        "version": version,
        "FAIL_TO_PASS": json.dumps(IDS.get(repo, ["tests/app/test_thing.py::test_it"])),
        "PASS_TO_PASS": "[]",
        "environment_setup_commit": "0" * 40,
        "difficulty": "<15 min fix",
    }


ROWS = [
    verified_row(repo, version, number)
    for number, (repo, version) in enumerate(
        (repo, version) for repo, versions in VERSIONS.items() for version in versions.split()
    )
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], SourceTask]:
    path = tmp_path_factory.mktemp("verified") / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    found = list(read_tasks(DataSource(str(path)), load_profiles()))
    assert len(found) == len(ROWS) == 193
    by_version = {}
    for row, task in zip(ROWS, found, strict=True):
        assert isinstance(task, SourceTask), task
        by_version[row["repo"], row["version"]] = task
    return by_version


def test_every_row_has_a_way_to_be_built_and_judged(tasks: dict[tuple[str, str], SourceTask]) -> None:
    for (repo, _), task in tasks.items():
        build = task.build
        assert (build.source.kind, build.source.location) == ("git", f"https://github.com/{repo}")
        assert tuple(map(int, build.python.split("."))) >= (3, 6)
        assert build.install and all(" -e " in f"{step} " for step in build.install)
        assert not any("apt-get" in step or "conda" in step for step in (*build.pre_install, *build.install))
        assert command_words(build.test_command)
        assert build.runner in ("pytest", "django", "log")
        assert (build.log_format in PARSERS) == (build.runner == "log")
        assert task.problem_statement == "It is wrong.\nVery."
        assert (task.start_patch, task.gold_patch) == ("", diff("src/thing.py"))
        assert task.env_key == task.instance_id


def test_the_runners_are_those_that_can_judge(tasks: dict[tuple[str, str], SourceTask]) -> None:
    for (repo, version), task in tasks.items():
        old = (repo == "pytest-dev/pytest" and version[0] in "45") or (
            repo == "astropy/astropy" and version[0] in "01"
        )
        expected = {"django/django": "django", "sympy/sympy": "log"}.get(repo, "log" if old else "pytest")
        assert task.build.runner == expected, (repo, version)
    django, sympy = tasks["django/django", "3.1"], tasks["sympy/sympy", "1.9"]
    assert command_words(django.build.test_command) == (
        *("python", "tests/runtests.py", "--verbosity", "2", "--settings=test_sqlite"),
    )
    assert django.targets == ("app.test_thing", "app.tests")  # of the docstring, and of the id
    assert (sympy.build.log_format, sympy.targets) == ("sympy", ("tests/app/test_thing.py",))
    assert command_words(sympy.build.test_command)[:3] == (
        "env",
        "PYTHONWARNINGS=ignore::UserWarning,ignore::SyntaxWarning",
        "python",
    )
    assert tasks["sphinx-doc/sphinx", "7.1"].build.test_command == "python -m pytest"
    assert tasks["psf/requests", "2.31"].targets == ()
    assert {repo for (repo, _), task in tasks.items() if not task.build.lint} == {"pytest-dev/pytest"}


def test_facts_of_some_versions(tasks: dict[tuple[str, str], SourceTask]) -> None:
    flask = tasks["pallets/flask", "2.3"].build
    assert (flask.python, flask.requirement_files) == ("3.11", ("requirements/dev.txt",))
    assert "Werkzeug==2.3.7" in flask.packages
    xarray = tasks["pydata/xarray", "2022.09"].build
    assert xarray.environment_files == ("ci/requirements/environment.yml|environment.yml",)
    sklearn = tasks["scikit-learn/scikit-learn", "0.22"].build
    assert {"numpy==1.19.2", "scipy==1.5.2", "pytest", "pip<23.1"} <= set(sklearn.packages)
    assert "numpy" not in sklearn.packages
    assert tasks["django/django", "2.2"].build.python == "3.6"  # swebench says 3.5
    assert "graphviz" in tasks["sphinx-doc/sphinx", "7.2"].build.system_packages
    assert tasks["matplotlib/matplotlib", "2.2"].build.install == ("python -m pip install -e .",)


def test_a_version_that_nobody_knows_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [verified_row("pallets/flask", "9.9", 1), verified_row("someone/thing", "1", 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = list(read_tasks(DataSource(str(path)), load_profiles()))
    assert [getattr(item, "reason", "").split(";")[0] for item in bad] == [
        "no profile tells how pallets/flask 9.9 is built",
        "no profile tells how someone/thing 1 is built",
    ]
    overrides = tmp_path / "mine.yaml"
    overrides.write_text('- match: {repo: "*/thing", versions: ["1"]}\n  set: {python: "3.12"}\n')
    known = list(read_tasks(DataSource(str(path)), load_profiles([overrides])))[1]
    assert isinstance(known, SourceTask) and known.build.python == "3.12"


def test_all_are_exported_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network is not to be used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    data, out = tmp_path / "test.jsonl", tmp_path / "specs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, {**ROWS[0], "version": None}]))
    assert export_specs.main([str(data), "--output", str(out)]) == 0
    assert "[export] 193 tasks, 1 bad rows" in capsys.readouterr().err
    again = list(read_tasks(DataSource(str(out)), load_profiles()))
    assert again == list(read_tasks(DataSource(str(data)), load_profiles()))[:-1]


def test_exit_statuses_of_the_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "launch/export_specs.py", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({**ROWS[0], "patch": None}) + "\n")
    assert run(str(bad)).returncode == 1
    missing = run(str(tmp_path / "none.jsonl"))
    assert (
        missing.returncode == 2 and missing.stderr.startswith("error: ") and missing.stderr.count("\n") == 1
    )
    done = run("tests/tasks/data/verified.jsonl", "--overrides", "tests/tasks/data/verified_overrides.yaml")
    assert done.returncode == 0
    assert json.loads(done.stdout)["build"]["source"]["location"] == "flask==2.2.5"
