"""One row of a task file: SWE-smith's columns and ours, written and read.

Files of SWE-smith itself are read as they are; what they do not say has the value that is true for them.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, cast, get_args

from rewards.types import RunnerName

TEST_COMMAND = ("python", "-m", "pytest")
FIELDS = (
    "instance_id",
    "patch",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "image_name",
    "repo",
    "problem_statement",
)
"""SWE-smith's columns, in its order."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row: SWE-smith's columns, and ours where they are not what they are there."""

    instance_id: str
    """Unique in the file; in SWE-smith <owner>__<name>.<8 hex>.<modifier>__<8 characters>."""
    patch: str
    """git diff that *introduces* the bug; empty where the repository has it already (then `gold` is set)."""
    fail_to_pass: tuple[str, ...]
    """Exact ids of tests that fail because of the bug."""
    pass_to_pass: tuple[str, ...]
    """Exact ids of tests that pass with and without it."""
    image_name: str
    """Name of the data set's container image, noted only."""
    repo: str
    """As in its data set."""
    problem_statement: str
    """What the agent is told."""
    test_command: tuple[str, ...] = TEST_COMMAND
    """Without ids, see `rewards.types.TestSpec`."""
    runner: RunnerName = "pytest"
    """Who runs the tests."""
    log_format: str = ""
    """With runner `log`."""
    targets: tuple[str, ...] = ()
    """What to run; empty: what the ids name."""
    test_patch: str = ""
    """Hidden tests: only the grader ever sees them."""
    gold: str = ""
    """The fix; empty: the patch turned round."""
    lint: bool = True
    """Whether patches are searched for code that knows of its tests."""
    timeout_s: float | None = None
    """Of one grading run; None: what the reader says."""
    test_timeout_s: float | None = None
    """Of one test."""
    env_key: str = ""
    """Key of the environment in the cache; empty: the instance id."""
    env_digest: str = ""
    """Of the layers that the task was validated with; others are refused. Empty: not known."""

    def to_json(self) -> str:
        """One line of a task file: SWE-smith's columns, and ours that say something."""
        data: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.default is MISSING or value != item.default:
                data[_COLUMNS.get(item.name, item.name)] = list(value) if isinstance(value, tuple) else value
        return json.dumps({name: data[name] for name in (*FIELDS, *data)}, ensure_ascii=False)


_COLUMNS = {"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS", "gold": "gold_patch"}
"""Names of columns that are not those of the fields."""


def parse_row(line: str) -> TaskRow:
    """One line. Raises ValueError saying what is wrong with it."""
    try:
        loaded: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"a row is an object, not {type(loaded).__name__}")
    data = cast(dict[str, Any], loaded)
    gold = _optional(data, "gold_patch", "")
    missing = [name for name in FIELDS if data.get(name) is None and not (name == "patch" and gold)]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    for name in ("instance_id", "repo", "problem_statement", *(() if gold else ("patch",))):
        if not isinstance(data[name], str) or not data[name].strip():
            raise ValueError(f"{name} is empty or no text")
    fail_to_pass = _test_ids(data, "FAIL_TO_PASS")
    if not fail_to_pass:
        raise ValueError("FAIL_TO_PASS is empty")
    pass_to_pass = _test_ids(data, "PASS_TO_PASS")
    both = set(fail_to_pass) & set(pass_to_pass)
    if both:
        raise ValueError(f"in FAIL_TO_PASS and PASS_TO_PASS: {min(both)}")
    return TaskRow(
        instance_id=data["instance_id"],
        patch=_optional(data, "patch", ""),
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        image_name=str(data["image_name"]),
        repo=data["repo"],
        problem_statement=data["problem_statement"],
        gold=gold,
        **_own_columns(data),
    )


def _own_columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that SWE-smith does not have. Raises ValueError."""
    runner = _optional(data, "runner", "pytest")
    if runner not in get_args(RunnerName):
        raise ValueError(f"runner is none of {', '.join(get_args(RunnerName))}: {runner!r}")
    lint = data.get("lint", True)
    if not isinstance(lint, bool):
        raise ValueError("lint is neither true nor false")
    limits: dict[str, float | None] = {}
    for name in ("timeout_s", "test_timeout_s"):
        value = data.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or value <= 0
        ):
            raise ValueError(f"{name} is no positive number")
        limits[name] = None if value is None else float(value)
    return {
        "test_command": _test_ids(data, "test_command", unique=False) or TEST_COMMAND,
        "runner": runner,
        "lint": lint,
        "targets": _test_ids(data, "targets"),
        **{name: _optional(data, name, "") for name in ("log_format", "test_patch", "env_key", "env_digest")},
        **limits,
    }


def _optional(data: Mapping[str, Any], name: str, default: str) -> str:
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def _test_ids(data: Mapping[str, Any], name: str, *, unique: bool = True) -> tuple[str, ...]:
    value = data.get(name)
    if value is None:
        return ()
    if isinstance(value, str):  # SWE-bench writes the list as JSON text
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{name} is text, but no JSON list") from error
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast(list[Any], value)):
        raise ValueError(f"{name} is no list of texts")
    ids = cast(list[str], value)
    if unique and len(set(ids)) != len(ids):
        raise ValueError(f"{name} lists a test twice")
    return tuple(ids)
