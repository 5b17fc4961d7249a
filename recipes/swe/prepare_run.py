"""Builds and validates the tasks of a data set: every row ends with a status, and nothing is done twice.

Rows are grouped by environment; each is built once, then its tasks are validated in peace, and at the end all
that passed once more while the processors are kept busy. A row's status is kept as soon as it is known, by
the digest of all that it depends on. Nothing that befalls one row, or one environment, stops the others; a
fault of the machine, the network or the disk is met twice and then noted so that the next run tries again.
"""

import asyncio
import errno
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from recipes.swe.build_env import BuiltEnv, EnvBuilder
from recipes.swe.build_plugins import plugins_of
from recipes.swe.build_task import task_layer
from recipes.swe.build_types import BUILD_VERSION, BuildError
from recipes.swe.dataset_types import BadRow, PrepareStatus, SourceTask
from recipes.swe.datasets_fields import safe_key
from recipes.swe.prepare_check import Checker, Finding, conclude
from recipes.swe.prepare_select import Selection
from recipes.swe.prepare_store import StatusStore, row_digest
from recipes.swe.prepare_stress import cpu_stress
from recipes.swe.prepare_types import CALM, Event, Outcome, PrepareRequest, Watch
from recipes.swe.tasks_fetch import FetchError
from rewards.errors import GraderError
from sandbox.cache import EnvRecord, env_path, open_record, read_record
from sandbox.cache_publish import publish_env
from sandbox.errors import CacheError, SandboxError
from sandbox.types import Backend

CHECK_VERSION = "2"
"""Raise it when a change here, or in the grader, must validate all tasks again."""
ATTEMPTS = 2
"""Times that a fault of ours is met before the row is given up for now."""
OUR_FAULTS = (SandboxError, FetchError, OSError)
_OF_THE_ROW = ("patch", "task", "start")
"""Faults of grading that another try would meet again."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A task whose environment is built."""

    task: SourceTask
    inputs: str
    record: EnvRecord
    plugins: tuple[str, ...]


