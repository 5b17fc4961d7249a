"""Every runner gives a status for each exact id, and a test that hangs or dies costs only itself."""

import sys
import time
from pathlib import Path

import pytest

from rewards.runner import RunOptions, run_spec
from rewards.runners import delivery
from rewards.types import TestSpec
from tests.rewards.project import LocalSandbox

UNIT = '''\
import unittest
from shapes import area, countdown


class Plain(unittest.TestCase):
    def test_length(self):
        """Length of a countdown."""
        for n in range(3):
            with self.subTest(n=n):
                self.assertEqual(len(countdown(n)), n)

    def test_wrong(self):
        self.assertEqual(area(2, 3), 6)

    def test_wrong_inside(self):
        with self.subTest(i=1):
            self.fail()

    def test_error(self):
        raise RuntimeError

    @unittest.skip("PASSED")
    def test_skipped(self):
        pass

    def test_skips_a_subtest(self):
        with self.subTest(i=1):
            self.skipTest("flaky")

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    @unittest.expectedFailure
    def test_unexpected(self):
        pass


class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError

    def test_never(self):
        pass


class Later(unittest.IsolatedAsyncioTestCase):
    async def test_async(self):
        pass
'''
EXPECTED = {
    "test_length": "passed",
    "test_wrong": "failed",
    "test_wrong_inside": "failed",
    "test_error": "error",
    "test_skipped": "skipped",
    "test_skips_a_subtest": "skipped",
    "test_expected": "xfailed",
    "test_unexpected": "xpassed",
}


def unittest_spec(*ids: str, test_timeout_s: float | None = None) -> TestSpec:
    command = (sys.executable, "-m", "unittest")
    return TestSpec(command, ids, (), 60, runner="unittest", test_timeout_s=test_timeout_s)


async def test_unittest_statuses(local: LocalSandbox) -> None:
    await local.write_file("/testbed/tests/test_unit.py", UNIT.encode())
    run = await run_spec(unittest_spec("tests.test_unit.Plain.test_length"), local)
    assert run.problems == (), run.output.decode()
    assert {name: run.statuses[f"tests.test_unit.Plain.{name}"] for name in EXPECTED} == EXPECTED
    assert run.statuses["tests.test_unit.Later.test_async"] == "passed"
    assert run.status("tests.test_unit.Broken.test_never") == "missing"
    assert run.status("test_length (tests.test_unit.Plain)") == "passed"
    assert run.status("test_length (tests.test_unit.Plain.test_length)") == "passed"
    assert run.status("Length of a countdown.") == "passed"


async def test_a_tampered_base_class_gives_itself_away(local: LocalSandbox) -> None:
    base = b"import unittest\n\n\nclass Case(unittest.TestCase):\n    def run(self, result=None):\n"
    base += (
        b"        result.startTest(self)\n        result.addSuccess(self)\n        result.stopTest(self)\n"
    )
    await local.write_file("/testbed/shapes/testing.py", base)
    text = b"from shapes.testing import Case as Base\n\n\nclass One(Base):\n    def test_it(self):\n"
    await local.write_file("/testbed/check/test_base.py", text + b"        assert False\n")
    await local.write_file("/testbed/check/__init__.py", b"")
    run = await run_spec(unittest_spec("check.test_base.One.test_it"), local)
    assert run.statuses["check.test_base.One.test_it"] != "passed"
    spec = TestSpec((sys.executable, "-m", "pytest"), ("check/test_base.py::One::test_it",), (), 60)
    assert (await run_spec(spec, local)).status(spec.fail_to_pass[0]) != "passed"


HANGS = """\
import os, signal, time


def test_before():
    pass


def test_hangs():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        open("forked.pid", "w").write(str(os.getpid()))
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass


def test_dies():
    os._exit(1)


def test_after():
    pass
"""


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
async def test_a_hang_and_a_crash_cost_one_test_each(
    runner: str, local: LocalSandbox, tmp_path: Path
) -> None:
    if runner == "pytest":
        await local.write_file("/testbed/check/test_hang.py", HANGS.encode())
        prefix = "check/test_hang.py::"
        spec = TestSpec((sys.executable, "-m", "pytest"), (f"{prefix}test_after",), (), 100, test_timeout_s=3)
    else:
        head, _, body = HANGS.partition("\n\n\n")
        body = body.replace("def test_before", "def test_a_before").replace("()", "(self)")
        for call in ("fork", "setsid", "getpid"):
            body = body.replace(f"os.{call}(self)", f"os.{call}()")
        body = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
        text = f"{head}\nimport unittest\n\n\nclass Case(unittest.TestCase):\n{body}"
        await local.write_file("/testbed/check/__init__.py", b"")
        await local.write_file("/testbed/check/test_hang.py", text.encode())
        prefix = "check.test_hang.Case."
        spec = unittest_spec(f"{prefix}test_after", test_timeout_s=3)
    started = time.monotonic()
    run = await run_spec(spec, local)
    assert run.problems == (), run.output.decode()
    assert run.statuses[f"{prefix}test_hangs"] == "timeout"
    assert run.statuses[f"{prefix}test_dies"] == "crashed"
    assert run.statuses[f"{prefix}test_after"] == "passed"
    assert time.monotonic() - started < 60
    forked = int((tmp_path / "testbed/forked.pid").read_text())
    assert not Path(f"/proc/{forked}").exists()


