"""What a verdict says, and which faults are ours and therefore never a reward."""

import dataclasses
import subprocess
from pathlib import Path

import pytest

from rewards.errors import GraderError
from rewards.grade import TIME_LIMIT, grade
from rewards.policy import PatchPolicy
from rewards.runner import run_tests
from rewards.types import TestSpec
from tests.rewards.project import (
    CORE_BUGGY,
    CORE_FIXED,
    FAIL_TO_PASS,
    FILES,
    GOLD,
    PASS_TO_PASS,
    SPEC,
    LocalSandbox,
    diff,
    edit,
    write_project,
)

INIT = FILES["shapes/__init__.py"]


async def test_gold_earns_one(local: LocalSandbox) -> None:
    result = await grade(SPEC, GOLD, local)
    assert result.reasons == ()
    assert (result.reward, result.resolved, result.f2p_fraction, result.p2p_broken) == (1.0, True, 1.0, 0)
    assert len(local.commands) == 2  # git apply, and one Python for all tests


@pytest.mark.parametrize("patch", ["", "\n"])
async def test_empty_patch_earns_nothing_without_running_anything(patch: str, local: LocalSandbox) -> None:
    result = await grade(SPEC, patch, local)
    assert (result.reward, result.reasons) == (0.0, ("the patch is empty",))
    assert local.commands == []


async def test_no_fix_and_a_broken_test(local: LocalSandbox) -> None:
    worse = CORE_BUGGY.replace('"[" + ', '"(" + ')
    result = await grade(SPEC, edit("shapes/core.py", worse), local)
    assert (result.reward, result.f2p_fraction) == (0.0, 0.0)
    assert result.p2p_broken == 6
    assert result.missing == ()
    assert "4 of 4 FAIL_TO_PASS did not pass" in result.reasons[0]
    assert "6 of 10 PASS_TO_PASS did not pass" in result.reasons[1]


async def test_a_mode_that_the_patch_does_not_expect_is_no_fault(local: LocalSandbox, tmp_path: Path) -> None:
    """git warns of it on standard error, which comes in front of what it prints."""
    for path in ("shapes/core.py", "shapes/data.txt"):
        (tmp_path / "testbed" / path).chmod(0o755)
    patch = GOLD.replace("--- a/", "index 1111111..2222222 100644\n--- a/")
    patch += edit("shapes/data.txt", "one\n").replace("--- a/", "old mode 100644\nnew mode 100755\n--- a/")
    result = await grade(SPEC, patch, local)
    assert (result.reward, result.reasons) == (1.0, ())


async def test_half_a_fix(local: LocalSandbox) -> None:
    half = CORE_BUGGY.replace("width + height", "6 if (width, height) == (2, 3) else width + height")
    result = await grade(SPEC, edit("shapes/core.py", half), local)
    assert (result.reward, result.f2p_fraction, result.p2p_broken) == (0.0, 0.5, 0)


@pytest.mark.parametrize(
    "listed",
    [
        "tests/test_area.py::test_area",
        "tests/test_area.py::test_area[plain-two by thre]",
        "tests/test_area.py::test_zero",
        "test_area.py::test_zero[plain]",
        "tests/test_area.py",
        "tests/test_label.py::test_label[plain-こんにちは]",
    ],
)
async def test_ids_match_exactly_or_are_missing(listed: str, local: LocalSandbox) -> None:
    if not listed.startswith("tests/"):
        with pytest.raises(GraderError, match="missing"):
            await grade(dataclasses.replace(SPEC, pass_to_pass=(listed,)), GOLD, local)
        return
    result = await grade(dataclasses.replace(SPEC, pass_to_pass=(listed,)), GOLD, local)
    assert (result.reward, result.missing, result.f2p_fraction) == (0.0, (listed,), 1.0)


@pytest.mark.parametrize("name", ["test_skipped[plain]", "test_expected_failure[plain]"])
async def test_only_passed_counts(name: str, local: LocalSandbox) -> None:
    spec = dataclasses.replace(SPEC, pass_to_pass=(f"tests/test_label.py::{name}",))
    result = await grade(spec, GOLD, local)
    assert (result.reward, result.p2p_broken, result.missing) == (0.0, 1, ())


