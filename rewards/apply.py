"""Puts patches into a grading sandbox: the agent's, the hidden test patch, and trusted files.

All of it with `git apply` as to plain files: the sandbox's `.git` and attributes decide nothing, and nothing
of the project runs.
"""

import re
from collections.abc import Mapping, Sequence

from rewards.errors import GraderError
from rewards.patches import FilePatch, PatchError, parse_patch
from rewards.policy import Division
from rewards.runner import tail
from rewards.types import GradingExecResult, GradingSandbox

_DISK_FULL = b"No space left on device"
_APPLIED, _REFUSED = 0, (1, 128)
"""Exit statuses of `git apply`: 1 for a patch that does not fit, 128 for one that it cannot read."""
_APPLY_TIMEOUT_S = 60.0
_MOST_TRIES = 300
"""Calls of git for one patch, a second or two: nobody may hold a grading up with thousands of odd files."""
_WARNINGS = re.compile(rb"(?:warning: [^\n\0]*\n)+")
"""What git writes to standard error before the records, of a mode that is not the patch's, say. No path that
is kept holds a newline."""
_NUMSTAT = re.compile(rb"(?:\d+|-)\t(?:\d+|-)\t(.+)\Z", re.DOTALL)
_GIT_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_DIR": "/nonexistent",
    "LC_ALL": "C",
}


def read_patch(text: str) -> tuple[FilePatch, ...]:
    """The parts of a patch. Raises GraderError."""
    try:
        return parse_patch(text)
    except PatchError as error:
        raise GraderError(f"the patch cannot be read: {error}", "patch") from error


def protect(division: Division, trusted: Sequence[str]) -> Division:
    """The division without parts that make a file where a trusted path needs a directory."""
    blocking = [part for part in division.kept if any(_above(path, trusted) for path in part.paths)]
    return division.without(blocking, "in the way of a trusted file")


def _above(path: str, trusted: Sequence[str]) -> bool:
    return any(other.startswith(f"{path}/") for other in trusted)


async def apply_patch(parts: Sequence[FilePatch], sandbox: GradingSandbox, workdir: str) -> None:
    """Applies the parts and checks that git touched exactly their paths. Raises GraderError."""
    if not parts:
        return
    done = await _git_apply(parts, sandbox, workdir)
    if done.exit_status != _APPLIED:
        raise GraderError(
            f"the patch does not apply (status {done.exit_status}): {tail(done.output)}", "patch"
        )
    _check_touched(parts, done)


async def apply_division(division: Division, sandbox: GradingSandbox, workdir: str) -> Division:
    """Applies what is kept. Where the whole does not apply because something was left out, its halves are
    tried, and theirs, and parts that do not apply are left out too. Raises GraderError."""
    if not division.dropped or not division.kept:
        await apply_patch(division.kept, sandbox, workdir)
        return division
    waiting: list[Sequence[FilePatch]] = [division.kept]
    failed: list[FilePatch] = []
    tries = 0
    while waiting:
        parts, tries = waiting.pop(), tries + 1
        done = await _git_apply(parts, sandbox, workdir) if tries <= _MOST_TRIES else None
        if done is not None and done.exit_status == _APPLIED:
            _check_touched(parts, done)
        elif done is None or len(parts) == 1:
            failed += parts
        else:
            waiting += [parts[len(parts) // 2 :], parts[: len(parts) // 2]]
    return division.without(failed, "does not apply without what was left out")


async def apply_test_patch(text: str, sandbox: GradingSandbox, workdir: str) -> None:
    """Applies the hidden tests, onto files that the agent could not touch. Raises GraderError."""
    try:
        await apply_patch(read_patch(text), sandbox, workdir)
    except GraderError as error:
        kind = "task" if error.kind == "patch" else error.kind
        raise GraderError(f"the task's test patch: {error}", kind) from error


async def restore_files(files: Mapping[str, bytes], sandbox: GradingSandbox, workdir: str) -> None:
    """Writes trusted files, relative to the work directory. Raises GraderError."""
    try:
        for path, data in files.items():
            await sandbox.write_file(f"{workdir}/{path}", data)
    except Exception as error:
        raise GraderError(f"trusted files could not be put back: {error!r}", "sandbox") from error


async def _git_apply(parts: Sequence[FilePatch], sandbox: GradingSandbox, workdir: str) -> GradingExecResult:
    """The result of git, whatever it thinks of the patch. Raises GraderError for any other end of it."""
    data = "".join(part.text for part in parts).encode("utf-8", "surrogateescape")
    try:
        done = await sandbox.exec(
            ("git", "apply", "--apply", "--numstat", "-z", "--whitespace=nowarn", "-"),
            timeout_s=_APPLY_TIMEOUT_S,
            env=_GIT_ENV,
            cwd=workdir,
            stdin=data,
            output_limit_bytes=4 << 20,
        )
    except Exception as error:
        raise GraderError(f"the sandbox failed while the patch was applied: {error!r}", "sandbox") from error
    full = done.exit_status != _APPLIED and _DISK_FULL in done.output
    if full or done.timed_out or done.exit_status not in (_APPLIED, *_REFUSED):
        how = "timed out" if done.timed_out else f"status {done.exit_status}"
        raise GraderError(f"git could not be run on the patch ({how}): {tail(done.output)}", "sandbox")
    return done


def _check_touched(parts: Sequence[FilePatch], done: GradingExecResult) -> None:
    output = done.output[match.end() :] if (match := _WARNINGS.match(done.output)) else done.output
    records = [_NUMSTAT.match(record) for record in output.split(b"\0")[:-1]]
    touched = {record[1].decode("utf-8", "surrogateescape") for record in records if record is not None}
    if touched != {part.path for part in parts} or None in records:
        raise GraderError(f"git read the patch differently than the grader: {tail(done.output)}", "patch")
