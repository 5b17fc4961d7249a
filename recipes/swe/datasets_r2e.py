"""Adapter of R2E-Gym: a row is a commit with its files before and after, and tests with their results.

There is no patch, no list of tests and no way to build it in a row. The fix is made from the contents of the
files that are no tests; the tests become a patch that adds `r2e_tests/`, which the agent never sees; which of
them fail before and pass after is read from the recorded outputs.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from recipes.swe.dataset_types import SourceTask
from recipes.swe.datasets_build import git_source, spec_build
from recipes.swe.datasets_fields import FieldError, safe_key, statement_of, struct_of, text_of
from recipes.swe.datasets_profiles import Profiles
from recipes.swe.tasks_patch import file_patch
from rewards.logs.pytest_log import parse_pytest
from rewards.policy import PatchPolicy

FOLDER = "r2e_tests"
TIMEOUT_S = 900.0
_DEFAULTS = {
    "python": "3.9",
    "install": "python -m pip install -e .",
    "test_cmd": "python -m pytest -W ignore",
}
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)


def r2e_gym(row: Mapping[str, Any], profiles: Profiles) -> SourceTask:
    """R2E-Gym (Subset, Lite, V1)."""
    name = text_of(row, "repo_name")
    facts = profiles.r2e_gym.get(name)
    if facts is None:
        known = ", ".join(sorted(profiles.r2e_gym))
        raise FieldError(f"repo_name {name} is not known ({known}); give it as a custom row")
    instance_id = f"{name}__{text_of(row, 'commit_hash')}"
    commit, results = struct_of(row, "parsed_commit_content"), struct_of(row, "execution_result_content")
    spec = {**_DEFAULTS, **facts, "packages": "", "pip_packages": facts.get("packages")}
    build = spec_build(
        facts["repo"], spec, git_source(facts["repo"], commit, "old_commit_hash"), with_pytest=True
    )
    build = profiles.adjusted(build, (facts["repo"],), "", instance_id)
    fail_to_pass, pass_to_pass = _tests(struct_of(row, "expected_output_json"), results)
    statement = statement_of(row)
    issue = _ISSUE.search(statement)
    return SourceTask(
        instance_id=instance_id,
        repo=facts["repo"],
        problem_statement=issue[1].strip() if issue else statement,
        env_key=safe_key(instance_id),
        build=build,
        start_patch="",
        gold_patch=_fix(commit),
        test_patch=_hidden_tests(results),
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        image_name=text_of(row, "docker_image"),
        timeout_s=TIMEOUT_S,
    )


def _fix(commit: Mapping[str, Any]) -> str:
    """The change of all files that the grader lets an agent change."""
    policy = PatchPolicy()
    parts: list[str] = []
    for entry in _records(commit.get("file_diffs"), "file_diffs"):
        try:
            path, misc = entry["header"]["file"]["path"], str(entry["header"].get("misc_line") or "")
            old, new = entry.get("old_file_content") or "", entry.get("new_file_content") or ""
        except (KeyError, TypeError) as error:
            raise FieldError(f"file_diffs has an entry without {error}") from error
        if entry.get("is_binary_file") or policy.why_path_dropped(path, ()) is not None:
            continue
        before = None if misc.startswith("new file") else old
        after = None if misc.startswith("deleted file") else new
        mode = str(cast(Mapping[str, Any], entry.get("index_line") or {}).get("mode") or "")
        parts.append(file_patch(path, before, after, executable=mode == "100755"))
    if not any(parts):
        raise FieldError("parsed_commit_content changes no file but tests")
    return "".join(parts)


def _hidden_tests(results: Mapping[str, Any]) -> str:
    names, codes = results.get("test_file_names"), results.get("test_file_codes")
    if not isinstance(names, list) or not isinstance(codes, list) or len(names) != len(codes) or not names:
        raise FieldError("execution_result_content holds no test files")
    files = dict(zip(cast(list[str], names), cast(list[str], codes), strict=True))
    paths = {name.removeprefix(f"{FOLDER}/"): code for name, code in files.items()}
    return "".join(file_patch(f"{FOLDER}/{name}", None, code) for name, code in sorted(paths.items()))


def _tests(
    expected: Mapping[str, Any], results: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Full ids of tests that are expected to pass, by what they did before the fix."""
    before = parse_pytest(str(results.get("old_commit_res_stdout") or "")).statuses
    after = parse_pytest(str(results.get("new_commit_res_stdout") or "")).statuses
    wanted = {
        re.sub(r"\x1b\[\d+m", "", name).split(" - ")[0] for name, it in expected.items() if it == "PASSED"
    }
    passing = [
        test_id for test_id, status in after.items() if status == "passed" and _short(test_id) in wanted
    ]
    if not passing:
        raise FieldError("no recorded result of the fixed commit is among those that are expected to pass")
    fail = tuple(test_id for test_id in passing if before.get(test_id) != "passed")
    if not fail:
        raise FieldError("every test that passes after the fix passes before it too")
    return fail, tuple(test_id for test_id in passing if before.get(test_id) == "passed")


def _short(test_id: str) -> str:
    """As R2E-Gym names a test: without its file, joined by dots."""
    return ".".join(test_id.split("::")[1:]).split(" - ")[0]


def _records(value: Any, name: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(i, Mapping) for i in cast(list[Any], value)):
        raise FieldError(f"{name} is no list of records")
    return cast(list[Mapping[str, Any]], value)