async def test_hanging_test_is_the_policys_fault(local: LocalSandbox) -> None:
    hang = CORE_BUGGY.replace(
        "    return width + height",
        "    import signal, time\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(600)",
    )
    result = await grade(dataclasses.replace(SPEC, timeout_s=3), edit("shapes/core.py", hang), local)
    assert (result.reward, result.reasons) == (0.0, (TIME_LIMIT,))
    assert result.p2p_broken == len(PASS_TO_PASS)


async def test_a_thread_that_never_ends_does_not_hold_up_the_verdict(local: LocalSandbox) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    result = await grade(SPEC, GOLD + edit("shapes/__init__.py", INIT + thread), local)
    assert result.reasons == ()


async def test_patch_that_does_not_apply_is_our_fault(local: LocalSandbox) -> None:
    with pytest.raises(GraderError, match="does not apply"):
        await grade(SPEC, diff("shapes/core.py", "something else\n", "x\n"), local)


@pytest.mark.parametrize("patch", ["not a patch\n", GOLD[:-30], GOLD + "trailing words\n"])
async def test_unreadable_patch_is_our_fault(patch: str, local: LocalSandbox) -> None:
    with pytest.raises(GraderError, match="cannot be read"):
        await grade(SPEC, patch, local)


async def test_tests_that_are_not_there_are_our_fault(local: LocalSandbox) -> None:
    spec = dataclasses.replace(SPEC, pass_to_pass=("tests/test_gone.py::test_x",))
    with pytest.raises(GraderError, match=r"test files are missing: tests/test_gone\.py"):
        await grade(spec, GOLD, local)


@pytest.mark.parametrize(
    "command", [("python-of-nobody", "-m", "pytest"), ("tox",), (), ("python", "-m", "unittest")]
)
async def test_command_that_cannot_run_is_our_fault(command: tuple[str, ...], local: LocalSandbox) -> None:
    with pytest.raises(GraderError):
        await grade(dataclasses.replace(SPEC, command=command), GOLD, local)


async def test_restored_files_win(local: LocalSandbox) -> None:
    hidden = b"from shapes import area\n\n\ndef test_hidden():\n    assert area(3, 3) == 9\n"
    spec = TestSpec(SPEC.command, ("tests/test_hidden.py::test_hidden[plain]",), (), timeout_s=60)
    result = await grade(spec, GOLD, local, restore={"tests/test_hidden.py": hidden})
    assert result.reasons == ()
    assert result.reward == 1.0


async def test_new_deleted_renamed_odd_and_executable_files(local: LocalSandbox, tmp_path: Path) -> None:
    root = tmp_path / "agent"
    write_project(root)
    work = root / "testbed"

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.fileMode=true")
        done = subprocess.run(("git", *identity, *words), cwd=work, check=True, capture_output=True)
        return done.stdout.decode("utf-8", "surrogateescape")

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "base")
    (work / "shapes/core.py").write_text(CORE_FIXED)
    (work / "shapes/data.txt").unlink()
    (work / "shapes/with space.txt").write_text("x\r\ny\r\n")
    (work / "shapes/naïve \U0001f363.py").write_text("x = 1")
    (work / 'shapes/quote"d.txt').write_bytes(b"latin \xe9\n\x0cform feed\nlone \r return\n")
    (work / "shapes/run.sh").write_text("#!/bin/sh\n")
    (work / "shapes/run.sh").chmod(0o755)
    (work / "shapes/empty.py").write_text("")
    (work / "shapes/__init__.py").chmod(0o755)
    (work / "shapes/blob.bin").write_bytes(bytes(range(256)))
    git("add", "-A")
    result = await grade(SPEC, git("diff", "--cached", "--binary", "HEAD"), local)
    assert result.reasons == ()
    assert (result.reward, result.dropped_paths) == (1.0, ("shapes/blob.bin",))
    graded = tmp_path / "testbed"
    assert not (graded / "shapes/data.txt").exists()
    for name in ("with space.txt", "naïve \U0001f363.py", 'quote"d.txt', "run.sh", "empty.py", "__init__.py"):
        assert (graded / "shapes" / name).read_bytes() == (work / "shapes" / name).read_bytes()
        assert (graded / "shapes" / name).stat().st_mode == (work / "shapes" / name).stat().st_mode


