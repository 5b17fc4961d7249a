"""Judges one bug: is it a valid task? Runs the project's tests with and without it, twice each.

A valid bug makes tests fail that pass without it, the same ones each time, and is undone by its gold
patch (`prepare_check.judge_gold`; not asked here when the whole set is validated afterwards). Verdicts are
kept, so a prepare that was interrupted goes on where it stopped. Bugs that break tests only by chance,
or so badly that a test file cannot be collected, are no tasks.
"""

import asyncio
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from recipes.swe.build_env import BuiltEnv
from recipes.swe.build_task import task_layer
from recipes.swe.build_types import BuildError
from recipes.swe.grading import case_of, open_grader
from recipes.swe.prepare_check import judge_gold
from recipes.swe.tasks import TEST_COMMAND, TaskRow, gold_patch, parse_row, tests_of
from recipes.swe.tasks_build import ProjectBuilder
from recipes.swe.tasks_patch import make_patch, split_lines
from recipes.swe.tasks_projects import Bug, Project
from recipes.swe.tasks_statement import problem_statement
from rewards.errors import GraderError
from rewards.runner import TestRun, run_tests
from sandbox.cache import EnvRecord, layer_dir, open_record
from sandbox.cache_publish import publish_env, write_atomically
from sandbox.errors import SandboxError
from sandbox.types import MIB, Backend, Limits

VALIDATION_VERSION = "1"
"""Raise it when a change here, or in the grader, must judge all bugs again."""
REPEATS = 2
TEST_TIMEOUT_S = 60.0
OUTPUT_BYTES = 4 << 20
TEST_LIMITS = Limits(memory_bytes=1024 * MIB, pids=256, disk_bytes=256 * MIB)
TRACEBACK_COMMAND = (*TEST_COMMAND, "--tb=short", "-q")

INFRASTRUCTURE_ERRORS = (SandboxError, GraderError)
"""What `Validator.validate` raises when no verdict can be given."""

