"""Configuration of `launch/prepare.py`: what each key may hold; the data set is training's."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from launch.config_check import Above, Between, check
from launch.config_compose import ROOT, ConfigError, compose_config, to_plain
from launch.config_schema import DataSection, PathsSection
from recipes.swe.build_types import BuildSettings
from recipes.swe.datasets_read import DataSource
from recipes.swe.prepare_select import SelectionError, matcher
from recipes.swe.prepare_types import CheckSettings, PrepareRequest
from recipes.swe.tasks_fetch import FetchError, find_index
from sandbox.types import MIB, Limits

MAX_PARALLEL = 4
Action = Literal["run", "report", "export"]
_OF_THE_DATA = ("+recipe=", "data=", "data.", "paths=", "paths.")
_SMALLEST = {"local": (24, 4), "local_full": (40, 6)}


@dataclass(frozen=True, slots=True)
class SourceSection:
    """Rows of a data set."""

    path: str | None
    """.jsonl, .json or .parquet file, folder of parquet files, or hub id; null: data.source."""
    split: str
    """Of the hub, or of a folder."""
    revision: str
    """On the hub; empty for the newest."""
    adapter: str
    """See recipes.swe.datasets.ADAPTERS; auto: seen from the rows."""


@dataclass(frozen=True, slots=True)
class CheckSection:
    """How a task is validated."""

    repeats: Annotated[int, Between(1, 1000)]
    """In peace."""
    stress_repeats: Annotated[int, Between(0, 1000)]
    """With every processor kept busy."""
    stress_processes: Annotated[int, Between(0, 1024)]
    """Busy processes; 0: two for each processor."""
    memory_mib: Annotated[int, Between(32)]
    """Memory of a sandbox that runs tests, MiB."""
    pids: Annotated[int, Between(8, 4_194_304)]
    """Its processes and threads."""
    disk_mib: Annotated[int, Between(8)]
    """Its writable layer, MiB."""


@dataclass(frozen=True, slots=True)
class BuildSection:
    """How environments are built."""

    timeout_s: Annotated[float, Above(0)]
    """Limit of one step, seconds."""
    memory_mib: Annotated[int, Between(64)]
    """Memory of a build, MiB."""
    pids: Annotated[int, Between(8, 4_194_304)]
    """Its processes and threads."""
    disk_mib: Annotated[int, Between(64)]
    """What it may write, MiB."""
    parallel: Annotated[int, Between(1, 64)]
    """Environments built at once."""
    git_hosts: list[str]
    """Hosts that commits are fetched from, `host` or `host:port`."""
    pythons: list[str]
    """Prefixes of interpreters."""


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """Configuration of the command (configs/prepare.yaml)."""

    paths: PathsSection
    """Where things lie; only cache_dir matters here."""
    run_name: str
    """Only because paths.run_dir names it."""
    action: Action
    """run, report or export."""
    filter: str
    """Only rows whose id or repository matches."""
    retry: list[str]
    """Ids and statuses to do again."""
    force: bool
    """Do all again."""
    tasks_file: str | None
    """JSONL file of the passed tasks; null: data.path."""
    source: SourceSection
    """Rows of a data set."""
    overrides: list[str]
    """YAML files with what is to be different for some repositories."""
    limit: Annotated[int | None, Between(1)]
    """Only the first rows."""
    validate: bool | None
    """Run the checks; null: for all sets but `local`."""
    check: CheckSection
    """How a task is validated."""
    build: BuildSection
    """How environments are built."""
    parallel: Annotated[int, Between(0, 64)]
    """Tasks judged at once; 0: one per core, four at most."""
    index_url: str
    """Package index; empty: the one that pip is configured for."""
    min_tasks: Annotated[int | None, Between(0)]
    """Fewer passed tasks are a failure."""
    min_projects: Annotated[int | None, Between(0)]
    """Fewer projects with a passed task are a failure."""
    projects_file: str
    """Projects that local sets are made from."""
    bugs_file: str | None
    """One list of bugs in place of the set's."""
    local_sets: dict[str, list[str]]
    """Lists of bugs of each set that is made here."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The configuration, ready to use."""

    action: Action
    """What to do."""
    request: PrepareRequest
    """Of the pipeline."""
    settings: BuildSettings
    """Of builds."""
    pythons: tuple[Path, ...]
    """Prefixes named by hand."""
    source: DataSource | None
    """Rows; None for a set that is made here."""
    adapter: str
    """Of the rows."""
    overrides: tuple[Path, ...]
    """Files of overrides."""
    limit: int | None
    """Only the first rows."""
    projects_file: Path
    """Of sets that are made here."""
    bugs_files: tuple[Path, ...]
    """Their lists of bugs."""
    validate: bool
    """Whether such a set is validated as others are."""
    min_tasks: int
    """Fewer passed tasks are a failure."""
    min_projects: int
    """Fewer projects are one."""


