"""`python -m rewards grade`: verdicts for people and scripts, as JSON. Needs someone to open sandboxes.

This package knows no sandbox and no task files, so what can open a task's fresh sandbox is found through an
entry point of the group `swe_rewards.sandboxes`; this repository declares `launch.grade`.
Exit status: 0 graded, whatever the verdict; 2 wrong usage, or a file or patch that cannot be read or
applied; 3 the environment is not usable (no opener, no sandbox, or grading failed for a reason of ours); 130
interrupted.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, cast

from rewards.errors import GraderError
from rewards.grader import Case, Grader
from rewards.patches import PatchError, parse_patch
from rewards.types import RewardResult

GROUP = "swe_rewards.sandboxes"
OK, USAGE, UNUSABLE, INTERRUPTED = 0, 2, 3, 130


class UsageError(Exception):
    """What was asked for cannot be read; exit status 2."""


class UnusableError(Exception):
    """The environment cannot do it; exit status 3."""


class Tasks(Protocol):
    """What an entry point of the group gives, in an async context manager."""

    @property
    def grader(self) -> Grader:
        """Judges the cases; keeps verdicts or not."""
        ...

    def open(self, task: str) -> Case:
        """`task` is an id, or a file with one row. Raises UsageError or UnusableError."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One grading."""

    task: str
    """Id or file."""
    patch: str
    """The patch's text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m rewards", description=__doc__)
    command = parser.add_subparsers(dest="command", required=True).add_parser(
        "grade", help="judge patches by their task's tests", description=__doc__
    )
    command.add_argument("--task", metavar="ID|FILE", help="an instance id, or a file with the task's row")
    command.add_argument("--patch", metavar="FILE|-", help="a git-format patch; - is standard input")
    command.add_argument("--batch", type=Path, metavar="FILE.jsonl", help='lines {"task": ..., "patch": ...}')
    command.add_argument(
        "--output", type=Path, metavar="FILE.jsonl", help="of a batch; its tasks are skipped"
    )
    command.add_argument("--jobs", type=int, default=2, help="gradings at once (default 2)")
    options = parser.parse_args(arguments)
    single = options.task is not None and options.patch is not None
    if single == (options.batch is not None) or (options.batch and (options.task or options.patch)):
        command.error("give --task and --patch, or --batch")
    if options.jobs < 1:
        command.error("--jobs must be at least 1")
    try:
        return asyncio.run(_run(options))
    except UsageError as error:
        return _fail(error, USAGE)
    except (UnusableError, GraderError) as error:
        is_the_patch = isinstance(error, GraderError) and error.kind == "patch"
        return _fail(error, USAGE if is_the_patch else UNUSABLE)
    except KeyboardInterrupt:
        return INTERRUPTED


def _fail(error: Exception, status: int) -> int:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return status


async def _run(options: argparse.Namespace) -> int:
    # Before anything is opened: a wrong file is told as such also where no sandbox can be had.
    if options.batch is None:
        jobs = [Job(options.task, _readable(_read(options.patch), options.patch))]
    else:
        jobs = list(read_batch(options.batch))
    async with _tasks() as tasks:
        if options.batch is None:
            print(json.dumps(await _judge(tasks, jobs[0]), indent=2))
            return OK
        return await _batch(tasks, jobs, options)


def _tasks() -> AbstractAsyncContextManager[Tasks]:
    # Not metadata.entry_points(): of two records of one project it reads only the first, and a stale
    # .egg-info in the current folder comes before the installed one.
    found = [point for dist in metadata.distributions() for point in dist.entry_points.select(group=GROUP)]
    if not found:
        raise UnusableError(f"no entry point in {GROUP} can open sandboxes; run: pip install -e .")
    try:
        factory: Any = found[0].load()
    except ImportError as error:
        raise UnusableError(f"{found[0].value} cannot be imported: {error}") from error
    return cast(AbstractAsyncContextManager[Tasks], factory())


def _read(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    return data.decode("utf-8", "surrogateescape")


def _readable(patch: str, name: str) -> str:
    try:
        parse_patch(patch)
    except PatchError as error:
        raise UsageError(f"{name} is no git-format patch: {error}") from error
    return patch


async def _judge(tasks: Tasks, job: Job) -> dict[str, Any]:
    result = await tasks.grader.judge(tasks.open(job.task), job.patch)
    return {"task": job.task, **as_json(result)}


def as_json(result: RewardResult) -> dict[str, Any]:
    """The verdict as plain data."""
    return {field.name: _plain(getattr(result, field.name)) for field in dataclasses.fields(result)}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    return dict(value) if hasattr(value, "keys") else list(value)


def read_batch(path: Path) -> Iterator[Job]:
    """The jobs of a file. Raises UsageError naming the bad line."""
    for number, line in enumerate(_read(str(path)).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            loaded: Any = json.loads(line)
            task, patch = loaded["task"], loaded["patch"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f'{path}, line {number}: not {{"task": ..., "patch": ...}}') from error
        if not isinstance(task, str) or not isinstance(patch, str):
            raise UsageError(f"{path}, line {number}: task and patch must be texts")
        yield Job(task, patch)


async def _batch(tasks: Tasks, jobs: Sequence[Job], options: argparse.Namespace) -> int:
    """Grades all lines, several at once; a line of output each, flushed, errors included."""
    done = _done(options.output)
    slots = asyncio.Semaphore(options.jobs)
    failed = 0

    async def one(number: int, job: Job) -> None:
        nonlocal failed
        async with slots:
            try:
                verdict = await _judge(tasks, job)
            except (GraderError, UsageError, UnusableError) as error:
                failed += 1
                verdict = {"task": job.task, "error": " ".join(str(error).split())}
        text = json.dumps({"line": number, **verdict}) + "\n"
        if options.output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            with options.output.open("a", encoding="utf-8") as file:
                file.write(text)

    await asyncio.gather(
        *(one(number, job) for number, job in enumerate(jobs, start=1) if number not in done)
    )
    if failed:
        raise UnusableError(f"{failed} of {len(jobs)} lines were not graded; run again to repeat these")
    return OK


def _done(output: Path | None) -> set[int]:
    """Lines that have a verdict already. A last line cut short by a kill does not count."""
    if output is None or not output.exists():
        return set()
    found: set[int] = set()
    for line in output.read_text("utf-8").split("\n"):
        try:
            loaded: Any = json.loads(line)
            if "error" not in loaded:
                found.add(int(loaded["line"]))
        except (ValueError, KeyError, TypeError):
            continue
    if output.stat().st_size and not output.read_bytes().endswith(b"\n"):
        with output.open("a", encoding="utf-8") as file:
            file.write("\n")
    return found
