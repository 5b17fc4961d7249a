"""Our log parsers and verdict against swebench 4.1.0's own grading of the same logs.

`crosscheck/expected.json` is what swebench said (`crosscheck/compare.py`). Every difference is listed here
with its reason; a difference that is not, or one that is gone, fails.
"""

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from rewards.logs import ParsedLog, format_of_repo, parser_of
from rewards.runners.base import TestRun
from rewards.runners.log import log_problems
from rewards.types import TestSpec
from rewards.verdict import verdict
from tests.rewards.crosscheck.compare import CASES

HERE = Path(__file__).parent / "crosscheck"
EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text("utf-8"))
FORMATS = {"unittest_suite": "unittest"}
RECORDED = ("django_recorded", "sqlparse", "unittest_suite")
"""Trimmed: their totals say more than they list."""

XFAIL = "XFAIL counts as a pass (SWE-bench issue 654)"
SKIPPED = "a skipped test is neither success nor failure, so nothing failed and it is resolved"
PLACE = "the number of skips at a place, [2], is taken for an id"
_ZONES = "utils_tests.test_timezone.TimezoneTests"
WANTED: dict[tuple[str, str], str] = {
    ("astropy", "astropy/units/tests/test_units.py::test_known"): XFAIL,
    ("pytest", "testing/test_mark.py::test_known"): XFAIL,
    ("xarray", "xarray/tests/test_variable.py::test_pad"): XFAIL,
    ("xarray", "[1]"): PLACE,
    ("matplotlib", "[2]"): PLACE,
    ("django", "test_c (app.tests.PlainTests)"): SKIPPED,
} | {
    ("django_recorded", f"{name} ({_ZONES}.{name})"): SKIPPED
    for name in (
        "test_make_aware_pytz_ambiguous", "test_make_aware_pytz_non_existent", "test_make_naive_pytz",
        "test_setting_allows_fallback_to_pytz",
    )
}  # fmt: skip
"""(log, id) that swebench counts as resolved and we do not, and why."""


def read(name: str) -> ParsedLog:
    parse = parser_of(FORMATS.get(name, format_of_repo(CASES[name])))
    return parse((HERE / "logs" / f"{name}.txt").read_text("utf-8"))


def differences(name: str) -> dict[str, tuple[bool, bool]]:
    """Id -> (resolved for swebench, resolved for us), where these are not the same."""
    log = read(name)
    run = TestRun(dict(log.statuses), 1, False, b"", (), log.aliases, "log")
    found: dict[str, tuple[bool, bool]] = {}
    for test_id, theirs in EXPECTED["logs"][name]["resolved_when_listed_alone"].items():
        tests = TestSpec((), (test_id,), (), runner="log")
        ours = verdict(tests, run).resolved
        if ours != theirs:
            found[test_id] = (theirs, ours)
    return found


@pytest.mark.parametrize("name", CASES)
def test_verdicts_agree_but_for_known_bugs(name: str) -> None:
    wanted = {test_id for log, test_id in WANTED if log == name}
    assert differences(name) == dict.fromkeys(wanted, (True, False))


@pytest.mark.parametrize("name", CASES)
def test_every_failure_that_swebench_sees_is_seen(name: str) -> None:
    log = read(name)
    failed = [key for key, word in EXPECTED["logs"][name]["statuses"].items() if word in ("FAILED", "ERROR")]
    run = TestRun(dict(log.statuses), 1, False, b"", (), log.aliases, "log")
    # swebench notes a failed Django test a second time by its bare name.
    assert {run.status(test_id) for test_id in failed} <= {"failed", "error"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in RECORDED])
def test_the_logs_agree_with_their_own_totals(name: str) -> None:
    assert log_problems(read(name), 1) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_expectations_are_what_swebench_says(tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    venv.create(tmp_path / "venv", with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "swebench==4.1.0"], check=True)
    subprocess.run([python, HERE / "compare.py", tmp_path / "found.json"], check=True)
    assert json.loads((tmp_path / "found.json").read_text("utf-8")) == EXPECTED
