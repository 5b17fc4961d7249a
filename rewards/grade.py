"""The verdict on one patch: applied to a fresh sandbox of the task, judged by the task's own tests.

The reward is 1 only if every listed id passed in a run whose results are authentic. Whatever goes
wrong on our side raises GraderError and is never a reward. The caller makes and closes the sandbox.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rewards.errors import GraderError
from rewards.lint import find_suspicions
from rewards.patches import FilePatch, PatchError, parse_patch
from rewards.policy import Division, PatchPolicy
from rewards.runner import TestRun, files_of, run_tests, tail
from rewards.shadows import drop_shadows
from rewards.types import GradingSandbox, RewardResult, TestSpec

TIME_LIMIT = "time limit"
"""Reason of a verdict that a slower machine could change; such verdicts are not cached."""
_APPLY_TIMEOUT_S = 60.0
_NUMSTAT = re.compile(rb"(?:\d+|-)\t(?:\d+|-)\t(.+)\Z", re.DOTALL)
_DEFAULT_POLICY = PatchPolicy()
_GIT_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    # Applied as to plain files: the sandbox's .git decides nothing.
    "GIT_DIR": "/nonexistent",
    "LC_ALL": "C",
}


async def grade(
    tests: TestSpec,
    patch: str,
    sandbox: GradingSandbox,
    *,
    restore: Mapping[str, bytes] | None = None,
    policy: PatchPolicy = _DEFAULT_POLICY,
) -> RewardResult:
    """Judges `patch` in `sandbox`: a fresh one of the task, with the bug and without network.

    `restore` maps paths relative to the work directory to contents that are put back after the
    patch. The sandbox is used up: its files and processes are whatever the tests left."""
    files = files_of(tests.fail_to_pass + tests.pass_to_pass)
    division = await drop_shadows(select(patch, files, policy), policy, files, sandbox, workdir=tests.workdir)
    kept, dropped = division.kept, tuple(path for path, _ in division.dropped)
    if not kept and tests.fail_to_pass:
        why = "only files that the agent may not change are in the patch" if dropped else "the patch is empty"
        return RewardResult(0.0, False, 0.0, 0, dropped_paths=dropped, reasons=(why,))
    await apply_patch(kept, sandbox, tests.workdir)
    suspicions = await _lint(kept, sandbox, tests) if policy.lint else ()
    await _restore(restore or {}, sandbox, tests.workdir)
    run = await run_tests(tests.command, files, sandbox, timeout_s=tests.timeout_s, workdir=tests.workdir)
    return replace(verdict(tests, run, suspicions), dropped_paths=dropped)


def select(patch: str, test_files: Sequence[str], policy: PatchPolicy) -> Division:
    """Parts of the patch to apply, and the paths left out. Raises GraderError for an unreadable patch."""
    try:
        parsed = parse_patch(patch)
    except PatchError as error:
        raise GraderError(f"the patch cannot be read: {error}", "patch") from error
    return policy.divide(parsed, test_files)


async def apply_patch(parts: Sequence[FilePatch], sandbox: GradingSandbox, workdir: str) -> None:
    """Applies the parts and checks that git touched exactly their paths. Raises GraderError."""
    if not parts:
        return
    data = "".join(part.text for part in parts).encode("utf-8", "surrogateescape")
    argv = ("git", "apply", "--apply", "--numstat", "-z", "--whitespace=nowarn", "-")
    try:
        done = await sandbox.exec(
            argv,
            timeout_s=_APPLY_TIMEOUT_S,
            env=_GIT_ENV,
            cwd=workdir,
            stdin=data,
            output_limit_bytes=4 << 20,
        )
    except Exception as error:
        raise GraderError(f"the sandbox failed while the patch was applied: {error!r}") from error
    if done.timed_out or done.exit_status != 0:
        raise GraderError(f"the patch does not apply (status {done.exit_status}): {tail(done.output)}")
    records = [_NUMSTAT.match(record) for record in done.output.split(b"\0")[:-1]]
    touched = {record[1].decode("utf-8", "surrogateescape") for record in records if record is not None}
    if touched != {part.path for part in parts} or None in records:
        raise GraderError(f"git read the patch differently than the grader: {tail(done.output)}")


async def _lint(parts: Sequence[FilePatch], sandbox: GradingSandbox, tests: TestSpec) -> tuple[str, ...]:
    """Suspicions in the patched Python files; reads them from the sandbox."""
    names = _names(tests)
    found: list[str] = []
    for part in parts:
        if part.new_path is None or not part.new_path.endswith((".py", ".pyi")) or not part.added_lines:
            continue
        source = await _read(sandbox, f"{tests.workdir}/{part.new_path}")
        found += find_suspicions(part.new_path, source, part.added_lines, names)
    return tuple(found)


async def _read(sandbox: GradingSandbox, path: str) -> bytes:
    try:
        return await sandbox.read_file(path)
    except Exception as error:
        raise GraderError(f"cannot read {path} after the patch: {error!r}") from error


def _names(tests: TestSpec) -> frozenset[str]:
    """Names of test functions and files that product code has no reason to mention."""
    functions = {
        test_id.split("[", 1)[0].rsplit("::", 1)[-1] for test_id in tests.fail_to_pass + tests.pass_to_pass
    }
    stems = {file.rsplit("/", 1)[-1].removesuffix(".py") for file in files_of(tests.fail_to_pass)}
    return frozenset(name for name in functions | stems if len(name) > 6 and name.startswith("test_"))


async def _restore(files: Mapping[str, bytes], sandbox: GradingSandbox, workdir: str) -> None:
    try:
        for path, data in files.items():
            await sandbox.write_file(f"{workdir}/{path}", data)
    except Exception as error:
        raise GraderError(f"trusted files could not be put back: {error!r}") from error


def verdict(tests: TestSpec, run: TestRun, suspicions: Sequence[str] = ()) -> RewardResult:
    """The reward that a run of the task's tests earns; pure."""
    listed = tests.fail_to_pass + tests.pass_to_pass
    if not listed:
        raise GraderError("the task lists no tests")
    fixed = [test_id for test_id in tests.fail_to_pass if run.statuses.get(test_id) == "passed"]
    broken = [test_id for test_id in tests.pass_to_pass if run.statuses.get(test_id) != "passed"]
    trusted = not run.problems
    resolved = trusted and not suspicions and not broken and len(fixed) == len(tests.fail_to_pass)
    reasons = [TIME_LIMIT if run.timed_out else problem for problem in run.problems[:5]]
    reasons += [f"suspicious: {text}" for text in suspicions[:5]]
    if not run.timed_out:
        reasons += _count("FAIL_TO_PASS", tests.fail_to_pass, run)
        reasons += _count("PASS_TO_PASS", tests.pass_to_pass, run)
    share = len(fixed) / len(tests.fail_to_pass) if tests.fail_to_pass else 1.0
    return RewardResult(
        reward=1.0 if resolved else 0.0,
        resolved=resolved,
        f2p_fraction=share if trusted and not suspicions else 0.0,
        p2p_broken=len(broken) if trusted else len(tests.pass_to_pass),
        missing=tuple(test_id for test_id in listed if test_id not in run.statuses),
        reasons=tuple(reasons),
    )


def _count(label: str, test_ids: Sequence[str], run: TestRun) -> list[str]:
    """A sentence about listed tests that did not pass, with the first few named."""
    bad = [(test_id, run.statuses.get(test_id, "missing")) for test_id in test_ids]
    bad = [(test_id, status) for test_id, status in bad if status != "passed"]
    if not bad:
        return []
    some = ", ".join(f"{test_id} ({status})" for test_id, status in bad[:3])
    return [f"{len(bad)} of {len(test_ids)} {label} did not pass: {some}{' …' if len(bad) > 3 else ''}"]
