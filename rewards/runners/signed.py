"""Runs a plan under the supervisor inside the sandbox and reads back its signed results.

The other side is `rewards.inside`. What happened to the run itself is judged here: whether results can be
trusted, and whether a missing result may be our fault.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from rewards.errors import GraderError
from rewards.logs.pytest_log import other_names
from rewards.runners.base import (
    RunnerDiedError,
    RunOptions,
    TestRun,
    run_environment,
    tail,
    was_out_of_memory,
)
from rewards.runners.delivery import GRADER_DIR, PLUGIN_FILES, program, source, standard_input
from rewards.types import Exhausted, GradingExecResult, GradingSandbox, TestSpec

NO_EQUAL = "an object equals anything"
"""Begins what `grader_equal` tells."""
TESTS_FAILED = 1
"""Exit status when tests failed. The canaries always fail, so any other status is wrong."""
GRACE_S = 15.0
"""How long after the run's deadline the supervisor may take to write its results."""
_RESULT_LIMIT_BYTES = 64 << 20
_MISSING, _NOT_STARTED, _FULL = 97, 98, 96
_DEAD = frozenset({"failed", "error", "skipped", "xfailed", "crashed", "timeout"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What the supervisor is to run."""

    kind: Literal["pytest", "unittest", "wrapped"]
    """Which side inside does it."""
    python: str
    """The environment's interpreter, for the supervisor too."""
    targets: tuple[str, ...]
    """Of the run."""
    must_exist: tuple[str, ...] = ()
    """Paths, relative to the work directory, that are the task's own."""
    request: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Whatever else the side inside reads."""


async def run_signed(plan: Plan, tests: TestSpec, sandbox: GradingSandbox, options: RunOptions) -> TestRun:
    """One run. Raises GraderError when it could not begin, RunnerDiedError when it ended without results."""
    key, started, canary = secrets.token_bytes(32), secrets.token_hex(16), secrets.token_hex(8)
    result_path = f"{GRADER_DIR}/result-{secrets.token_hex(8)}"
    request = {
        "kind": plan.kind,
        "canary": canary,
        "started": started,
        "result": result_path,
        "workdir": tests.workdir,
        "traceback": options.traceback,
        "targets": plan.targets,
        "patched": options.patched,
        "must_exist": plan.must_exist,
        "timeout_s": tests.timeout_s,
        "test_timeout_s": tests.test_timeout_s,
        **plan.request,
    }
    if plan.kind == "wrapped":
        await _install(sandbox)
    given = standard_input(plan.kind, key, request)
    done = await _execute(plan, given, tests, sandbox, options)
    if started.encode() not in done.output:
        _explain_no_start(plan, done)
    if done.timed_out:
        raise RunnerDiedError("the test runner did not end at its time limit", "unresponsive")
    if done.exit_status == _FULL:
        raise RunnerDiedError("the disk was too full for the results of the tests", "disk")
    results = await _read_results(sandbox, result_path, key)
    if results is None or done.exit_status != 0:
        text = f"the test process ended with status {done.exit_status} and left no authentic results"
        raise RunnerDiedError(text, "runner_died")
    run = judge(results, canary, done.output, await _exhausted(results, sandbox))
    return run if plan.kind == "unittest" else replace(run, aliases=pytest_aliases(run.statuses))


async def _install(sandbox: GradingSandbox) -> None:
    try:
        for name in PLUGIN_FILES:
            await sandbox.write_file(f"{GRADER_DIR}/{name}.py", source(name).encode())
    except Exception as error:
        raise GraderError(f"the sandbox failed before tests ran: {error!r}", "sandbox") from error


async def _execute(
    plan: Plan,
    given: bytes,
    tests: TestSpec,
    sandbox: GradingSandbox,
    options: RunOptions,
) -> GradingExecResult:
    try:
        return await sandbox.exec(
            (plan.python, "-s", "-c", program()),
            timeout_s=tests.timeout_s + GRACE_S,
            env=run_environment(),
            cwd=tests.workdir,
            stdin=given,
            output_limit_bytes=options.output_limit_bytes,
        )
    except Exception as error:
        raise RunnerDiedError(f"the sandbox failed while tests ran: {error!r}", "lost") from error


def _explain_no_start(plan: Plan, done: GradingExecResult) -> None:
    """Raises: nothing of the project ran before a runner of ours would have said that it is there, except in
    a wrapped command, whose own steps come first."""
    how = f"(status {done.exit_status}, timed out: {done.timed_out}): {tail(done.output)}"
    if done.exit_status == _MISSING:
        raise GraderError(tail(done.output), "task")
    if plan.kind == "wrapped" and done.exit_status == _NOT_STARTED:
        raise RunnerDiedError(f"no pytest reported from inside the test command {how}", "runner_died")
    raise GraderError(f"the test runner did not start {how}", "start")


async def _read_results(sandbox: GradingSandbox, path: str, key: bytes) -> Mapping[str, Any] | None:
    """The signed results; None when they are missing or not signed by our runner."""
    try:
        data = await sandbox.read_file(path, limit_bytes=_RESULT_LIMIT_BYTES)
    except Exception as error:
        # Code under test can leave anything at the path: nothing, a directory, a FIFO, a loop of links.
        if isinstance(error, OSError | ValueError) and not isinstance(error, ConnectionError | TimeoutError):
            return None
        raise RunnerDiedError(f"the sandbox failed while results were read: {error!r}", "lost") from error
    signature, _, body = data.partition(b"\n")
    expected = hashlib.blake2b(body, key=key, digest_size=32).hexdigest().encode()
    if not hmac.compare_digest(signature, expected):
        return None
    loaded: Any = json.loads(body)
    return cast(Mapping[str, Any], loaded)


async def _exhausted(results: Mapping[str, Any], sandbox: GradingSandbox) -> Exhausted | None:
    """What ran out: the supervisor saw the time limit or the full disk, the sandbox counts memory kills."""
    if results["timed_out"]:
        return "time"
    broken = not results["finished"] or any(status != "passed" for status in results["statuses"].values())
    if broken and await was_out_of_memory(sandbox):
        return "memory"
    return "disk" if results["disk_full"] else None


def judge(
    results: Mapping[str, Any], canary: str, output: bytes, exhausted: Exhausted | None = None
) -> TestRun:
    """The run that authentic results describe."""
    everything = cast(dict[str, str], results["statuses"])
    statuses = {test_id: status for test_id, status in everything.items() if canary not in test_id}
    canaries = {test_id: status for test_id, status in everything.items() if canary in test_id}
    problems = list(cast(list[str], results["problems"]))
    if results["timed_out"]:
        problems.append("time limit")
    elif not results["finished"]:
        problems = problems or ["the test process did not finish"]
    elif results["exit_status"] != TESTS_FAILED:
        problems.append(f"exit status {results['exit_status']} does not agree with the results")
    if not results["counts_agree"]:
        problems.append("the runner's count of failures does not agree with the results")
    for name in cast(list[str], results["tampered"]):
        what = "" if name.startswith(NO_EQUAL) else "the test runner was changed while it ran: "
        problems.append(what + name)
    if not results["timed_out"]:
        problems += _canary_problems(statuses, canaries, cast(list[str], results["scopes"]), canary)
    aliases = cast(dict[str, list[str]], results["aliases"])
    return TestRun(
        statuses=statuses,
        exit_status=results["exit_status"],
        timed_out=results["timed_out"],
        output=output,
        problems=tuple(problems),
        aliases={name: tuple(ids) for name, ids in aliases.items() if canary not in name},
        exhausted=exhausted,
        killed=tuple(results["killed"]),
        stopped=tuple(results["stopped"]),
        late_s=results["late_s"],
    )


def pytest_aliases(statuses: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Names of tests in data sets whose parsers cut pytest's ids -> the ids that each may stand for."""
    found: dict[str, list[str]] = {}
    for test_id in sorted(statuses):
        for name in other_names(test_id) if "::" in test_id else ():
            if name not in statuses:
                found.setdefault(name, []).append(test_id)
    return {name: tuple(ids) for name, ids in found.items()}


def _canary_problems(
    statuses: Mapping[str, str], canaries: Mapping[str, str], scopes: Sequence[str], canary: str
) -> list[str]:
    """No canary may pass, and no test counts in a scope (a module, a class) where none failed.

    A fixture of the project may skip some of a canary's variants, and files may be skipped whole."""
    problems = [
        f"a canary did not fail: {test_id.replace(canary, '…')}"
        for test_id, status in canaries.items()
        if status not in _DEAD
    ]
    failed = [test_id for test_id, status in canaries.items() if status == "failed"]
    passing = [test_id for test_id, status in statuses.items() if status == "passed"]
    alive = {scope for scope in scopes if any(_is_directly_in(test_id, scope) for test_id in failed)}
    if passing and not alive:
        problems.append("no canary failed")
    modules = {test_id.split("::", 1)[0] for test_id in passing if "::" in test_id}
    wanted = sorted({f"{module}::" for module in modules if module.endswith(".py")}.union(scopes) - alive)
    for scope in wanted:
        if any(test_id.startswith(scope) for test_id in passing):
            problems.append(f"no canary failed in {scope.rstrip(':.')}")
    return problems


def _is_directly_in(test_id: str, scope: str) -> bool:
    """Whether the test belongs to this scope itself, not to one below."""
    if not test_id.startswith(scope):
        return False
    name = test_id[len(scope) :].split("[", 1)[0]
    return "::" not in name and "." not in name
