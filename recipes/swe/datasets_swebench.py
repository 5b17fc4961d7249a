"""Adapters of data sets in SWE-bench's form: SWE-bench (full, Lite, Verified), SWE-Gym, SWE-rebench.

A row is a commit, the fix (`patch`), hidden tests (`test_patch`) and the ids of tests. How the commit is
built is not in SWE-bench's and SWE-Gym's rows but in registries (`Profiles`); SWE-rebench's rows carry it.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from recipes.swe.dataset_types import BuildSpec, SourceTask
from recipes.swe.datasets_build import git_source, known, run_targets, spec_build, unknown_build
from recipes.swe.datasets_fields import (
    both_tests,
    optional_text,
    patch_of,
    safe_key,
    statement_of,
    struct_of,
    text_of,
    words_of,
)
from recipes.swe.datasets_profiles import Profiles

SWE_BENCH_IMAGE = "swebench/sweb.eval.x86_64.{}:latest"
SWE_GYM_IMAGE = "xingyaoww/sweb.eval.x86_64.{}:latest"
TIMEOUT_S = 1800.0
"""Of a test run, as swebench has it."""


def swe_bench(row: Mapping[str, Any], profiles: Profiles) -> SourceTask:
    """SWE-bench (full, Lite, Verified): one environment for each row."""
    repo, version = text_of(row, "repo"), text_of(row, "version")
    facts, spec = profiles.swebench.get(repo, {}), profiles.spec(repo, version)
    source = git_source(repo, row)
    build = unknown_build(source)
    if spec is not None:
        build = spec_build(
            repo,
            spec,
            source,
            requirement_files=facts["requirement_files"],
            environment_files=facts["environment_files"],
        )
    image = SWE_BENCH_IMAGE.format(text_of(row, "instance_id").lower().replace("__", "_1776_"))
    return _task(row, profiles, build, version, image)


def swe_gym(row: Mapping[str, Any], profiles: Profiles) -> SourceTask:
    """SWE-Gym: rows as SWE-bench's, over other repositories. Its own registry is part of a fork that is on no
    package index; swebench's is asked first, then the profile that swesmith has of the same repository."""
    repo, version = text_of(row, "repo"), optional_text(row, "version")
    image = SWE_GYM_IMAGE.format(text_of(row, "instance_id").lower().replace("__", "_s_"))
    if profiles.spec(repo, version) is not None:
        return dataclasses.replace(swe_bench(row, profiles), image_name=image)
    profile = next((it for it in profiles.swesmith.values() if f"{it['owner']}/{it['name']}" == repo), None)
    source = git_source(repo, row)
    build = unknown_build(source) if profile is None else spec_build(repo, profile, source, with_pytest=True)
    return _task(row, profiles, build, version, image)


def swe_rebench(row: Mapping[str, Any], profiles: Profiles) -> SourceTask:
    """SWE-rebench: `install_config` says how it is built, `requirements` what came out of that, exactly."""
    repo, config = text_of(row, "repo"), struct_of(row, "install_config")
    pinned = [
        line
        for line in optional_text(row, "requirements").replace("\r\n", "\n").split("\n")
        if re.match(r"[A-Za-z0-9][\w.-]*==", line.strip())
    ]
    build = spec_build(
        repo,
        config if not pinned else {**config, "packages": "", "pip_packages": None},
        git_source(repo, row),
        requirement_files=words_of(config.get("reqs_path"), "reqs_path"),
        environment_files=words_of(config.get("env_yml_path"), "env_yml_path"),
        pinned=pinned,
    )
    variables = config.get("env_vars")
    if isinstance(variables, Mapping):
        pairs = ((str(key), str(value)) for key, value in variables.items() if value is not None)
        build = dataclasses.replace(build, variables=tuple(pairs))
    image = optional_text(row, "docker_image") or optional_text(row, "image_name")
    return _task(row, profiles, build, optional_text(row, "version"), image)


def _task(
    row: Mapping[str, Any], profiles: Profiles, build: BuildSpec, version: str, image: str
) -> SourceTask:
    instance_id, repo = text_of(row, "instance_id"), text_of(row, "repo")
    build = known(profiles.adjusted(build, (repo,), version, instance_id), f"{repo} {version}".strip())
    fail_to_pass, pass_to_pass = both_tests(row)
    test_patch = patch_of(row, "test_patch", required=False)
    return SourceTask(
        instance_id=instance_id,
        repo=repo,
        problem_statement=statement_of(row),
        env_key=safe_key(instance_id),
        build=build,
        start_patch="",
        gold_patch=patch_of(row, "patch", required=True),
        test_patch=test_patch,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        targets=run_targets(build, test_patch, fail_to_pass + pass_to_pass),
        image_name=image,
        timeout_s=TIMEOUT_S,
    )
