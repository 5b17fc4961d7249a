"""Grades the logs of `logs/` with swebench 4.1.0 itself, and writes down what it says.

    python tests/rewards/crosscheck/compare.py EXPECTED.json

Runs where swebench 4.1.0 is installed (an environment of its own: it needs packages that nothing here does)
and uses its public grading calls as the harness does. The tests read the file that this writes.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
CASES = {
    "astropy": "astropy/astropy",
    "django": "django/django",
    "django_recorded": "django/django",
    "flask": "pallets/flask",
    "matplotlib": "matplotlib/matplotlib",
    "pylint": "pylint-dev/pylint",
    "pytest": "pytest-dev/pytest",
    "requests": "psf/requests",
    "scikit-learn": "scikit-learn/scikit-learn",
    "seaborn": "mwaskom/seaborn",
    "sphinx": "sphinx-doc/sphinx",
    "sqlparse": "pallets/flask",
    "sympy": "sympy/sympy",
    "unittest_suite": "django/django",
    "xarray": "pydata/xarray",
}
"""Log -> repository whose parser swebench uses for it."""


def grade(name: str, repo: str) -> dict[str, Any]:
    """What swebench makes of a log: the status of each id, and whether it counts when listed alone."""
    from swebench.harness import grading
    from swebench.harness.constants import MAP_REPO_VERSION_TO_SPECS

    text = (HERE / "logs" / f"{name}.txt").read_text("utf-8")
    spec: Any = SimpleNamespace(repo=repo, version=next(iter(MAP_REPO_VERSION_TO_SPECS[repo])))
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as file:
        file.write(f"{grading.START_TEST_OUTPUT}\n{text}\n{grading.END_TEST_OUTPUT}\n")
        file.flush()
        statuses, found = grading.get_logs_eval(spec, file.name)
    assert found
    verdicts: dict[str, bool] = {}
    for test_id in (*statuses, "no::such::test"):
        report = grading.get_eval_tests_report(
            statuses, {"FAIL_TO_PASS": [test_id], "PASS_TO_PASS": [], "instance_id": name}
        )
        verdicts[test_id] = grading.get_resolution_status(report) == grading.ResolvedStatus.FULL.value
    return {"repo": repo, "statuses": statuses, "resolved_when_listed_alone": verdicts}


def main() -> None:
    """Write the file."""
    from importlib.metadata import version

    found = {name: grade(name, repo) for name, repo in CASES.items()}
    whole = {"swebench": version("swebench"), "logs": found}
    Path(sys.argv[1]).write_text(json.dumps(whole, indent=1, ensure_ascii=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
