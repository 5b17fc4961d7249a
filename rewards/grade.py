"""The verdict on one patch: applied to a fresh sandbox of the task, judged by the task's own tests.

The reward is 1 only if every listed id passed in a run whose results are authentic. Whatever goes wrong on
our side raises GraderError and is never a reward; so does an end of which nothing tells whether it is our
fault, once: `rewards.retry.grade_with_retry` grades again in a fresh sandbox and is what most callers want.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rewards.apply import (
    apply_division,
    apply_patch,
    apply_test_patch,
    protect,
    read_patch,
    restore_files,
)
from rewards.errors import GraderError
from rewards.lint import find_suspicions
from rewards.patches import FilePatch
from rewards.policy import Division, PatchPolicy
from rewards.runner import RunnerDiedError, RunOptions, TestRun, files_of, run_spec, targets
from rewards.shadows import drop_shadows
from rewards.types import GradingSandbox, RewardResult, TestSpec
from rewards.verdict import TIME_LIMIT, doubt, verdict

__all__ = ["TIME_LIMIT", "apply_patch", "grade", "select", "verdict"]

_DEFAULT_POLICY = PatchPolicy()
_PROGRAMS = (".py", ".sh", ".bash", ".mk", ".toml", ".ini", ".cfg", ".yml", ".yaml")
"""Ends of words of a command that are files: `manage.py`, `scripts/test.sh`."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A patched Python file."""

    path: str
    """Relative to the work directory."""
    added: frozenset[int]
    """Numbers of the lines that the patch added."""
    content: bytes
    """All of it."""


async def grade(
    tests: TestSpec,
    patch: str,
    sandbox: GradingSandbox,
    *,
    restore: Mapping[str, bytes] | None = None,
    policy: PatchPolicy = _DEFAULT_POLICY,
) -> RewardResult:
    """Judges `patch` in `sandbox`: a fresh one of the task, with the bug and without network.

    `restore` maps paths relative to the work directory to contents that are put back last, after the task's
    own test patch. The sandbox is used up: its files and processes are whatever the tests left.

    Raises GraderError; with a verdict in `repeated` where only a second grading tells whose fault it was."""
    trusted = trusted_files(tests, restore or {})
    division = protect(select(patch, trusted, policy), trusted)
    division = await drop_shadows(division, policy, trusted, sandbox, workdir=tests.workdir)
    if policy.lint and tests.lint:
        division = await asyncio.to_thread(_without_scratch, division, _names(tests))
    if division.kept:
        division = await apply_division(division, sandbox, tests.workdir)
    dropped = tuple(path for path, _ in division.dropped)
    counts = dict(Counter(reason for _, reason in division.dropped))
    if not division.kept and tests.fail_to_pass:
        why = "only files that the agent may not change are in the patch" if dropped else "the patch is empty"
        return RewardResult(
            0.0, False, 0.0, 0, dropped_paths=dropped, dropped_by_reason=counts, reasons=(why,)
        )
    sources = await _patched_sources(division.kept, sandbox, tests) if policy.lint and tests.lint else ()
    if tests.test_patch:
        await apply_test_patch(tests.test_patch, sandbox, tests.workdir)
    await restore_files(restore or {}, sandbox, tests.workdir)
    try:
        return replace(await _judge(tests, sandbox, sources), dropped_paths=dropped, dropped_by_reason=counts)
    except GraderError as error:
        if error.repeated is not None:
            error.repeated = replace(error.repeated, dropped_paths=dropped, dropped_by_reason=counts)
        raise


async def run_unpatched(
    tests: TestSpec,
    sandbox: GradingSandbox,
    *,
    restore: Mapping[str, bytes] | None = None,
) -> None:
    """Runs the task's tests without any patch, to see that sandbox and limits are enough for a run of them.
    Raises GraderError when they are not; what the tests say does not matter."""
    if tests.test_patch:
        await apply_test_patch(tests.test_patch, sandbox, tests.workdir)
    await restore_files(restore or {}, sandbox, tests.workdir)
    await _judge(tests, sandbox, ())


