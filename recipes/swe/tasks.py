"""Tasks as files: rows in SWE-smith's columns and ours, read and checked, and what is derived from a row.

`load_tasks` is the one way from a JSONL file to `TaskInstance`s. It reads no environment and opens no
sandbox; whether a task's environment exists is asked of the cache when a rollout needs it.
"""

from collections.abc import Sequence
from pathlib import Path

from recipes.swe.dataset_types import SourceTask
from recipes.swe.datasets_fields import safe_key
from recipes.swe.tasks_patch import apply_patch, changed_paths, replacements, reverse_patch
from recipes.swe.tasks_row import TEST_COMMAND, TaskRow, parse_row
from recipes.swe.types import TaskInstance
from rewards.types import TestSpec
from sandbox.cache import EnvCache
from sandbox.types import EnvSpec

__all__ = ["TEST_COMMAND", "TaskRow", "load_rows", "load_tasks", "parse_row", "to_task"]

LOCAL_TASKS = Path("tasks") / "local.jsonl"
"""The local task set, below the cache directory."""
MAX_ERRORS_SHOWN = 20


class TaskFileError(ValueError):
    """A task file cannot be used; the message names the file and every bad line."""


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


def to_task(row: TaskRow, *, timeout_s: float = 300.0) -> TaskInstance:
    """The task that a rollout is given. `timeout_s` bounds one grading run where the row does not say it."""
    return TaskInstance(
        instance_id=row.instance_id,
        repo=row.repo,
        problem_statement=row.problem_statement,
        env=EnvSpec(row.env_key or row.instance_id, row.env_digest),
        tests=tests_of(row, timeout_s=timeout_s),
    )


def tests_of(row: TaskRow, *, timeout_s: float = 300.0) -> TestSpec:
    """The tests of a row, as the grader takes them."""
    return TestSpec(
        command=row.test_command,
        fail_to_pass=row.fail_to_pass,
        pass_to_pass=row.pass_to_pass,
        timeout_s=timeout_s if row.timeout_s is None else row.timeout_s,
        runner=row.runner,
        test_timeout_s=row.test_timeout_s,
        targets=row.targets,
        log_format=row.log_format,
        test_patch=row.test_patch,
        lint=row.lint,
    )


def from_source(task: SourceTask, *, test_command: Sequence[str], env_digest: str = "") -> TaskRow:
    """The row of a task whose environment is built. `test_command`: that of its build in words, with the
    plugins that the environment holds."""
    key = safe_key(task.instance_id)
    return TaskRow(
        instance_id=task.instance_id,
        patch=task.start_patch,
        fail_to_pass=task.fail_to_pass,
        pass_to_pass=task.pass_to_pass,
        image_name=task.image_name,
        repo=task.repo,
        problem_statement=task.problem_statement,
        test_command=tuple(test_command),
        runner=task.build.runner,
        log_format=task.build.log_format,
        targets=task.targets,
        test_patch=task.test_patch,
        gold="" if task.gold_patch == reverse_patch(task.start_patch) else task.gold_patch,
        lint=task.build.lint,
        timeout_s=task.timeout_s,
        env_key="" if key == task.instance_id else key,
        env_digest=env_digest,
    )


def load_tasks(path: Path, *, timeout_s: float = 300.0) -> list[TaskInstance]:
    """All tasks of a JSONL file, in order. Raises TaskFileError naming every bad line."""
    return [to_task(row, timeout_s=timeout_s) for row in load_rows(path)]


def gold_patch(row: TaskRow) -> str:
    """The patch that fixes the bug."""
    return row.gold or reverse_patch(row.patch)


def gold_edits(row: TaskRow, cache: EnvCache) -> list[tuple[str, str, str]]:
    """The fix as (path, old_str, new_str) replacements, each old_str unique in its file when its turn
    comes. Reads the bugged files from the task's layer. Raises CacheError when it is not prepared."""
    env = cache.ensure(EnvSpec(row.env_key or row.instance_id, row.env_digest))
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
