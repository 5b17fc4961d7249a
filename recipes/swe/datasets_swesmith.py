"""Adapter of SWE-smith (SWE-smith-py): a row is a bug in a repository at a known state.

`patch` introduces the bug, so the fix is that patch turned round. All rows of an image share one environment;
how it is built is in swesmith's profiles, by the name of the mirror that `repo` holds. Tests are in the
repository, visible to the agent; nothing is hidden.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from recipes.swe.dataset_types import BuildSpec, RepoSource, SourceTask
from recipes.swe.datasets_build import REMOTE, known, spec_build, unknown_build
from recipes.swe.datasets_fields import (
    FieldError,
    both_tests,
    optional_text,
    parts_of,
    patch_of,
    safe_key,
    statement_of,
    text_of,
)
from recipes.swe.datasets_profiles import Profiles
from recipes.swe.tasks_patch import reverse_patch

TIMEOUT_S = 900.0
_ID_PREFIX = "../dev/"
"""Of ids where pytest was run with `-c /dev/null`; a root directory that is given leaves it out."""


def swe_smith(row: Mapping[str, Any], profiles: Profiles) -> SourceTask:
    """SWE-smith."""
    instance_id, repo = text_of(row, "instance_id"), text_of(row, "repo")
    mirror = repo.rpartition("/")[2]
    build, names = _build(mirror, profiles)
    shared = profiles.adjusted(build, (repo, *names), "", "")
    build = known(profiles.adjusted(build, (repo, *names), "", instance_id), repo)
    image = optional_text(row, "image_name")
    key = image.rpartition("/")[2] or mirror
    if build != shared:  # an override is about this row alone
        key += f"~{hashlib.sha256(repr(build).encode()).hexdigest()[:8]}"
    bug = patch_of(row, "patch", required=True)
    if any(part.binary for part in parts_of(bug, "patch")):
        raise FieldError("patch holds a binary file, so it cannot be turned round to be the fix")
    fail_to_pass, pass_to_pass = (tuple(map(_plain_id, ids)) for ids in both_tests(row))
    return SourceTask(
        instance_id=instance_id,
        repo=repo,
        problem_statement=statement_of(row),
        env_key=safe_key(key),
        build=build,
        start_patch=bug,
        gold_patch=reverse_patch(bug),
        test_patch="",
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        image_name=image,
        timeout_s=TIMEOUT_S,
    )


def _build(mirror: str, profiles: Profiles) -> tuple[BuildSpec, tuple[str, ...]]:
    """How the mirror's repository is built, and the repository's own name; both names fit in overrides."""
    facts = profiles.swesmith.get(mirror)
    if facts is None:
        return unknown_build(RepoSource("git", REMOTE.format(repo=f"swesmith/{mirror}"))), ()
    name = f"{facts['owner']}/{facts['name']}"
    source = RepoSource("git", REMOTE.format(repo=name), facts["commit"])
    log_format = "unittest" if facts["own_log_parser"] else "pytest"
    return spec_build(name, facts, source, log_format=log_format, with_pytest=True), (name,)


def _plain_id(test_id: str) -> str:
    return test_id.removeprefix(_ID_PREFIX)