Status = Literal["valid", "harmless", "flaky", "unusable", "build_error"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one bug."""

    instance_id: str
    """Of the bug."""
    status: Status
    """`valid` is a task; `harmless` breaks no test; `flaky` did not repeat; `unusable` says why in `reason`;
    `build_error`: project or task could not be built."""
    reason: str
    """One sentence for a person."""
    row: TaskRow | None = None
    """The task, when valid."""


class _RejectedError(Exception):
    """Carries a verdict out of the steps below."""

    def __init__(self, status: Status, reason: str, *, lasting: bool = True) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason = reason
        self.lasting = lasting
        """False when a quieter or faster machine could say otherwise; such a verdict is not kept."""


class Validator:
    """Judges bugs below one cache root; several may be judged at once."""

    def __init__(self, root: Path, backend: Backend, builder: ProjectBuilder, *, graded: bool = True) -> None:
        """`root` is the cache (config paths.cache_dir). `graded`: ask the grader too, see above."""
        self._root = root
        self._backend = backend
        self._builder = builder
        self._graded = graded
        self._grader = open_grader(None, cached=False)  # it measures, and believes no older verdict
        self._clean: dict[str, asyncio.Task[frozenset[str]]] = {}

    async def validate(self, project: Project, bug: Bug) -> Verdict:
        """The verdict, from the last run when nothing has changed since. Raises SandboxError and
        GraderError when the machine, not the bug, is at fault; FetchError when a download is missing."""
        try:
            built = await self._builder.env(project)
            patch = self._patch(bug, built.repo)
        except (_RejectedError, BuildError) as error:
            return Verdict(bug.instance_id, "build_error", str(error))
        kept = self._verdict_path(project, bug, built)
        known = read_verdict(kept)
        try:
            task = await asyncio.to_thread(task_layer, self._root, built, patch, project.repo)
        except BuildError as error:
            return Verdict(bug.instance_id, "build_error", str(error))
        record = built.record(task)
        if known is None:
            try:
                row = await self._judge(project, bug, built, record, patch)
                failing = len(row.fail_to_pass)
                known = Verdict(bug.instance_id, "valid", f"{failing} tests fail because of it", row)
                lasting = True
            except _RejectedError as error:
                known = Verdict(bug.instance_id, error.status, error.reason)
                lasting = error.lasting
            if lasting:
                write_atomically(kept, dump_verdict(known).encode())
        if known.row is not None:
            publish_env(self._root, bug.instance_id, record)
        return known

    def _patch(self, bug: Bug, repo: str) -> str:
        """The patch that puts the bug in."""
        path = layer_dir(self._root, repo) / "root" / "testbed" / bug.path
        try:
            data = path.read_bytes()
        except OSError as error:
            raise _RejectedError("build_error", f"{bug.path} cannot be read: {error.strerror}") from error
        digest = hashlib.sha256(data).hexdigest()
        if digest != bug.sha256:
            why = f"{bug.path} has sha256 {digest}, the bug was made for {bug.sha256}"
            raise _RejectedError("build_error", why)
        clean = data.decode("utf-8")
        lines = split_lines(clean)
        new = [f"{line}\n" for line in bug.new_lines]
        bugged = "".join([*lines[: bug.start_line - 1], *new, *lines[bug.end_line :]])
        return make_patch(bug.path, clean, bugged, executable=bool(path.stat().st_mode & 0o111))

    async def _judge(
        self, project: Project, bug: Bug, built: BuiltEnv, record: EnvRecord, patch: str
    ) -> TaskRow:
        """The task row. Raises _RejectedError."""
        if not patch:
            raise _RejectedError("harmless", "it changes nothing")
        passing = await self._passing_clean(project, built)
        first = await self._run(project, record, traceback=True)
        classify(passing, [first])  # a hopeless one stops here
        others = [await self._run(project, record) for _ in range(REPEATS - 1)]
        fail_to_pass, pass_to_pass = classify(passing, [first, *others])
        row = TaskRow(
            instance_id=bug.instance_id,
            patch=patch,
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
            image_name=project.image_name,
            repo=project.repo,
            problem_statement=problem_statement(project, bug, fail_to_pass, first.output),
        )
        if self._graded:
            await self._check_gold(row, record)
        return row

    async def _passing_clean(self, project: Project, built: BuiltEnv) -> frozenset[str]:
        """Ids that pass in every run without a bug; found once per project."""
        if project.name not in self._clean:
            self._clean[project.name] = asyncio.create_task(self._run_clean(project, built.record(None)))
        try:
            return await self._clean[project.name]
        except INFRASTRUCTURE_ERRORS:
            self._clean.pop(project.name, None)  # the next attempt tries again
            raise

    async def _run_clean(self, project: Project, record: EnvRecord) -> frozenset[str]:
        runs = [await self._run(project, record) for _ in range(REPEATS)]
        for run in runs:
            if run.problems:
                why = f"the tests of {project.name} cannot be run: {run.problems[0]}"
                raise _RejectedError("build_error", why, lasting=False)
        passing = frozenset.intersection(*(_passed(run) for run in runs))
        if not passing:
            why = f"no test of {project.name} passes without a bug"
            raise _RejectedError("build_error", why, lasting=False)
        return passing

    async def _run(self, project: Project, record: EnvRecord, *, traceback: bool = False) -> TestRun:
        env = open_record(self._root, project.name, record)
        async with await self._backend.open(env.spec(TEST_LIMITS)) as sandbox:
            return await run_tests(
                TRACEBACK_COMMAND if traceback else TEST_COMMAND,
                project.test_files,
                sandbox,
                timeout_s=TEST_TIMEOUT_S,
                traceback=traceback,
                output_limit_bytes=OUTPUT_BYTES,
            )

    async def _check_gold(self, row: TaskRow, record: EnvRecord) -> None:
        env = open_record(self._root, row.instance_id, record)
        tests = tests_of(row, timeout_s=TEST_TIMEOUT_S)
        case = case_of(tests, env, self._backend, TEST_LIMITS)
        found = await judge_gold(self._grader, case, gold_patch(row))
        if found.status != "passed":
            raise _RejectedError("unusable", found.reason, lasting=False)

    def _verdict_path(self, project: Project, bug: Bug, built: BuiltEnv) -> Path:
        names = (project.repo, project.image_name)
        inputs = [
            VALIDATION_VERSION,
            built.python,
            built.venv,
            built.repo,
            project.test_files,
            *names,
            asdict(bug),
            *(() if self._graded else ("not graded",)),
        ]
        facts = json.dumps(inputs, sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
        return self._root / "tasks" / "verdicts" / f"{bug.instance_id}.{digest}.json"


def classify(passing: frozenset[str], runs: list[TestRun]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(FAIL_TO_PASS, PASS_TO_PASS), sorted, from the ids that pass without the bug and runs with it."""
    for run in runs:
        if run.timed_out:
            why = f"the tests take more than {TEST_TIMEOUT_S:.0f} s with it"
            raise _RejectedError("unusable", why, lasting=False)
        if run.problems:
            raise _RejectedError("unusable", f"the tests cannot be run with it: {run.problems[0]}")
    uncollected = sorted(
        test for run in runs for test, status in run.statuses.items() if _is_file_error(test, status)
    )
    if uncollected:
        raise _RejectedError("unusable", f"{uncollected[0]} cannot be imported with it")
    broken = [passing - _passed(run) for run in runs]
    if any(other != broken[0] for other in broken):
        different = min(frozenset.union(*broken) - frozenset.intersection(*broken))
        raise _RejectedError("flaky", f"{different} does not fail each time", lasting=False)
    if not broken[0]:
        raise _RejectedError("harmless", "no test fails")
    kept = passing - broken[0]
    if not kept:
        raise _RejectedError("unusable", "every test fails")
    return tuple(sorted(broken[0])), tuple(sorted(kept))


def _passed(run: TestRun) -> frozenset[str]:
    return frozenset(test for test, status in run.statuses.items() if status == "passed")


def _is_file_error(test: str, status: str) -> bool:
    return status == "error" and "::" not in test


def dump_verdict(verdict: Verdict) -> str:
    """As kept on disk."""
    row = verdict.row.to_json() if verdict.row is not None else None
    return json.dumps(
        {"id": verdict.instance_id, "status": verdict.status, "reason": verdict.reason, "row": row}
    )


def read_verdict(path: Path) -> Verdict | None:
    """The kept verdict; None when there is none, or none that can be read."""
    try:
        data = json.loads(path.read_text("utf-8"))
        row = parse_row(data["row"]) if data["row"] is not None else None
        return Verdict(str(data["id"]), data["status"], str(data["reason"]), row)
    except (OSError, ValueError, KeyError, TypeError):
        return None
