"""Makes a local task set: builds every project once, judges every listed bug, writes the task file.

Work that was done before is found again by its digest, so a second run does nothing and an
interrupted one goes on. One process at a time works on a cache. Only faults of ours (a dead index, a
broken sandbox) are retried; a bug that makes no valid task is left out and named in the report.
"""

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from recipes.swe.build_types import BuildError, BuildSettings
from recipes.swe.dataset_types import SourceTask
from recipes.swe.tasks_build import ProjectBuilder, build_spec
from recipes.swe.tasks_fetch import FetchError
from recipes.swe.tasks_patch import reverse_patch
from recipes.swe.tasks_projects import Bug, Project
from recipes.swe.tasks_validate import INFRASTRUCTURE_ERRORS, TEST_TIMEOUT_S, Validator, Verdict
from sandbox.cache_layer import layer_dir, list_layers, set_aside
from sandbox.cache_publish import write_atomically
from sandbox.types import Backend

ATTEMPTS = 2
"""Times that a fault of ours is met before the bug is given up."""
STALE_S = 3600.0


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """What to make, and where."""

    settings: BuildSettings
    """The cache, the index, and limits of builds."""
    parallel: int
    """Bugs judged at once."""
    graded: bool = True
    """Ask the grader about each; False where the set is validated afterwards."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    verdicts: tuple[Verdict, ...]
    """One for each bug, in the order of the list."""
    faults: Mapping[str, str]
    """Bugs without a verdict: instance id -> what failed on our side."""
    duration_s: float
    """Wall time."""

    @property
    def tasks(self) -> int:
        """Valid tasks."""
        return sum(verdict.row is not None for verdict in self.verdicts)

    @property
    def projects(self) -> int:
        """Projects with a valid task."""
        return len({verdict.row.repo for verdict in self.verdicts if verdict.row is not None})

    def counts(self) -> dict[str, int]:
        """Bugs by status, faults included."""
        counts = Counter[str](verdict.status for verdict in self.verdicts)
        if self.faults:
            counts["error"] = len(self.faults)
        return dict(counts)


type Progress = Callable[[str, str, str], None]
"""Called with (what, status, why) when a project is built or a bug judged."""


async def prepare(
    projects: Mapping[str, Project],
    bugs: Sequence[Bug],
    options: PrepareOptions,
    backend: Backend,
    progress: Progress,
) -> Report:
    """Builds and judges. Raises nothing for a project or bug that fails."""
    started = time.monotonic()
    builder = ProjectBuilder(options.settings, backend)
    validator = Validator(options.settings.cache_dir, backend, builder, graded=options.graded)
    broken = await _build(projects, bugs, builder, progress)
    gate = asyncio.Semaphore(options.parallel)

    async def judge(bug: Bug) -> Verdict | str:
        if bug.project in broken:
            return Verdict(bug.instance_id, "build_error", broken[bug.project])
        async with gate:
            outcome = await _judge(validator, projects[bug.project], bug)
        if isinstance(outcome, str):
            progress(bug.instance_id, "error", outcome)
        else:
            progress(bug.instance_id, outcome.status, outcome.reason)
        return outcome

    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(judge(bug)) for bug in bugs]
    outcomes = [(bug.instance_id, task.result()) for bug, task in zip(bugs, waiting, strict=True)]
    return Report(
        verdicts=tuple(outcome for _, outcome in outcomes if isinstance(outcome, Verdict)),
        faults={name: outcome for name, outcome in outcomes if isinstance(outcome, str)},
        duration_s=time.monotonic() - started,
    )


async def _build(
    projects: Mapping[str, Project], bugs: Sequence[Bug], builder: ProjectBuilder, progress: Progress
) -> dict[str, str]:
    """Builds the projects that have bugs, one after the other (they share the venv); faults by project."""
    broken: dict[str, str] = {}
    wanted = {bug.project for bug in bugs}
    for project in projects.values():
        if project.name not in wanted:
            continue
        try:
            await builder.env(project)
        except (BuildError, FetchError, *INFRASTRUCTURE_ERRORS) as error:
            broken[project.name] = str(error)
        fault = broken.get(project.name, "")
        progress(f"{project.name} {project.version}", "build_error" if fault else "built", fault)
    return broken


async def _judge(validator: Validator, project: Project, bug: Bug) -> Verdict | str:
    """The verdict, or what failed on our side each time."""
    fault = ""
    for _ in range(ATTEMPTS):
        try:
            return await validator.validate(project, bug)
        except (FetchError, *INFRASTRUCTURE_ERRORS) as error:
            fault = f"{type(error).__name__}: {error}"
    return fault


def write_tasks(report: Report, tasks_file: Path) -> None:
    """The task file; left alone when nothing is valid, or nothing new."""
    rows = [verdict.row for verdict in report.verdicts if verdict.row is not None]
    data = "".join(f"{row.to_json()}\n" for row in rows).encode()
    if rows and (not tasks_file.is_file() or tasks_file.read_bytes() != data):
        write_atomically(tasks_file, data)


def write_report(report: Report, path: Path) -> None:
    """What became of every bug, as JSON."""
    summary = {
        "counts": report.counts(),
        "duration_s": round(report.duration_s, 1),
        "bugs": [
            {"instance_id": verdict.instance_id, "status": verdict.status, "reason": verdict.reason}
            for verdict in report.verdicts
        ]
        + [
            {"instance_id": name, "status": "error", "reason": fault} for name, fault in report.faults.items()
        ],
    }
    write_atomically(path, (json.dumps(summary, indent=1) + "\n").encode())


def source_tasks(report: Report, projects: Mapping[str, Project]) -> list[SourceTask]:
    """The valid bugs as tasks of a data set, to be validated like those of any other."""
    by_repo = {project.repo: project for project in projects.values()}
    tasks: list[SourceTask] = []
    for row in (verdict.row for verdict in report.verdicts):
        if row is None:
            continue
        project = by_repo[row.repo]
        tasks.append(
            SourceTask(
                row.instance_id,
                row.repo,
                row.problem_statement,
                project.name,
                build_spec(project),
                start_patch=row.patch,
                gold_patch=reverse_patch(row.patch),
                test_patch="",
                fail_to_pass=row.fail_to_pass,
                pass_to_pass=row.pass_to_pass,
                image_name=row.image_name,
                timeout_s=TEST_TIMEOUT_S,
            )
        )
    return tasks


@contextmanager
def only_one(root: Path, waiting: Callable[[], None]) -> Generator[None]:
    """One prepare at a time on a cache; `waiting` is called when another one is at work."""
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / "prepare.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sweep(root: Path) -> None:
    """Removes what killed runs left unfinished, once it is old enough to be nobody's work in progress.

    Sets layers aside whose files somebody removed: else they would be taken for built."""
    for folder in ("layers", "envs", "downloads", "tasks"):
        for stale in (root / folder).glob(".tmp-*"):
            if time.time() - stale.lstat().st_mtime > STALE_S:
                if stale.is_dir():
                    shutil.rmtree(stale, ignore_errors=True)
                else:
                    stale.unlink(missing_ok=True)
    for name in list_layers(root):
        layer = layer_dir(root, name)
        if not any((layer / part).exists() for part in ("root", "image")):
            set_aside(root, name, "its files are gone")
