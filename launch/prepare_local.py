"""Task sets that are made here: bugs put into real projects, judged, and validated like any other."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from launch.config_compose import ConfigError
from launch.exit_codes import FAILED, OK
from launch.prepare_config import Plan
from launch.prepare_view import View
from recipes.swe.prepare_report import by_repository, export, failures
from recipes.swe.prepare_report import write_report as write_outcomes
from recipes.swe.prepare_run import Preparation
from recipes.swe.prepare_store import StatusStore
from recipes.swe.prepare_types import Event
from recipes.swe.tasks_build import ProjectBuilder
from recipes.swe.tasks_prepare import PrepareOptions, Report, prepare, source_tasks, write_report, write_tasks
from recipes.swe.tasks_projects import Bug, ListError, Project, load_bugs, load_projects
from sandbox.mini import MiniBackend


def load_lists(plan: Plan) -> tuple[dict[str, Project], list[Bug]]:
    """The committed lists of projects and bugs. Raises ConfigError with every fault."""
    try:
        projects = load_projects(plan.projects_file)
        bugs = [bug for file in plan.bugs_files for bug in load_bugs(file, projects)]
    except ListError as error:
        raise ConfigError(error.errors) from error
    return projects, bugs


def bug_names(projects: Mapping[str, Project], bugs: Sequence[Bug]) -> list[tuple[str, str]]:
    """(id, repository) of all bugs."""
    return [(bug.instance_id, projects[bug.project].repo) for bug in bugs]


async def run_local(
    plan: Plan, projects: Mapping[str, Project], bugs: Sequence[Bug], console: Console
) -> int:
    """Makes the set; returns the exit status."""
    output = plan.request.output
    options = PrepareOptions(plan.settings, plan.request.parallel_checks, graded=not plan.validate)
    async with MiniBackend() as backend:
        names = {bug.project for bug in bugs}
        labels = {f"{project.name} {project.version}" for project in projects.values()}
        with View(console, environments=len(names), tasks=len(bugs)) as view:

            def progress(what: str, status: str, why: str) -> None:
                view.show(Event("env" if what in labels else "task", what, status, why))

            report = await prepare(projects, bugs, options, backend, progress)
        if not plan.validate:
            write_tasks(report, output)
            write_report(report, output.with_suffix(".report.json"))
            return _conclude(plan, report, console)
        write_report(report, output.with_suffix(".made.json"))
        tasks = source_tasks(report, projects)
        builder = ProjectBuilder(plan.settings, backend).envs
        with View(
            console, environments=len({task.env_key for task in tasks}), tasks=len(tasks), stressed=True
        ) as view:
            outcomes = await Preparation(plan.request, builder, backend, view.show).run(tasks, ())
    store = StatusStore(plan.request.cache_dir, plan.request.name)
    known = store.with_earlier(tasks, outcomes)
    passed = export(output, tasks, known)
    write_outcomes(output.with_suffix(".report.json"), known)
    table = failures(known, len(known))
    if table is not None:
        console.print(table, markup=False)
    console.print(by_repository(known), markup=False)
    of = len({row.repo for row in known if row.status == "passed"})
    print(f"[prepare] {passed} of {len(bugs)} bugs are tasks, of {of} projects; {output}")
    return _enough(plan, passed, of, f"logs: {store.folder / 'logs'}", console)


def _conclude(plan: Plan, report: Report, console: Console) -> int:
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
        f"({counts}); {plan.request.output}"
    )
    return _enough(plan, report.tasks, report.projects, "see the reasons above", console)


def _enough(plan: Plan, tasks: int, projects: int, where: str, console: Console) -> int:
    """The exit status."""
    if tasks >= plan.min_tasks and projects >= plan.min_projects:
        return OK
    wanted = f"{plan.min_tasks} tasks or {plan.min_projects} projects"
    console.print(f"launch/prepare.py: fewer than {wanted}; {where}", style="bold red")
    return FAILED
