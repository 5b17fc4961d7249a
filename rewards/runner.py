"""Runs test files with pytest in a sandbox and reads back a status per exact test id.

Results come from a signed file, not from the output; see `rewards.in_sandbox` for the other side.
Used by the grader, and by the preparation of tasks to learn which ids a bug breaks.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

from rewards.errors import GraderError
from rewards.types import GradingExecResult, GradingSandbox

GRADER_DIR = "/opt/grader"
"""Where the runner lies inside the sandbox; nothing of the task is there."""
TESTS_FAILED = 1
"""pytest's exit status when tests failed. The canaries always fail, so any other status is wrong."""
_RESULT_LIMIT_BYTES = 64 << 20
_DEAD = frozenset({"failed", "error", "skipped"})


@dataclass(frozen=True, slots=True)
class TestRun:
    """What one run of test files did."""

    __test__ = False

    statuses: dict[str, str]
    """Exact pytest id -> passed, failed, error, skipped, xfailed or xpassed. Files that could not be
    collected appear under their path with `error`. Empty when the results are missing or forged."""
    exit_status: int | None
    """Of the process; None when timed out. 1 is normal: a canary fails in every test module."""
    timed_out: bool
    """True when the time limit ended it."""
    output: bytes
    """What it printed, capped; for people only."""
    problems: tuple[str, ...]
    """Why the statuses must not be trusted, in short sentences; empty for a sound run."""


@dataclass(frozen=True, slots=True)
class _Command:
    """A test command taken apart."""

    python: str
    options: tuple[str, ...]
    workdir_on_path: bool


def parse_command(command: Sequence[str]) -> _Command:
    """Understands `python -m pytest …` and `pytest …`. Raises GraderError for anything else."""
    words = tuple(command)
    program = words[0].rsplit("/", 1)[-1] if words else ""
    if program.startswith("python") and words[1:3] == ("-m", "pytest"):
        return _Command(python=words[0], options=words[3:], workdir_on_path=True)
    if program in ("pytest", "py.test"):
        return _Command(python="python", options=words[1:], workdir_on_path=False)
    raise GraderError(f"test command {words!r} is not pytest")


def files_of(test_ids: Sequence[str]) -> tuple[str, ...]:
    """The test files that the ids lie in, sorted."""
    return tuple(sorted({test_id.split("::", 1)[0] for test_id in test_ids}))


async def run_tests(
    command: Sequence[str],
    files: Sequence[str],
    sandbox: GradingSandbox,
    *,
    timeout_s: float,
    workdir: str = "/testbed",
    traceback: bool = False,
    output_limit_bytes: int = 64 << 10,
) -> TestRun:
    """Runs every test of `files` (paths relative to `workdir`). `traceback` is for people: it costs time.

    Raises GraderError when the sandbox fails or pytest could not even be started."""
    parsed = parse_command(command)
    key, started = secrets.token_bytes(32), secrets.token_hex(16)
    result_path = f"{GRADER_DIR}/result-{secrets.token_hex(8)}"
    request = {
        "key": key.hex(),
        "canary": secrets.token_hex(8),
        "started": started,
        "result": result_path,
        "workdir": workdir,
        "workdir_on_path": parsed.workdir_on_path,
        "options": parsed.options,
        "traceback": traceback,
        "files": tuple(files),
    }
    script = resources.files("rewards").joinpath("in_sandbox.py").read_bytes()
    try:
        await sandbox.write_file(f"{GRADER_DIR}/run.py", script)
        done = await sandbox.exec(
            (parsed.python, "-s", f"{GRADER_DIR}/run.py"),
            timeout_s=timeout_s,
            env=run_environment(),
            cwd=workdir,
            stdin=json.dumps(request).encode(),
            output_limit_bytes=output_limit_bytes,
        )
    except Exception as error:
        raise GraderError(f"the sandbox failed while tests ran: {error!r}") from error
    if started.encode() not in done.output:
        raise GraderError(
            f"pytest did not start (status {done.exit_status}, timed out: {done.timed_out}): "
            f"{tail(done.output)}"
        )
    if done.timed_out:
        return TestRun({}, None, True, done.output, ("time limit",))
    return _judge(await _read_results(sandbox, result_path, key), done)


def run_environment() -> dict[str, str]:
    """Variables that fix what test results may depend on."""
    return {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": "",
        "PYTEST_ADDOPTS": "",
        "PYTEST_PLUGINS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def tail(output: bytes, limit: int = 400) -> str:
    """The end of an output on one line, for messages."""
    return " ".join(output.decode("utf-8", "replace").split())[-limit:]


async def _read_results(sandbox: GradingSandbox, path: str, key: bytes) -> Mapping[str, Any] | None:
    """The signed results; None when they are missing or not signed by our runner."""
    try:
        data = await sandbox.read_file(path, limit_bytes=_RESULT_LIMIT_BYTES)
    except Exception as error:
        # Code under test can leave anything at the path: nothing, a directory, a FIFO, a loop of links.
        if isinstance(error, OSError | ValueError) and not isinstance(error, ConnectionError | TimeoutError):
            return None
        raise GraderError(f"the sandbox failed while results were read: {error!r}") from error
    signature, _, body = data.partition(b"\n")
    expected = hashlib.blake2b(body, key=key, digest_size=32).hexdigest().encode()
    if not hmac.compare_digest(signature, expected):
        return None
    loaded: Any = json.loads(body)
    return cast(Mapping[str, Any], loaded)


def _judge(results: Mapping[str, Any] | None, done: GradingExecResult) -> TestRun:
    if results is None:
        problem = f"the test process ended with status {done.exit_status} and left no authentic results"
        return TestRun({}, done.exit_status, False, done.output, (problem,))
    statuses = cast(dict[str, str], results["statuses"])
    canaries = cast(dict[str, list[str]], results["canaries"])
    problems: list[str] = []
    if done.exit_status != results["exit_status"] or done.exit_status != TESTS_FAILED:
        problems.append(f"exit status {done.exit_status} does not agree with the results")
    if not results["counts_agree"]:
        problems.append("pytest's count of failures does not agree with the results")
    for name in cast(list[str], results["tampered"]):
        problems.append(f"the test runner was changed while it ran: {name}")
    problems += _canary_problems(statuses, canaries)
    return TestRun(statuses, done.exit_status, False, done.output, tuple(problems))


def _canary_problems(statuses: Mapping[str, str], canaries: Mapping[str, Sequence[str]]) -> list[str]:
    """No canary may pass, and no test counts in a file where none failed.

    A fixture of the project may skip some of a canary's variants, and files may be skipped whole."""
    problems = [f"a canary in {file} did not fail" for file in canaries if set(canaries[file]) - _DEAD]
    passing = {test_id.split("::", 1)[0] for test_id, status in statuses.items() if status == "passed"}
    modules = sorted(file for file in passing if file.endswith(".py"))
    problems += [f"no canary failed in {file}" for file in modules if "failed" not in canaries.get(file, ())]
    return problems
