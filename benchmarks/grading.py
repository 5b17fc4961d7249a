"""What grading adds to running the same tests, and how many gradings run at once.

    python -m benchmarks.grading [--rounds N] [--at-once N,N] [--targets REGEX]

On one prepared task of each project (see `make prepare`), in fresh MiniSandboxes, interleaved: the tests'
files with bare pytest after `git apply`, and a whole grading of the right patch with everything it does.
Opening and closing the sandbox is outside of both times. Medians. It says nothing of the quality of verdicts.
"""

import argparse
import asyncio
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # benchmarks/sandbox.py would shadow the package

from rewards.grade import grade
from rewards.runner import files_of
from sandbox.mini import MiniBackend
from sandbox.types import Sandbox
from tests.rewards.targets import Target, real_targets


async def bare(target: Target, sandbox: Sandbox) -> None:
    """The least that tells whether the patch is right: apply it and run the files."""
    tests = target.tests
    applied = await sandbox.exec(
        ("git", "apply", "-"), timeout_s=30, cwd=tests.workdir, stdin=target.gold.encode()
    )
    files = files_of(tests.fail_to_pass + tests.pass_to_pass)
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = (*tests.command, "-q", "-p", "no:cacheprovider", *files)
    done = await sandbox.exec(words, timeout_s=tests.timeout_s, cwd=tests.workdir, env=env)
    if applied.exit_status != 0 or done.exit_status not in (0, 1):
        raise RuntimeError(f"{target.name}: {done.output[-500:]!r}")


async def graded(target: Target, sandbox: Sandbox) -> None:
    """A whole grading."""
    result = await grade(target.tests, target.gold, sandbox)
    if result.reward != 1.0:
        raise RuntimeError(f"{target.name}: {result.reasons}")


async def timed(
    backend: MiniBackend, target: Target, work: Callable[[Target, Sandbox], Awaitable[None]]
) -> float:
    """Milliseconds, without opening and closing."""
    async with await backend.open(target.sandbox) as sandbox:
        started = time.perf_counter()
        await work(target, sandbox)
        return (time.perf_counter() - started) * 1000


async def compare(backend: MiniBackend, target: Target, rounds: int) -> str:
    """A line of the table."""
    await timed(backend, target, bare)
    plain: list[float] = []
    whole: list[float] = []
    for _ in range(rounds):
        plain.append(await timed(backend, target, bare))
        whole.append(await timed(backend, target, graded))
    added = statistics.median(after - before for before, after in zip(plain, whole, strict=True))
    left, right = statistics.median(plain), statistics.median(whole)
    return f"| {target.name} | {left:.0f} | {right:.0f} | {added:+.0f} |"


async def at_once(backend: MiniBackend, target: Target, number: int) -> str:
    """A line: that many gradings of one task started together, sandboxes included."""

    async def one() -> float:
        started = time.perf_counter()
        async with await backend.open(target.sandbox) as sandbox:
            await graded(target, sandbox)
        return time.perf_counter() - started

    started = time.perf_counter()
    each = await asyncio.gather(*(one() for _ in range(number)))
    whole = time.perf_counter() - started
    return f"| {number} | {whole:.1f} | {number / whole:.2f} | {statistics.median(each):.1f} |"


async def measure(options: argparse.Namespace) -> None:
    """All of it, a line at a time."""
    targets = [target for target in real_targets() if re.search(options.targets, target.name)]
    if not targets:
        raise SystemExit("no tasks are prepared: make prepare")
    out = sys.stdout.write
    async with MiniBackend() as backend:
        out("| project | bare ms | grading ms | added ms (median of pairs) |\n| --- | --- | --- | --- |\n")
        for target in targets:
            out(await compare(backend, target, options.rounds) + "\n")
        out(
            f"\n{targets[0].name}:\n\n| at once | s | gradings/s | s each (median) |\n"
            "| --- | --- | --- | --- |\n"
        )
        for number in options.at_once.split(","):
            out(await at_once(backend, targets[0], int(number)) + "\n")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--at-once", default="1,2,8,32", help="numbers, with commas")
    parser.add_argument("--targets", default="", help="only projects whose name matches")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