class Preparation:
    """One run over the rows of a data set."""

    def __init__(
        self, request: PrepareRequest, builder: EnvBuilder, backend: Backend, watch: Watch = lambda _: None
    ) -> None:
        """`watch` is told of everything as it happens."""
        self._request = request
        self._root = request.cache_dir
        self._builder = builder
        self._watch = watch
        self._store = StatusStore(request.cache_dir, request.name)
        self._checker = Checker(request.cache_dir, backend, request.check)
        self._builds = asyncio.Semaphore(request.parallel_builds)
        self._checks = asyncio.Semaphore(request.parallel_checks)
        self._outcomes: dict[str, Outcome] = {}

    async def run(self, tasks: Sequence[SourceTask], bad: Sequence[BadRow]) -> list[Outcome]:
        """Does what is to be done; an outcome for every row that the filter lets through, in order."""
        selection = Selection(self._request)
        taken = {task.instance_id for task in tasks}
        for row in bad:
            name = row.row_id if row.row_id not in taken else f"{row.row_id} (row {row.position})"
            taken.add(name)
            if selection.wants(name, ""):
                self._done(Outcome(name, "", "bad_row", row.reason, inputs=""))
        wanted = [task for task in tasks if selection.wants(task.instance_id, task.repo)]
        groups: dict[tuple[str, str], list[SourceTask]] = defaultdict(list)
        calm: list[_Ready] = []
        for task in wanted:
            known = self._known(task, selection)
            if known is None:
                groups[task.env_key, repr(task.build)].append(task)
            elif not known.settled:
                calm.append(self._reopened(task, known))
            else:
                self._done(known, known=True)
        for ready in await asyncio.gather(*(self._group(group) for group in groups.values())):
            calm += ready
        await self._stress(calm)
        return list(self._outcomes.values())

    # -- what is known

    def _known(self, task: SourceTask, selection: Selection) -> Outcome | None:
        """What an earlier run found, if it still holds and is not to be done again."""
        known = self._store.get(task.instance_id)
        if known is None or not known.lasting or selection.again(known):
            return None
        if known.inputs.removesuffix(CALM) != self._inputs(task):
            return None
        if known.status == "passed":
            try:
                record = self._record(task)
                open_record(self._root, task.instance_id, record)
            except CacheError:
                return None  # its layers are gone, or not whole
            if record.digest != known.digest:
                return None  # another set on this cache has given the id to another environment
        return known

    def _record(self, task: SourceTask) -> EnvRecord:
        return read_record(env_path(self._root, safe_key(task.instance_id)))

    def _reopened(self, task: SourceTask, known: Outcome) -> _Ready:
        return _Ready(task, self._inputs(task), self._record(task), known.plugins)

    def _inputs(self, task: SourceTask) -> str:
        check = self._request.check
        facts = [CHECK_VERSION, BUILD_VERSION, asdict(task), check.repeats, check.stress_repeats]
        text = json.dumps(facts, sort_keys=True, default=repr)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    # -- building

    async def _group(self, tasks: Sequence[SourceTask]) -> list[_Ready]:
        """Builds the environment of some tasks and validates them; those that wait for the stress."""
        build, key = tasks[0].build, tasks[0].env_key
        async with self._builds:
            started = time.monotonic()
            built = await self._attempt(lambda: self._builder.build(build))
        if isinstance(built, _Fault):
            self._watch(Event("env", key, built.status, built.reason))
            for task in tasks:
                self._fail(task, built, time.monotonic() - started)
            return []
        self._watch(Event("env", key, "built"))
        plugins = await self._attempt(lambda: asyncio.to_thread(plugins_of, self._root, built))
        if isinstance(plugins, _Fault):
            for task in tasks:
                self._fail(task, plugins, time.monotonic() - started)
            return []
        ready = await asyncio.gather(*(self._task(task, built, plugins) for task in tasks))
        return [one for one in ready if one is not None]

    async def _task(self, task: SourceTask, built: BuiltEnv, plugins: tuple[str, ...]) -> _Ready | None:
        async with self._checks:
            started = time.monotonic()
            make = lambda: asyncio.to_thread(  # noqa: E731
                task_layer, self._root, built, task.start_patch, task.repo
            )
            layer = await self._attempt(make)
            if isinstance(layer, _Fault):
                self._fail(task, layer, time.monotonic() - started)
                return None
            ready = _Ready(task, self._inputs(task), built.record(layer), plugins)
            return await self._validate(ready, started)

    # -- validating

    async def _validate(self, ready: _Ready, started: float) -> _Ready | None:
        """Runs in peace. The task again when it is to be run under stress too."""
        count = max(1, self._request.check.repeats)
        findings = await self._repeats(ready, count, stop=True)
        if isinstance(findings, _Fault):
            self._fail(ready.task, findings, time.monotonic() - started)
            return None
        more = self._request.check.stress_repeats > 0 and findings[-1].status == "passed"
        return self._judge(ready, findings, started, calm=more)

    async def _stress(self, waiting: Sequence[_Ready]) -> None:
        """Runs all tasks that passed while the processors are kept busy."""
        if not waiting:
            return
        check = self._request.check

        async def one(ready: _Ready) -> None:
            async with self._checks:
                started = time.monotonic()
                findings = await self._repeats(ready, check.stress_repeats, stop=False)
                if isinstance(findings, _Fault):
                    self._fail(ready.task, findings, time.monotonic() - started)
                else:
                    peace = [Finding("passed", "", "")] * max(1, check.repeats)
                    self._judge(ready, [*peace, *findings], started, calm=False)

        async with cpu_stress(check.stress_processes):
            await asyncio.gather(*(one(ready) for ready in waiting))

    async def _repeats(self, ready: _Ready, count: int, *, stop: bool) -> "list[Finding] | _Fault":
        """`stop`: no more repeats of what failed in all of two."""
        findings: list[Finding] = []
        repeat = partial(self._checker.repeat, ready.task, ready.record, ready.plugins)
        for _ in range(count):
            found = await self._attempt(repeat)
            if isinstance(found, _Fault):
                return found if found.status != "build_error" else replace(found, status="failed")
            findings.append(found)
            if stop and len(findings) == ATTEMPTS and all(one.status != "passed" for one in findings):
                break
        return findings

    def _judge(
        self, ready: _Ready, findings: Sequence[Finding], started: float, *, calm: bool
    ) -> _Ready | None:
        """Concludes, keeps and publishes; the task again when `calm` and passed."""
        checked = conclude(findings)
        outcome = Outcome(
            ready.task.instance_id, ready.task.repo, checked.status, checked.reason,
            inputs=ready.inputs + (CALM if calm else ""), lasting=checked.lasting,
            duration_s=round(time.monotonic() - started, 3), digest=ready.record.digest,
            plugins=ready.plugins, row=row_digest(ready.task),
        )  # fmt: skip
        self._keep(outcome, checked.log, ready.record if checked.status == "passed" else None)
        if calm:
            self._watch(Event("calm", outcome.instance_id, "passed in peace"))
            return ready
        self._done(outcome)
        return None

    # -- keeping

    def _keep(self, outcome: Outcome, log: str, record: EnvRecord | None) -> None:
        """A status that cannot be kept (a full disk) is still told, and the next run does it again."""
        try:
            self._store.log(outcome.instance_id, log)
            if record is not None:
                publish_env(self._root, safe_key(outcome.instance_id), record)
            self._store.put(outcome)
        except OSError as error:
            self._watch(Event("task", outcome.instance_id, outcome.status, f"not kept: {error}"))

    def _done(self, outcome: Outcome, *, known: bool = False) -> None:
        if not known and outcome.status == "bad_row":
            self._keep(outcome, f"{outcome.reason}\n", None)
        self._outcomes[outcome.instance_id] = outcome
        self._watch(Event("task", outcome.instance_id, outcome.status, outcome.reason, known))

    def _fail(self, task: SourceTask, fault: "_Fault", duration_s: float) -> None:
        outcome = Outcome(
            task.instance_id, task.repo, fault.status, fault.reason, self._inputs(task),
            lasting=fault.lasting, duration_s=round(duration_s, 3), row=row_digest(task),
        )  # fmt: skip
        self._keep(outcome, f"{fault.reason}\n\n{fault.log}", None)
        self._done(outcome)

    async def _attempt[T](self, work: Callable[[], Awaitable[T]]) -> "T | _Fault":
        """What `work` gives, or why it cannot be had."""
        fault = _Fault("build_error", "")
        for _ in range(ATTEMPTS):
            try:
                return await work()
            except BuildError as error:
                kind: PrepareStatus = "timeout" if error.timed_out else "build_error"
                fault = _Fault(kind, str(error), error.lasting and not error.timed_out, error.log)
                if error.lasting or error.timed_out:
                    return fault
            except GraderError as error:
                ours = error.kind not in _OF_THE_ROW
                fault = _Fault("failed", str(error), lasting=not ours)
                if not ours:
                    return fault
            except OUR_FAULTS as error:
                fault = _Fault("build_error", f"{type(error).__name__}: {error}", lasting=False)
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    break
        return fault


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why there is no result."""

    status: PrepareStatus
    reason: str
    lasting: bool = True
    log: str = ""
