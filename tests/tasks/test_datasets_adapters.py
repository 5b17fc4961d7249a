"""Rows of each data set in its published form become the tasks they describe."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from recipes.swe.datasets_fields import FieldError
from recipes.swe.datasets_profiles import ProfileError, Profiles, load_overrides, load_profiles
from recipes.swe.datasets_r2e import r2e_gym
from recipes.swe.datasets_swebench import swe_gym, swe_rebench
from recipes.swe.datasets_swesmith import swe_smith
from recipes.swe.tasks_patch import reverse_patch

BUG = "diff --git a/src/x.py b/src/x.py\n--- a/src/x.py\n+++ b/src/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
TESTS = BUG.replace("src/x.py", "tests/test_x.py")
SMITH: dict[str, Any] = {
    "instance_id": "mewwts__addict.75284f95.func_pm_remove_assign__abcdefgh",
    "patch": BUG,
    "FAIL_TO_PASS": ["test_addict.py::test_a"],
    "PASS_TO_PASS": ["test_addict.py::test_b"],
    "image_name": "swebench/swesmith.x86_64.mewwts_1776_addict.75284f95",
    "repo": "swesmith/mewwts__addict.75284f95",
    "problem_statement": "It is wrong.",
}
BENCH: dict[str, Any] = {
    "instance_id": "someone__thing-12",
    "repo": "someone/thing",
    "base_commit": "A" * 40,
    "version": "1.2",
    "patch": BUG,
    "test_patch": TESTS,
    "problem_statement": "It is wrong.",
    "hints_text": None,
    "created_at": "2024",
    "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
    "PASS_TO_PASS": [],
}


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return load_profiles()


def overrides(tmp_path: Path, text: str) -> Profiles:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_profiles([path])


def test_swe_smith(profiles: Profiles) -> None:
    task = swe_smith(SMITH, profiles)
    assert task.build.source.location == "https://github.com/mewwts/addict"
    assert task.build.source.revision == "75284f9593dfb929cadd900aff9e35e7c7aec54b"
    assert (task.build.python, task.build.install) == ("3.10", ("python -m pip install -e .",))
    assert (task.build.test_command, task.build.runner) == ("pytest", "pytest")
    assert task.build.packages == ("pytest<9",)
    assert (task.start_patch, task.gold_patch, task.test_patch) == (BUG, reverse_patch(BUG), "")
    other = swe_smith({**SMITH, "instance_id": "other"}, profiles)
    assert task.env_key == other.env_key == "swesmith.x86_64.mewwts_1776_addict.75284f95"
    assert task.image_name == SMITH["image_name"]


def test_every_profile_of_swe_smith_is_usable(profiles: Profiles) -> None:
    runners: dict[str, set[str]] = {}
    for mirror in profiles.swesmith:
        task = swe_smith({**SMITH, "repo": f"swesmith/{mirror}", "image_name": f"x/{mirror}"}, profiles)
        runners.setdefault(task.build.runner, set()).add(mirror.split("__")[1].split(".")[0])
        assert len(task.build.source.revision) == 40 and task.build.install
        assert not any("apt-get" in step for step in task.build.install)
    assert len(profiles.swesmith) > 100
    assert runners.pop("log") == {"python-slugify", "tornado"}
    assert set(runners) == {"pytest"}


def test_swe_smith_ids_of_another_root_directory(profiles: Profiles) -> None:
    row = {**SMITH, "FAIL_TO_PASS": ["../dev/tests/test_a.py::test_b"]}
    assert swe_smith(row, profiles).fail_to_pass == ("tests/test_a.py::test_b",)


def test_an_override_about_one_row_makes_an_environment_of_its_own(tmp_path: Path) -> None:
    profiles = overrides(
        tmp_path,
        "- match: {repo: MEWWTS/addict}\n  add: {packages: [extra, extra]}\n"
        "- match: {instances: [other]}\n  set: {python: '3.12'}\n",
    )
    task, other = swe_smith(SMITH, profiles), swe_smith({**SMITH, "instance_id": "other"}, profiles)
    assert task.build.packages == other.build.packages == ("pytest<9", "extra")
    assert (task.build.python, other.build.python) == ("3.10", "3.12")
    assert task.env_key != other.env_key


def test_swe_gym_takes_the_profile_of_the_same_repository(profiles: Profiles) -> None:
    task = swe_gym({**BENCH, "repo": "getmoto/moto", "instance_id": "getmoto__moto-1"}, profiles)
    assert (task.build.python, task.build.install) == ("3.10", ("make init",))
    assert task.build.source.revision == "a" * 40
    assert task.image_name == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-1:latest"
    assert (task.gold_patch, task.test_patch) == (BUG, TESTS)
    with pytest.raises(FieldError, match=r"no profile tells how someone/thing 1\.2 is built"):
        swe_gym(BENCH, profiles)


REBENCH: dict[str, Any] = {
    **BENCH,
    "environment_setup_commit": None,
    "meta": {"num_modified_files": 1},
    "docker_image": "swerebench/sweb.eval.x86_64.someone_1776_thing-12",
    "requirements": "attrs==23.1.0\r\n-e git+https://x/y@z#egg=thing\npytest==7.4.0\n",
    "environment": "name: thing\n",
    "install_config": {
        "python": "3.9",
        "install": "pip install .[test]",
        "packages": "requirements.txt",
        "pip_packages": ["pytest", "numpy"],
        "reqs_path": ["requirements/base.txt", "requirements.txt"],
        "pre_install": ["apt-get update", "apt-get install -y gcc"],
        "test_cmd": "pytest --no-header -rA --tb=line --color=no -p no:cacheprovider -W ignore::X",
        "env_vars": {"A": "1", "B": None},
        "env_yml_path": None,
        "no_use_env": None,
        "log_parser": "parse_log_pytest",
    },
}


def test_swe_rebench(profiles: Profiles) -> None:
    build = swe_rebench(REBENCH, profiles).build
    assert build.packages == ("attrs==23.1.0", "pytest==7.4.0") and build.requirement_files == ()
    assert (build.install, build.system_packages) == (("pip install -e .[test]",), ("gcc",))
    assert build.test_command == "pytest -W ignore::X"
    assert build.variables == (("A", "1"),)
    unpinned = swe_rebench({**REBENCH, "requirements": None}, profiles).build
    assert unpinned.packages == ("pytest", "numpy")
    assert unpinned.requirement_files == ("requirements/base.txt|requirements.txt",)
    as_text = {**REBENCH, "install_config": json.dumps(REBENCH["install_config"])}
    assert swe_rebench(as_text, profiles).build == build


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"install_config": None}, "install_config is missing"),
        ({"install_config": {**REBENCH["install_config"], "python": None}}, "no version of Python"),
        ({"install_config": {**REBENCH["install_config"], "test_cmd": ""}}, "no test command is known"),
        ({"base_commit": "main"}, "base_commit is no full commit id"),
    ],
)
def test_swe_rebench_rows_that_are_refused(profiles: Profiles, change: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        swe_rebench({**REBENCH, **change}, profiles)


def r2e_row(files: dict[str, tuple[str | None, str | None]]) -> dict[str, Any]:
    diffs = [
        {
            "header": {
                "file": {"path": path},
                "misc_line": "new file mode 100644"
                if old is None
                else "deleted file mode 100644"
                if new is None
                else None,
            },
            "is_binary_file": False,
            "old_file_content": old or "",
            "new_file_content": new or "",
        }
        for path, (old, new) in files.items()
    ]
    log = "=== short test summary info ===\n{}\n=== 1 failed, 1 passed in 0.1s ===\n"
    names = (
        "r2e_tests/test_1.py::TestA::test_fix[a b]",
        "r2e_tests/test_1.py::test_old",
        "r2e_tests/test_1.py::test_x",
    )
    return {
        "repo_name": "aiohttp",
        "docker_image": "namanjain12/aiohttp_final:abc",
        "commit_hash": "b" * 40,
        "parsed_commit_content": json.dumps({"file_diffs": diffs, "old_commit_hash": "c" * 40}),
        "execution_result_content": json.dumps(
            {
                "test_file_names": ["test_1.py"],
                "test_file_codes": ["def test_old(): pass\n"],
                "old_commit_res_stdout": log.format(
                    f"FAILED {names[0]} - x\nPASSED {names[1]}\nFAILED {names[2]}"
                ),
                "new_commit_res_stdout": log.format(
                    f"PASSED {names[0]}\nPASSED {names[1]}\nFAILED {names[2]}"
                ),
            }
        ),
        "expected_output_json": json.dumps(
            {"TestA.test_fix[a b]": "PASSED", "\x1b[1mtest_old\x1b[0m": "PASSED", "test_x": "FAILED"}
        ),
        "prompt": "x",
        "problem_statement": "Prompt.\n[ISSUE]\nIt is wrong.\n[/ISSUE]\n",
    }


def test_r2e_gym(profiles: Profiles, tmp_path: Path) -> None:
    files: dict[str, tuple[str | None, str | None]] = {
        "aiohttp/web.py": ("a = 1\nb = 2", "a = 1\nb = 3\n"),
        "aiohttp/new.py": (None, "new\n"),
        "aiohttp/gone.py": ("gone\n", None),
        "tests/test_web.py": ("x\n", "y\n"),
    }
    task = r2e_gym(r2e_row(files), profiles)
    assert task.instance_id == f"aiohttp__{'b' * 40}"
    assert task.build.source.location == "https://github.com/aio-libs/aiohttp"
    assert task.build.source.revision == "c" * 40
    assert task.problem_statement == "It is wrong."
    assert task.fail_to_pass == ("r2e_tests/test_1.py::TestA::test_fix[a b]",)
    assert task.pass_to_pass == ("r2e_tests/test_1.py::test_old",)
    for path, (old, _) in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        if old is not None:
            (tmp_path / path).write_text(old)
    for patch in (task.gold_patch, task.test_patch):
        subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "aiohttp/web.py").read_text() == "a = 1\nb = 3\n"
    assert (tmp_path / "aiohttp/new.py").exists() and not (tmp_path / "aiohttp/gone.py").exists()
    assert (tmp_path / "tests/test_web.py").read_text() == "x\n"
    assert (tmp_path / "r2e_tests/test_1.py").read_text() == "def test_old(): pass\n"


def test_r2e_gym_rows_that_are_refused(profiles: Profiles) -> None:
    row = r2e_row({"aiohttp/web.py": ("a\n", "b\n")})
    r2e_gym(row, profiles)
    for change, message in (
        ({"repo_name": "thing"}, r"repo_name thing is not known \(aiohttp, "),
        ({"expected_output_json": '{"test_x": "FAILED"}'}, "no recorded result"),
        ({"expected_output_json": '{"test_old": "PASSED"}'}, "passes before it too"),
        ({"execution_result_content": "{}"}, "no recorded result"),
        (
            {"parsed_commit_content": r2e_row({"tests/a.py": ("a", "b")})["parsed_commit_content"]},
            "no file but tests",
        ),
        ({"parsed_commit_content": "{"}, "parsed_commit_content is no JSON"),
    ):
        with pytest.raises(FieldError, match=message):
            r2e_gym({**row, **change}, profiles)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n", "a list of entries is wanted"),
        ("- 3\n", "entry 1: no mapping"),
        ("- match: {repo: a}\n", "`set` or `add`, must say something"),
        ("- set: {python: '3.9'}\n", "`match`, and `set` or `add`"),
        ("- match: {repo: a}\n  set: {pyhton: '3.9'}\n", "set: unknown pyhton; known: source, python"),
        ("- match: {repo: a}\n  set: {python: 3.9}\n", "python is no text; put versions in quotes"),
        (
            "- match: {repo: a, versions: [3.9]}\n  set: {python: '3.9'}\n",
            "no list of texts; put versions in quotes",
        ),
        ("- match: {repo: a}\n  add: {python: ['3']}\n", "add: unknown python"),
        ("- match: {repo: a}\n  set: {source: {kind: ftp, location: x}}\n", "source needs a kind"),
        ("- match: {repo: a}\n  set: {source: {url: x}}\n", "source: unknown url"),
        ("- match: {repo: a}\n  set: {packages: x}\n", "packages is no list of texts"),
        ("- match: [a]\n  set: {packages: [x]}\n", "match is no mapping"),
        ("- {\n", "cannot be read"),
    ],
)
def test_wrong_overrides_are_told_by_entry(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "o.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message) as caught:
        load_overrides(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_overrides_replace_every_field(tmp_path: Path) -> None:
    text = """
- match: {repo: swesmith/mewwts__*}
  set:
    source: {kind: sdist, location: addict==2.4.0, revision: abc}
    variables: {A: b}
    plugins: false
    test_command: python -m unittest
    runner: unittest
  add: {system_packages: [gcc]}
"""
    build = swe_smith(SMITH, overrides(tmp_path, text)).build
    assert (build.source.kind, build.source.location) == ("sdist", "addict==2.4.0")
    assert (build.variables, build.plugins, build.runner) == ((("A", "b"),), False, "unittest")
    assert build.system_packages == ("gcc",)