def trusted_files(tests: TestSpec, restore: Mapping[str, bytes]) -> tuple[str, ...]:
    """Paths that are the judge's: programs that the command names, targets of the run, what the test patch
    touches, and restored files."""
    words = (word.removeprefix(f"{tests.workdir}/").removeprefix("./") for word in tests.command)
    paths = {word for word in words if word.endswith(_PROGRAMS)} | set(restore)
    for target in targets(tests):
        paths.add(target)
        if "/" not in target and not target.endswith(".py"):  # a dotted module of unittest or Django
            paths |= {f"{root}{target.replace('.', '/')}.py" for root in ("", "tests/")}
    if tests.test_patch:
        paths |= {path for part in read_patch(tests.test_patch) for path in part.paths}
    return tuple(sorted(paths))


def select(patch: str, test_files: Sequence[str], policy: PatchPolicy) -> Division:
    """Parts of the patch to apply, and the paths left out. Raises GraderError for an unreadable patch."""
    return policy.divide(read_patch(patch), test_files)


def _without_scratch(division: Division, names: frozenset[str]) -> Division:
    """The division without new files that know of tests: honest agents leave scripts that run them, and what
    is not there cannot do anything."""
    scratch = [
        part
        for part in division.kept
        if part.old_path is None
        and (part.new_path or "").endswith((".py", ".pyi"))
        and find_suspicions(part.new_path or "", part.added_text, part.added_lines, names)
    ]
    return division.without(scratch, "a new file that seems to know of tests").without_blocked()


async def _judge(tests: TestSpec, sandbox: GradingSandbox, sources: Sequence[_Source]) -> RewardResult:
    """Runs the tests. Raises GraderError, also for a verdict that is in doubt."""
    # Beside the run, which waits for the sandbox: it is work for this process only.
    linting = asyncio.create_task(asyncio.to_thread(_lint, sources, _names(tests)))
    try:
        run = await run_spec(tests, sandbox, RunOptions(patched=tuple(source.path for source in sources)))
    except RunnerDiedError as error:
        exhausted = "disk" if error.kind == "disk" else None
        nothing = TestRun({}, None, False, b"", (str(error),), exhausted=exhausted)
        repeated = verdict(tests, nothing, await linting)
        raise GraderError(str(error), error.kind, repeated=repeated) from error
    finally:
        await asyncio.wait((linting,))
    result = verdict(tests, run, linting.result())
    kind = doubt(tests, run, result)
    if kind is not None:
        raise GraderError(f"{kind}: {'; '.join(result.reasons)}"[:1000], kind, repeated=result)
    return result


def _lint(sources: Sequence[_Source], names: frozenset[str]) -> tuple[str, ...]:
    """Suspicions in patched files."""
    return tuple(
        found
        for source in sources
        for found in find_suspicions(source.path, source.content, source.added, names)
    )


async def _patched_sources(
    parts: Sequence[FilePatch], sandbox: GradingSandbox, tests: TestSpec
) -> tuple[_Source, ...]:
    """The Python files that the patch adds lines to, as they are before anything of the task has run."""
    wanted = [
        (part.new_path, part.added_lines)
        for part in parts
        if part.new_path is not None and part.new_path.endswith((".py", ".pyi")) and part.added_lines
    ]
    return tuple(
        [_Source(path, lines, await _read(sandbox, f"{tests.workdir}/{path}")) for path, lines in wanted]
    )


async def _read(sandbox: GradingSandbox, path: str) -> bytes:
    try:
        return await sandbox.read_file(path)
    except Exception as error:
        raise GraderError(f"cannot read {path} after the patch: {error!r}", "sandbox") from error


def _names(tests: TestSpec) -> frozenset[str]:
    """Names of test functions and files that product code has no reason to mention."""
    listed = tests.fail_to_pass + tests.pass_to_pass
    last = {test_id.split("[", 1)[0].rsplit("::", 1)[-1] for test_id in listed}
    functions = {name.split(" ", 1)[0].rpartition(".")[2] for name in last}
    stems = {file.rsplit("/", 1)[-1].removesuffix(".py") for file in files_of(tests.fail_to_pass)}
    return frozenset(name for name in functions | stems if len(name) > 6 and name.startswith("test_"))
