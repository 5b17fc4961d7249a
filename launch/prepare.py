"""Makes the local tasks: `python launch/prepare.py [key=value …]`, once; a second run finds all done.

Exit status: 0 done, 1 too few valid tasks or a download failed, 2 the configuration or a committed
list is wrong, 3 no sandbox can be opened on this machine, 130 interrupted (run it again to go on).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # launch/ itself there would shadow modules

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from launch.config_check import Between, check
from launch.config_compose import ROOT, ConfigError, compose_config, to_plain
from launch.config_schema import PathsSection
from launch.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED, OK, TERMINATED, UNUSABLE_MACHINE
from recipes.swe.tasks_fetch import FetchError, find_index
from recipes.swe.tasks_prepare import PrepareOptions, Report, only_one, prepare
from recipes.swe.tasks_projects import Bug, ListError, Project, load_bugs, load_projects
from sandbox.errors import SandboxError
from sandbox.mini import MiniBackend

MAX_PARALLEL = 4


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """Configuration of this command (configs/prepare.yaml)."""

    paths: PathsSection
    """Where things lie; only cache_dir matters here."""
    run_name: str
    """Only because paths.run_dir names it."""
    projects_file: str
    """Projects to make tasks from."""
    bugs_file: str
    """Bugs to put into them."""
    tasks_file: str
    """JSONL file to write."""
    parallel: Annotated[int, Between(0, 64)]
    """Bugs judged at once; 0: one per core, four at most."""
    min_tasks: Annotated[int, Between(0)]
    """Fewer valid tasks than this is a failure."""
    min_projects: Annotated[int, Between(0)]
    """Fewer projects with a valid task than this is a failure."""
    index_url: str
    """Package index; empty: the one that pip is configured for."""


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    overrides = sys.argv[1:] if argv is None else argv
    console = Console(stderr=True)
    if any(argument in ("-h", "--help") for argument in overrides):
        print(help_text())
        return OK
    try:
        config = load_config(overrides)
        projects, bugs = _load_lists(config)
    except ConfigError as error:
        console.print(f"launch/prepare.py: {len(error.errors)} error(s):", style="bold red", highlight=False)
        for line in error.errors:
            console.print(f"  - {line}", markup=False, highlight=False, soft_wrap=True)
        return BAD_CONFIG
    return _run(config, projects, bugs, console)


def help_text() -> str:
    """What this command does and what may be set."""
    composed, _ = compose_config([], config_name="prepare")
    plain, _ = to_plain(composed)
    values = "\n".join(f"  {key}={value}" for key, value in plain.items() if key != "paths")
    return f"{__doc__}\nKeys and their values (paths.cache_dir={plain['paths']['cache_dir']}):\n{values}"


def load_config(overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration, checked, with absolute paths. Raises ConfigError with every fault."""
    composed, errors = compose_config(overrides, config_name="prepare")
    plain, unresolved = to_plain(composed)
    errors = [*errors, *unresolved]
    said = {line.split(":", 1)[0] for line in errors}
    errors += [line for line in check(plain, PrepareConfig) if line.split(":", 1)[0] not in said]
    if errors:
        raise ConfigError(errors)
    plain["paths"]["cache_dir"] = str(ROOT / plain["paths"]["cache_dir"])
    for key in ("projects_file", "bugs_file", "tasks_file"):
        plain[key] = str(ROOT / plain[key])
    if not plain["index_url"]:
        try:
            plain["index_url"] = find_index(os.environ, Path.home())
        except FetchError as error:
            raise ConfigError([str(error)]) from error
    return plain


def _load_lists(config: dict[str, Any]) -> tuple[dict[str, Project], list[Bug]]:
    try:
        projects = load_projects(Path(config["projects_file"]))
        return projects, load_bugs(Path(config["bugs_file"]), projects)
    except ListError as error:
        raise ConfigError(error.errors) from error


def _run(config: dict[str, Any], projects: dict[str, Project], bugs: list[Bug], console: Console) -> int:
    options = PrepareOptions(
        cache_dir=Path(config["paths"]["cache_dir"]),
        tasks_file=Path(config["tasks_file"]),
        index_url=config["index_url"],
        parallel=config["parallel"] or min(MAX_PARALLEL, len(os.sched_getaffinity(0))),
    )
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        with only_one(options.cache_dir, lambda: console.print("another prepare is at work here; waiting")):
            report = asyncio.run(_prepare(projects, bugs, options, console))
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on where it stopped")
        return INTERRUPTED
    except _TerminatedError:
        return TERMINATED
    except SandboxError as error:
        console.print(f"launch/prepare.py: no sandbox can be opened here: {error}", markup=False)
        console.print("What to change: python launch/doctor.py")
        return UNUSABLE_MACHINE
    return _conclude(report, config, console)


async def _prepare(
    projects: dict[str, Project], bugs: list[Bug], options: PrepareOptions, console: Console
) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    steps = len(bugs) + len({bug.project for bug in bugs})
    async with MiniBackend() as backend:
        with Progress(*columns, console=console) as bars:
            bar = bars.add_task("preparing tasks", total=steps)

            def progress(what: str, status: str) -> None:
                bars.update(bar, advance=1)
                if not console.is_terminal or status not in ("valid", "built"):
                    bars.console.print(f"[prepare] {what}: {status}", markup=False, highlight=False)

            return await prepare(projects, bugs, options, backend, progress)


def _conclude(report: Report, config: dict[str, Any], console: Console) -> int:
    """Prints the summary and gives the exit status."""
    table = Table(box=None)
    for heading in ("bug", "status", "reason"):
        table.add_column(heading, overflow="fold")
    invalid = (verdict for verdict in report.verdicts if verdict.row is None)
    lost = [(verdict.instance_id, str(verdict.status), verdict.reason) for verdict in invalid]
    lost += [(name, "error", fault) for name, fault in report.faults.items()]
    for name, status, reason in lost:
        table.add_row(name, status, reason)
    if lost:
        console.print(table, markup=False)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(report.counts().items()))
    print(
        f"[prepare] {report.tasks} tasks of {report.projects} projects in {report.duration_s:.1f} s "
        f"({counts}); {config['tasks_file']}"
    )
    if report.tasks >= config["min_tasks"] and report.projects >= config["min_projects"]:
        return OK
    console.print(
        f"launch/prepare.py: fewer than {config['min_tasks']} tasks or {config['min_projects']} projects; "
        "see the reasons above",
        style="bold red",
    )
    return FAILED


class _TerminatedError(BaseException):
    """SIGTERM; not an Exception, so that nobody below takes it for a failure to retry."""


def _raise_terminated(_number: int, _frame: object) -> None:
    raise _TerminatedError


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