def load_plan(overrides: Sequence[str]) -> Plan:
    """The plan. Raises ConfigError with every fault."""
    ours = [text for text in overrides if not text.startswith(_OF_THE_DATA) or text.startswith("paths")]
    theirs = [text for text in overrides if text.startswith(_OF_THE_DATA)]
    composed, errors = compose_config(ours, config_name="prepare")
    plain, unresolved = to_plain(composed)
    training, more = compose_config(theirs, config_name="train")
    data_plain, _ = to_plain(training)
    data: dict[str, Any] = data_plain.get("data") or {}
    errors = [*errors, *unresolved, *(line for line in more if line not in errors)]
    said = {line.split(":", 1)[0] for line in errors}
    found = [*check(plain, PrepareConfig), *check(data, DataSection, "data")]
    errors += [line for line in found if line.split(":", 1)[0] not in said]
    if errors:
        raise ConfigError(errors)
    for pattern in [plain["filter"], *plain["retry"]]:
        try:
            matcher(pattern)
        except SelectionError as error:
            raise ConfigError([f"filter, retry: {error}"]) from error
    return _plan(plain, data)


def help_lines() -> list[str]:
    """Every key with its value."""
    composed, _ = compose_config([], config_name="prepare")
    plain, _ = to_plain(composed)
    lines = [f"{key}={value}" for key, value in plain.items() if key != "paths"]
    return [f"paths.cache_dir={plain['paths']['cache_dir']}", *lines]


def _plan(plain: dict[str, Any], data: dict[str, Any]) -> Plan:
    name: str = data["name"]
    path = plain["source"]["path"] or data.get("source")
    made_here = path is None
    lists = [plain["bugs_file"]] if plain["bugs_file"] else plain["local_sets"].get(name, [])
    if made_here and not lists:
        raise ConfigError([f"data={name} names no source of rows; set source.path or data.source"])
    _refuse_to_replace(plain, data)
    validate = name != "local" if plain["validate"] is None else plain["validate"]
    chosen = [key for key in ("filter", "retry", "force") if plain[key]]
    if made_here and not validate and chosen and plain["action"] == "run":
        why = f"data={name} is made whole and not validated row by row; give validate=true with it"
        raise ConfigError([f"{key}: {why}" for key in chosen])
    tasks, projects = _SMALLEST.get(name, (1, 1)) if made_here else (1, 1)
    build = plain["build"]
    cache_dir = ROOT / plain["paths"]["cache_dir"]
    return Plan(
        action=plain["action"],
        request=_request(plain, data),
        settings=BuildSettings(
            cache_dir,
            _check_index(plain["index_url"] or _index()),
            build["timeout_s"],
            _limits(build),
            tuple(build["git_hosts"]),
        ),
        pythons=tuple(Path(prefix) for prefix in build["pythons"]),
        source=None if made_here else _source(path, plain["source"]),
        adapter=plain["source"]["adapter"],
        overrides=tuple(ROOT / file for file in plain["overrides"]),
        limit=plain["limit"],
        projects_file=ROOT / plain["projects_file"],
        bugs_files=tuple(ROOT / file for file in lists),
        validate=validate,
        min_tasks=tasks if plain["min_tasks"] is None else plain["min_tasks"],
        min_projects=projects if plain["min_projects"] is None else plain["min_projects"],
    )


def _refuse_to_replace(plain: dict[str, Any], data: dict[str, Any]) -> None:
    """Rows of one's own are not to take the place of a set that is made here. Raises ConfigError."""
    if not plain["source"]["path"]:
        return
    errors: list[str] = []
    if data["name"] in plain["local_sets"]:
        errors.append(f"data.name: {data['name']} is made here; give the rows of source.path another name")
    if plain["tasks_file"] is None and Path(data["path"]).stem in plain["local_sets"]:
        errors.append(f"tasks_file: {data['path']} is of a set made here; name the file to write")
    if errors:
        raise ConfigError(errors)


def _check_index(url: str) -> str:
    try:
        if urlsplit(url).scheme in ("http", "https", "file"):
            return url
    except ValueError as error:
        raise ConfigError([f"index_url: {error}"]) from error
    raise ConfigError([f"index_url: {url!r} is no http or https address"])


def _request(plain: dict[str, Any], data: dict[str, Any]) -> PrepareRequest:
    check_section = plain["check"]
    return PrepareRequest(
        name=data["name"],
        cache_dir=ROOT / plain["paths"]["cache_dir"],
        output=ROOT / (plain["tasks_file"] or data["path"]),
        filter=plain["filter"],
        retry=tuple(plain["retry"]),
        force=plain["force"],
        parallel_builds=plain["build"]["parallel"],
        parallel_checks=plain["parallel"] or min(MAX_PARALLEL, len(os.sched_getaffinity(0))),
        check=CheckSettings(
            check_section["repeats"],
            check_section["stress_repeats"],
            check_section["stress_processes"],
            _limits(check_section),
        ),
    )


def _source(path: str, section: dict[str, Any]) -> DataSource:
    """Relative files start at the repository root; what is no file here is an id of the hub."""
    here = ROOT / path
    return DataSource(str(here) if here.exists() else path, section["split"], section["revision"])


def _limits(section: dict[str, Any]) -> Limits:
    return Limits(
        memory_bytes=section["memory_mib"] * MIB, pids=section["pids"], disk_bytes=section["disk_mib"] * MIB
    )


def _index() -> str:
    try:
        return find_index(os.environ, Path.home())
    except FetchError as error:
        raise ConfigError([str(error)]) from error
