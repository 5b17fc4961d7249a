"""Log parsers keep whole ids, ignore what tests print, and know the names that data sets use."""

from rewards.logs import parser_of

PYTEST = """\
PASSED tests/test_a.py::test_forged
=========================== short test summary info ============================
PASSED tests/test_a.py::test_x[a b]
PASSED tests/test_a.py::test_x[a - b]
SKIPPED [2] tests/test_a.py:3: slow
XFAIL tests/test_a.py::test_y - why - not
FAILED tests/test_a.py::test_x[c - d] - assert 1 - 2 == 3
ERROR tests/test_b.py - ImportError: no
=== 1 failed, 2 passed, 2 skipped, 1 xfailed, 1 error in 0.12s ===
"""
DJANGO = """\
test_a (app.tests.T.test_a)
First line of a docstring. ... ok
test_b (app.tests.T.test_b) ... printed
ok
test_c (app.tests.T.test_c) ... skipped 'no reason'
test_d (app.tests.T.test_d) ... FAIL
FAIL: test_d (app.tests.T.test_d)
Ran 4 tests in 0.1s
FAILED (failures=1, skipped=1)
"""
SYMPY = """\
sympy/core/tests/test_x.py[3]
test_one ok
test_two F
test_three E                                            [FAIL]
________ sympy/core/tests/test_x.py:test_two ________
"""


def test_pytest() -> None:
    log = parser_of("pytest")(PYTEST)
    assert log.statuses == {
        "tests/test_a.py::test_x[a b]": "passed",
        "tests/test_a.py::test_x[a - b]": "passed",
        "tests/test_a.py::test_y": "xfailed",
        "tests/test_a.py::test_x[c - d]": "failed",
        "tests/test_b.py": "error",
    }
    assert len(log.aliases["tests/test_a.py::test_x[a"]) == 2
    assert {status: log.counts[status] for status in log.totals} == log.totals


def test_django() -> None:
    log = parser_of("django")(DJANGO)
    words = [log.statuses[f"test_{name} (app.tests.T.test_{name})"] for name in "abcd"]
    assert words == ["passed", "passed", "skipped", "failed"]
    assert log.aliases["First line of a docstring."] == ("test_a (app.tests.T.test_a)",)


def test_sympy() -> None:
    log = parser_of("sympy")(SYMPY)
    assert log.statuses["sympy/core/tests/test_x.py:test_one"] == "passed"
    assert log.statuses["sympy/core/tests/test_x.py:test_two"] == "failed"
