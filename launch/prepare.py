"""Builds, validates and exports the tasks of a data set.

`python launch/prepare.py [data=… | +recipe=…] [key=value …]`. A second run finds what is done and goes on
with the rest. Every row ends as passed, failed, flaky, build_error, timeout or bad_row; its log lies below
<cache>/prepare/<data set>/logs, the summary beside the task file.

  python launch/prepare.py                                the small local set, made from real projects
  python launch/prepare.py data=local_full                the larger one
  python launch/prepare.py data=swe_smith filter='*addict*' limit=200
  python launch/prepare.py data=swe_smith retry=[flaky,timeout]       do these again
  python launch/prepare.py data=swe_smith action=report               what is known
  python launch/prepare.py source.path=rows.jsonl tasks_file=tasks.jsonl data.name=mine

Exit status: 0 done; 1 too few tasks passed; 2 the configuration, a list or the data set is wrong, or a filter
or an id to retry means no row;
3 no sandbox can be opened on this machine; 130 interrupted, 143 terminated (run it again to go on).
"""

import asyncio
import errno
import itertools
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # launch/ itself there would shadow modules

from rich.console import Console

from launch.config_compose import ConfigError
from launch.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED, OK, TERMINATED, UNUSABLE_MACHINE
from launch.prepare_config import Plan, help_lines, load_plan
from launch.prepare_local import bug_names, load_lists, run_local
from launch.prepare_view import View
from recipes.swe.build_env import EnvBuilder
from recipes.swe.dataset_types import BadRow, SourceTask
from recipes.swe.datasets import read_tasks
from recipes.swe.datasets_profiles import ProfileError, load_profiles
from recipes.swe.datasets_read import SourceError
from recipes.swe.prepare_report import by_repository, export, failures, write_report
from recipes.swe.prepare_run import Preparation
from recipes.swe.prepare_select import Selection
from recipes.swe.prepare_store import StatusStore, is_of
from recipes.swe.prepare_types import Outcome
from recipes.swe.tasks_prepare import only_one, sweep
from sandbox.errors import SandboxError
from sandbox.mini import MiniBackend

FAILURES_SHOWN = 30


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    overrides = sys.argv[1:] if argv is None else argv
    console = Console(stderr=True)
    if any(argument in ("-h", "--help") for argument in overrides):
        keys = "\n".join(f"  {line}" for line in help_lines())
        print(f"{__doc__}\nKeys and their values:\n{keys}")
        return OK
    try:
        plan = load_plan(overrides)
        return _run(plan, console)
    except (ConfigError, SourceError, ProfileError) as error:
        errors = error.errors if isinstance(error, ConfigError) else [str(error)]
        console.print(f"launch/prepare.py: {len(errors)} error(s):", style="bold red", highlight=False)
        for line in errors:
            console.print(f"  - {line}", markup=False, highlight=False, soft_wrap=True)
        return BAD_CONFIG
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on where it stopped")
        return INTERRUPTED


def _run(plan: Plan, console: Console) -> int:
    lists = load_lists(plan) if plan.source is None else None
    needed = plan.source is not None and plan.action != "report"  # a report needs no hub
    rows = _read(plan) if needed else ([], [])
    if plan.action != "run":
        return _known(plan, rows[0], console)
    _refuse_what_means_nothing(plan, _names(*rows) if lists is None else bug_names(*lists))
    cache_dir = plan.request.cache_dir
    _refuse_places(plan)
    previous = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        with only_one(cache_dir, lambda: console.print("another prepare is at work here; waiting")):
            sweep(cache_dir)
            if lists is not None:
                return asyncio.run(run_local(plan, *lists, console))
            return asyncio.run(_prepare(plan, *rows, console))
    except _TerminatedError:
        return TERMINATED
    except SandboxError as error:
        console.print(f"launch/prepare.py: no sandbox can be opened here: {error}", markup=False)
        console.print("What to change: python launch/doctor.py")
        return UNUSABLE_MACHINE
    except BrokenPipeError:  # nobody reads any more: launch.entry ends the command
        raise
    except OSError as error:
        full = error.errno == errno.ENOSPC
        more = f" below {cache_dir}: free some, or set paths.cache_dir" if full else ""
        text = f"launch/prepare.py: {error}{more}; what is done is kept"
        console.print(text, style="bold red", markup=False, soft_wrap=True)
        return FAILED
    finally:
        signal.signal(signal.SIGTERM, previous)


def _names(tasks: Sequence[SourceTask], bad: Sequence[BadRow]) -> list[tuple[str, str]]:
    """(id, repository) of all rows."""
    return [(task.instance_id, task.repo) for task in tasks] + [(row.row_id, "") for row in bad]


def _refuse_what_means_nothing(plan: Plan, rows: Sequence[tuple[str, str]]) -> None:
    """Raises ConfigError for a filter that lets nothing through, and for ids to retry that nothing has."""
    faults = Selection(plan.request).faults(rows)
    if faults:
        raise ConfigError(faults)