@pytest.mark.parametrize("script", ['python -m pytest "$@"', 'true; exec pytest -v "$@"'])
async def test_a_wrapped_pytest_reports_too(script: str, local: LocalSandbox) -> None:
    script = script.replace("python ", f"{sys.executable} ").replace(
        "pytest -v", f"{sys.executable} -m pytest"
    )
    command = ("sh", "-c", script, "sh")
    test_id = "tests/test_area.py::test_zero[plain]"
    run = await run_spec(TestSpec(command, (test_id,), (), 60, runner="wrapped"), local)
    assert run.problems == (), run.output.decode()
    assert run.statuses[test_id] == "passed"
    assert run.statuses["tests/test_area.py::test_area[plain-two by three]"] == "failed"


async def test_results_from_a_log_alone(local: LocalSandbox) -> None:
    test_id = "tests/test_area.py::test_area[plain-sq[2]::x]"
    command = (sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider")
    spec = TestSpec(command, (test_id,), (), 60, runner="log", log_format="pytest")
    run = await run_spec(spec, local)
    assert run.problems == ()
    assert (run.channel, run.statuses[test_id]) == ("log", "passed")
    assert run.statuses["tests/test_area.py::test_area[fancy mode-two by three]"] == "failed"
    assert run.status("tests/test_area.py::test_area[fancy") == "failed"


async def test_ids_that_a_data_set_has_cut_at_a_space_mean_all_their_tests(local: LocalSandbox) -> None:
    cut = "tests/test_area.py::test_area[fancy"  # of a test that passes and one that fails with the bug
    whole = "tests/test_label.py::test_label[plain-a"
    run = await run_spec(TestSpec((sys.executable, "-m", "pytest"), (cut, whole), (), 60), local)
    assert run.problems == ()
    assert (run.status(cut), run.status(whole), run.channel) == ("failed", "passed", "signed")
    assert run.status("tests/test_area.py::test_are") == "missing"


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
async def test_an_interpreter_of_another_kind_compiles_the_runner_itself(
    runner: str, local: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_MAGIC", b"none")
    test_id = "tests/test_area.py::test_zero[plain]"
    spec = TestSpec((sys.executable, "-m", "pytest"), (test_id,), (), 60)
    if runner == "unittest":
        await local.write_file("/testbed/tests/test_unit.py", UNIT.encode())
        test_id = "tests.test_unit.Plain.test_length"
        spec = unittest_spec(test_id)
    run = await run_spec(spec, local)
    assert (run.problems, run.status(test_id)) == ((), "passed"), run.output.decode()


SPAWNS = """\
import concurrent.futures
import multiprocessing

import pytest

from shapes import countdown


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes(method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(len, [1, 2]).result(30) == 2
"""


async def test_a_test_may_start_processes_in_any_way(local: LocalSandbox) -> None:
    """`spawn` and `forkserver` look at `__main__`, which must be what it is for a plain pytest."""
    await local.write_file("/testbed/check/test_pool.py", SPAWNS.encode())
    ids = tuple(f"check/test_pool.py::test_other_processes[{way}]" for way in ("fork", "spawn", "forkserver"))
    run = await run_spec(TestSpec((sys.executable, "-m", "pytest"), ids, (), 60), local)
    assert run.problems == (), run.output.decode()
    assert [run.status(test_id) for test_id in ids] == ["passed", "passed", "passed"]


FORGED = """\


def load_tests(loader, tests, pattern):
    import unittest

    class Plain(unittest.TestCase):
        def id(self):
            return "shapes.tests.test_unit.Plain." + self._testMethodName

        def test_wrong(self):
            pass

    return unittest.TestSuite([Plain("test_wrong")])
"""


async def test_tests_that_the_product_makes_do_not_count(local: LocalSandbox) -> None:
    """`discover` asks packages for their tests, and these may call themselves as they like."""
    package = local.root / "testbed/shapes"
    package.joinpath("__init__.py").write_text(package.joinpath("__init__.py").read_text() + FORGED)
    await local.write_file("/testbed/shapes/tests/__init__.py", b"")
    await local.write_file("/testbed/shapes/tests/test_unit.py", UNIT.encode())
    test_id = "shapes.tests.test_unit.Plain.test_wrong"
    command = (sys.executable, "-m", "unittest", "discover")
    spec = TestSpec(command, (test_id,), (), 60, runner="unittest")
    run = await run_spec(spec, local, RunOptions(patched=("shapes/__init__.py",)))
    assert run.status(test_id) == "passed"
    assert any("that the product made" in problem for problem in run.problems)


async def test_the_runner_imports_nothing_from_the_project(local: LocalSandbox) -> None:
    for name in ("json", "binascii", "marshal", "grader_channel", "ctypes", "signal"):
        await local.write_file(f"/testbed/{name}.py", b"raise SystemExit('imported from the project')\n")
    test_id = "tests/test_area.py::test_zero[plain]"
    run = await run_spec(TestSpec((sys.executable, "-m", "pytest"), (test_id,), (), 60), local)
    assert (run.problems, run.status(test_id)) == ((), "passed"), run.output.decode()
