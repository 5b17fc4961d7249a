"""Plain rows: everything that a task needs, said in the row itself. Also the form of exported specs.

`to_row` and `custom` are each other's inverse, so what any data set's adapter makes can be written, looked
at, edited and read again.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from recipes.swe.dataset_types import BuildSpec, RepoSource, SourceTask
from recipes.swe.datasets_build import known
from recipes.swe.datasets_fields import (
    FieldError,
    both_tests,
    is_key,
    optional_text,
    patch_of,
    safe_key,
    statement_of,
    struct_of,
    text_of,
    words_of,
)
from recipes.swe.datasets_profiles import ProfileError, Profiles, build_value

TIMEOUT_S = 300.0
MAX_TIMEOUT_S = 7 * 86_400.0
_REQUIRED = ("source", "python")


def custom(row: Mapping[str, Any], profiles: Profiles) -> SourceTask:
    """A plain row. `patch` is the fix; with `bug_patch` the fix is relative to the source with that bug."""
    instance_id = text_of(row, "instance_id")
    repo = optional_text(row, "repo") or instance_id
    version = str(row.get("version") or "")
    build = profiles.adjusted(_build(struct_of(row, "build")), (repo,), version, instance_id)
    fail_to_pass, pass_to_pass = both_tests(row)
    key = optional_text(row, "env_key")
    timeout_s = row.get("timeout_s")
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool):
        raise FieldError("timeout_s is no number")
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise FieldError(f"timeout_s is not above 0 and at most {MAX_TIMEOUT_S:.0f}")
    return SourceTask(
        instance_id=instance_id,
        repo=repo,
        problem_statement=statement_of(row),
        env_key=key if is_key(key) else safe_key(key or instance_id),
        build=known(build, repo),
        start_patch=patch_of(row, "bug_patch", required=False),
        gold_patch=patch_of(row, "patch", required=True),
        test_patch=patch_of(row, "test_patch", required=False),
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        targets=words_of(row.get("targets"), "targets"),
        image_name=optional_text(row, "image_name"),
        timeout_s=float(timeout_s),
    )


def _build(data: Mapping[str, Any]) -> BuildSpec:
    values = {name: value for name, value in data.items() if value is not None}
    if isinstance(values.get("variables"), list):  # as parquet keeps a mapping
        values["variables"] = dict(cast(list[tuple[str, str]], values["variables"]))
    try:
        fields = {name: build_value(name, value, "build") for name, value in values.items()}
    except ProfileError as error:
        raise FieldError(str(error)) from error
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        raise FieldError(f"build lacks {', '.join(missing)}")
    return BuildSpec(**fields)


def to_row(task: SourceTask) -> dict[str, Any]:
    """The task as a plain row. What has its default value is left out of `build`."""
    defaults = BuildSpec(RepoSource("dir", ""), "")
    build = {
        name: value
        for name, value in dataclasses.asdict(task.build).items()
        if name in _REQUIRED or getattr(task.build, name) != getattr(defaults, name)
    }
    if task.build.variables:
        build["variables"] = dict(task.build.variables)
    return {
        "instance_id": task.instance_id,
        "repo": task.repo,
        "problem_statement": task.problem_statement,
        "bug_patch": task.start_patch,
        "patch": task.gold_patch,
        "test_patch": task.test_patch,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
        "targets": list(task.targets),
        "image_name": task.image_name,
        "timeout_s": task.timeout_s,
        "env_key": task.env_key,
        "build": build,
    }