def _refuse_places(plan: Plan) -> None:
    """Raises ConfigError for a cache or a task file that cannot be where it is said to be."""
    if plan.request.output.is_dir():
        raise ConfigError([f"tasks_file: {plan.request.output} is a folder"])
    try:
        plan.request.cache_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError([f"paths.cache_dir: {plan.request.cache_dir}: {error.strerror}"]) from error


def _read(plan: Plan) -> tuple[list[SourceTask], list[BadRow]]:
    """All rows. Raises SourceError and ProfileError."""
    assert plan.source is not None
    found = read_tasks(plan.source, load_profiles(plan.overrides), adapter=plan.adapter)
    rows = list(itertools.islice(found, plan.limit))
    tasks = [row for row in rows if isinstance(row, SourceTask)]
    return tasks, [row for row in rows if isinstance(row, BadRow)]


async def _prepare(plan: Plan, tasks: Sequence[SourceTask], bad: Sequence[BadRow], console: Console) -> int:
    selection = Selection(plan.request)
    wanted = [task for task in tasks if selection.wants(task.instance_id, task.repo)]
    environments = len({(task.env_key, task.build) for task in wanted})
    stressed = plan.request.check.stress_repeats > 0
    async with MiniBackend() as backend:
        builder = EnvBuilder(plan.settings, backend, pythons=plan.pythons)
        with View(
            console, environments=environments, tasks=len(wanted) + len(bad), stressed=stressed
        ) as view:
            outcomes = await Preparation(plan.request, builder, backend, view.show).run(tasks, bad)
    return conclude(plan, tasks, outcomes, console)


def conclude(plan: Plan, tasks: Sequence[SourceTask], outcomes: Sequence[Outcome], console: Console) -> int:
    """Writes tasks and report, prints the summary, gives the exit status."""
    output = plan.request.output
    store = StatusStore(plan.request.cache_dir, plan.request.name)
    known = store.with_earlier(tasks, outcomes)
    passed = export(output, tasks, known)
    write_report(output.with_suffix(".report.json"), known)
    table = failures(outcomes, FAILURES_SHOWN)
    if table is not None:
        console.print(table, markup=False)
    console.print(by_repository(outcomes), markup=False)
    projects = len({row.repo for row in outcomes if row.status == "passed"})
    count = sum(row.status == "passed" for row in outcomes)
    print(
        f"[prepare] {count} of {len(outcomes)} rows passed, of {projects} projects; "
        f"{passed} tasks in {output}"
    )
    if count >= plan.min_tasks and projects >= plan.min_projects:
        return OK
    wanted = f"{plan.min_tasks} tasks or {plan.min_projects} projects"
    logs = store.folder / "logs"
    console.print(f"launch/prepare.py: fewer than {wanted} passed; logs: {logs}", style="bold red")
    return FAILED


def _known(plan: Plan, tasks: Sequence[SourceTask], console: Console) -> int:
    """`report` and `export`: from what is known, without building anything."""
    selection = Selection(plan.request)
    every = list(StatusStore(plan.request.cache_dir, plan.request.name).all())
    rows = [row for row in every if selection.wants(row.instance_id, row.repo)]
    _refuse_what_means_nothing(plan, [(row.instance_id, row.repo) for row in every])
    if plan.action == "report":
        return _report(plan, rows, console, whole=len(rows) == len(every))
    if plan.source is None:
        raise ConfigError([f"data={plan.request.name} is written by every run; there is nothing to export"])
    by_id = {row.instance_id: row for row in rows}
    same = [task for task in tasks if task.instance_id in by_id and is_of(by_id[task.instance_id], task)]
    count = export(plan.request.output, same, rows)
    changed = sum(task.instance_id in by_id for task in tasks) - len(same)
    if changed:
        console.print(f"{changed} rows were changed since they were validated and are left out; run it again")
    print(f"[prepare] {count} tasks in {plan.request.output}")
    return OK if count >= plan.min_tasks else FAILED


def _report(plan: Plan, rows: Sequence[Outcome], console: Console, *, whole: bool) -> int:
    """Prints what is known; the report file is only written when it is of the `whole` set."""
    path = plan.request.output.with_suffix(".report.json")
    if not rows:
        where = f"; what its last run made is in {path}" if path.is_file() else ""
        console.print(f"no row of data={plan.request.name} is known here{where}", markup=False)
        return FAILED
    table = failures(rows, FAILURES_SHOWN)
    if table is not None:
        console.print(table, markup=False)
    console.print(by_repository(rows), markup=False)
    if whole:
        write_report(path, rows)
    else:
        console.print(f"of a part of the rows; {path} is left as it is", markup=False)
    return OK


class _TerminatedError(BaseException):
    """SIGTERM; not an Exception, so that nobody below takes it for a failure to retry."""


def _raise_terminated(_number: int, _frame: object) -> None:
    raise _TerminatedError


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
