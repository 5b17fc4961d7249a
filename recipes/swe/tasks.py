"""Tasks as files: rows in SWE-smith's schema, read and checked, and what is derived from a row.

`load_tasks` is the one way from a JSONL file to `TaskInstance`s. It reads no environment and opens no
sandbox; whether a task's environment exists is asked of the cache when a rollout needs it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from recipes.swe.tasks_patch import apply_patch, changed_paths, replacements, reverse_patch
from recipes.swe.types import TaskInstance
from rewards.types import TestSpec
from sandbox.cache import EnvCache
from sandbox.types import EnvSpec

LOCAL_TASKS = Path("tasks") / "local.jsonl"
"""The local task set, below the cache directory."""
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
MAX_ERRORS_SHOWN = 20


class TaskFileError(ValueError):
    """A task file cannot be used; the message names the file and every bad line."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row, as SWE-smith writes it."""

    instance_id: str
    """<owner>__<name>.<8 hex>.<modifier>__<8 characters>."""
    patch: str
    """git diff that *introduces* the bug."""
    fail_to_pass: tuple[str, ...]
    """Exact ids of tests that fail because of the bug."""
    pass_to_pass: tuple[str, ...]
    """Exact ids of tests that pass with and without it."""
    image_name: str
    """Name of the container image with the environment, for backends that use one."""
    repo: str
    """swesmith/<owner>__<name>.<8 hex>."""
    problem_statement: str
    """What the agent is told."""

    def to_json(self) -> str:
        """One line of a task file, in SWE-smith's schema."""
        values = (
            self.instance_id,
            self.patch,
            list(self.fail_to_pass),
            list(self.pass_to_pass),
            self.image_name,
            self.repo,
            self.problem_statement,
        )
        return json.dumps(dict(zip(FIELDS, values, strict=True)), ensure_ascii=False)


def load_rows(path: Path) -> list[TaskRow]:
    """All rows of a JSONL file. Raises TaskFileError naming every bad line."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise TaskFileError(f"{path} does not exist; run: python launch/prepare.py") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFileError(f"{path} cannot be read: {error}") from error
    rows: list[TaskRow] = []
    errors: list[str] = []
    seen: dict[str, int] = {}
    # Not str.splitlines: a test id may hold a raw U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_row(line)
        except ValueError as error:
            errors.append(f"line {number}: {error}")
            continue
        if row.instance_id in seen:
            first = seen[row.instance_id]
            errors.append(f"line {number}: instance_id {row.instance_id} repeats line {first}")
            continue
        seen[row.instance_id] = number
        rows.append(row)
    if not rows and not errors:
        errors.append("no rows")
    if errors:
        more = [f"and {len(errors) - MAX_ERRORS_SHOWN} more"] if len(errors) > MAX_ERRORS_SHOWN else []
        raise TaskFileError("\n  ".join([f"{path}:", *errors[:MAX_ERRORS_SHOWN], *more]))
    return rows


def parse_row(line: str) -> TaskRow:
    """One line. Raises ValueError saying what is wrong with it."""
    try:
        loaded: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"a row is an object, not {type(loaded).__name__}")
    data = cast(dict[str, Any], loaded)
    missing = [name for name in FIELDS if data.get(name) is None]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    for name in ("instance_id", "repo", "problem_statement", "patch"):
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
        patch=data["patch"],
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        image_name=str(data["image_name"]),
        repo=data["repo"],
        problem_statement=data["problem_statement"],
    )


def _test_ids(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = data[name]
    if isinstance(value, str):  # SWE-bench writes the list as JSON text
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{name} is text, but no JSON list") from error
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast(list[Any], value)):
        raise ValueError(f"{name} is no list of texts")
    ids = cast(list[str], value)
    if len(set(ids)) != len(ids):
        raise ValueError(f"{name} lists a test twice")
    return tuple(ids)


def to_task(row: TaskRow, *, timeout_s: float = 300.0) -> TaskInstance:
    """The task that a rollout is given. `timeout_s` bounds one grading run."""
    return TaskInstance(
        instance_id=row.instance_id,
        repo=row.repo,
        problem_statement=row.problem_statement,
        env=EnvSpec(key=row.instance_id),
        tests=TestSpec(
            command=TEST_COMMAND,
            fail_to_pass=row.fail_to_pass,
            pass_to_pass=row.pass_to_pass,
            timeout_s=timeout_s,
        ),
    )


def load_tasks(path: Path, *, timeout_s: float = 300.0) -> list[TaskInstance]:
    """All tasks of a JSONL file, in order. Raises TaskFileError naming every bad line."""
    return [to_task(row, timeout_s=timeout_s) for row in load_rows(path)]


def gold_patch(row: TaskRow) -> str:
    """The patch that fixes the bug."""
    return reverse_patch(row.patch)


def gold_edits(row: TaskRow, cache: EnvCache) -> list[tuple[str, str, str]]:
    """The fix as (path, old_str, new_str) replacements, each old_str unique in its file when its turn
    comes. Reads the bugged files from the task's layer. Raises CacheError when it is not prepared."""
    env = cache.ensure(EnvSpec(key=row.instance_id))
    fix = gold_patch(row)
    edits: list[tuple[str, str, str]] = []
    for path in changed_paths(fix):
        bugged = read_layers(env.layers, f"{env.workdir}/{path}")
        fixed = apply_patch(fix, path, bugged)
        edits.extend((path, old, new) for old, new in replacements(bugged, fixed))
    return edits


def read_layers(layers: Sequence[Path], path: str) -> str:
    """Text of the file `path` (absolute inside) as a sandbox over these layers sees it."""
    for layer in layers:
        found = layer / path.lstrip("/")
        if found.is_file() and not found.is_symlink():
            return found.read_bytes().decode("utf-8")
    raise FileNotFoundError(path)