async def test_all_statuses_by_exact_id(local: LocalSandbox) -> None:
    await local.write_file("/testbed/tests/test_broken.py", b"import nothing_of_this_name\n")
    more = (
        b"import pytest\n\n\n@pytest.fixture\ndef bad():\n    yield 1\n    raise RuntimeError\n\n\n"
        b"def test_teardown(bad):\n    pass\n\n\n@pytest.mark.xfail\ndef test_xpass():\n    pass\n"
    )
    await local.write_file("/testbed/tests/test_more.py", more)
    unit = (
        b"import unittest\n\nfrom shapes import countdown\n\n\nclass CountdownCase(unittest.TestCase):\n"
        b"    def test_length(self):\n        for n in range(3):\n            with self.subTest(n=n):\n"
        b"                self.assertEqual(len(countdown(n)), n)\n\n"
        b"    def test_wrong(self):\n        self.assertEqual(countdown(1), ())\n\n"
        b"    def test_wrong_inside(self):\n        with self.subTest():\n            self.fail()\n"
    )
    await local.write_file("/testbed/check/test_unit.py", unit)
    files = ["tests/test_area.py", "tests/test_label.py", "tests/test_broken.py", "tests/test_more.py"]
    files.append("check/test_unit.py")
    run = await run_tests(SPEC.command, files, local, timeout_s=60, traceback=True)
    assert run.problems == ()
    assert {run.statuses[test_id] for test_id in PASS_TO_PASS} == {"passed"}
    assert {run.statuses[test_id] for test_id in FAIL_TO_PASS} == {"failed"}
    assert run.statuses["tests/test_broken.py"] == "error"
    assert run.statuses["tests/test_more.py::test_teardown[plain]"] == "error"
    assert run.statuses["tests/test_more.py::test_xpass[plain]"] == "xpassed"
    assert run.statuses["tests/test_label.py::test_skipped[plain]"] == "skipped"
    assert run.statuses["tests/test_label.py::test_expected_failure[plain]"] == "xfailed"
    assert run.statuses["check/test_unit.py::CountdownCase::test_length"] == "passed"
    assert run.statuses["check/test_unit.py::CountdownCase::test_wrong"] == "failed"
    assert run.statuses["check/test_unit.py::CountdownCase::test_wrong_inside"] == "failed"
    assert b"nothing_of_this_name" in run.output


async def test_environment_of_the_run_is_fixed(local: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nonsense")
    code = (
        b"import os, sys\n\n\ndef test_environment():\n    assert os.environ['HOME'] == '/root'\n"
        b"    assert os.environ['TZ'] == 'UTC'\n    assert os.environ['PYTHONHASHSEED'] == '0'\n"
        b"    assert 'PYTEST_ADDOPTS' not in os.environ and 'PYTHONPATH' not in os.environ\n"
        b"    assert sys.stdin is not None\n"
    )
    await local.write_file("/testbed/tests/test_environment.py", code)
    run = await run_tests(SPEC.command, ("tests/test_environment.py",), local, timeout_s=60, traceback=True)
    assert set(run.statuses.values()) == {"passed"}, run.output.decode()


async def test_fail_fast_options_of_the_project_do_not_hide_results(local: LocalSandbox) -> None:
    await local.write_file("/testbed/pytest.ini", b"[pytest]\naddopts = -x --maxfail=1 -vv\n")
    result = await grade(SPEC, GOLD, local)
    assert result.reward == 1.0


PLUGINS = {
    "stands for the call": (
        "def pytest_pyfunc_call(pyfuncitem):\n    if 'area' in pyfuncitem.name:\n        return True\n"
    ),
    "exchanges the function": (
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n        if 'area' in item.name:\n            item.obj = dict\n"
    ),
    "takes the failure away": (
        "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        "    report = (yield).get_result()\n    if 'area' in item.name:\n        report.outcome = 'passed'\n"
    ),
}


@pytest.mark.parametrize("name", PLUGINS)
async def test_a_plugin_in_the_product_does_not_pass_tests(name: str, local: LocalSandbox) -> None:
    """Plugin projects load their own product for their tests; canaries have other names than tests."""
    await local.write_file("/testbed/conftest.py", b"pytest_plugins = ['shapes.plugin']\n")
    await local.write_file("/testbed/shapes/plugin.py", b"")
    patch = diff("shapes/plugin.py", "", PLUGINS[name])
    result = await grade(SPEC, patch, local, policy=PatchPolicy(lint=False))
    assert (result.reward, result.tests_passed) == (0.0, False)
