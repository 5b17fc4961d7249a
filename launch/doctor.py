"""`python launch/doctor.py`: what this machine can do for sandboxes, what will be used, what to change.

Tries every facility and runs the conformance suite of `sandbox.conformance` on real sandboxes. Exit
status: 0 sandboxes work, 1 they open but a check failed, 3 this machine cannot open any. Changes nothing.
With --recipe it answers another question, without opening anything: whether that run fits the memory of the
given GPUs (0 yes, 2 wrong configuration, 3 no). With --io it measures how fast this node unpacks layers.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rich.console import Console
from rich.table import Table

from launch.exit_codes import FAILED, OK, UNUSABLE_MACHINE
from launch.io_probe import report
from launch.out_console import OutConsole
from sandbox import conformance
from sandbox.errors import SandboxError
from sandbox.fallback import report_of
from sandbox.mini import MiniBackend
from sandbox.probe import Finding, probe
from sandbox.types import SandboxSpec

_WEAK = (
    "The Landlock mode would work here. It is NO full sandbox and never chosen unasked (docs/security.md, "
    "Modes): `python -m sandbox run --allow-weak`, or sandbox.fallback.open_backend(allow_weak=True)."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; the exit status."""
    parser = argparse.ArgumentParser(prog="python launch/doctor.py", description=__doc__)
    parser.add_argument("--layers", type=Path, metavar="DIR", help="where layers will lie (default: here)")
    parser.add_argument(
        "--io", action="store_true", help="measure unpacking there, and propose paths.cache_io"
    )
    parser.add_argument("--no-checks", action="store_true", help="probe only, open no sandbox")
    parser.add_argument("--recipe", metavar="NAME", help="say whether this run fits in memory, and stop")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="with --recipe: as for launch/train.py"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="with --recipe: GPUs of a node (default: its own)"
    )
    parser.add_argument("--gpu-memory-gib", type=float, default=80.0, metavar="GIB", help="of one GPU (80)")
    parser.add_argument(
        "--host-memory-gib", type=float, metavar="GIB", help="of one node (default: not checked)"
    )
    options = parser.parse_intermixed_args(arguments)
    if options.recipe is None:
        if options.overrides:
            parser.error(f"{options.overrides[0]}: overrides belong to --recipe")
        if options.io:
            return report(options.layers or Path.cwd(), OutConsole())
        return _check_machine(options.layers, options.no_checks)
    from launch.doctor_recipe import check_recipe  # Hydra is not needed for the machine alone

    return check_recipe(
        options.recipe,
        options.overrides,
        gpus=options.gpus,
        gpu_gib=options.gpu_memory_gib,
        host_gib=options.host_memory_gib,
    )


def _check_machine(layers: Path | None, no_checks: bool) -> int:
    console = OutConsole()
    findings = probe(layers or Path.cwd())
    console.print(_findings_table(findings))
    missing = [finding for finding in findings if finding.required and not finding.ok]
    if missing:
        console.print("No sandbox can be opened on this machine. To change:", markup=False)
        for finding in missing:
            console.print(f"  {finding.name}: {finding.fix}", markup=False)
        if any(finding.name == "landlock" and finding.ok for finding in findings):
            console.print(_WEAK, markup=False)
        return UNUSABLE_MACHINE
    return OK if no_checks else asyncio.run(_check(console))


def _findings_table(findings: Sequence[Finding]) -> Table:
    table = Table(title="This machine, for sandboxes", title_justify="left")
    for name in ("facility", "works", "found", "for / lost without it"):
        table.add_column(name)
    for finding in findings:
        mark = "[green]yes" if finding.ok else ("[red]NO" if finding.required else "[yellow]no")
        note = finding.use if finding.ok or not finding.fix else f"{finding.use}\nto change: {finding.fix}"
        table.add_row(finding.name, mark, finding.detail, note)
    return table


async def _check(console: Console) -> int:
    try:
        async with MiniBackend() as backend:
            _say_what_is_used(console, backend)
            milliseconds = await _time_to_first_command(backend)
            console.print(f"start to first command: {milliseconds:.0f} ms")
            started = time.monotonic()
            results = await conformance.run_all(backend)
    except SandboxError as error:
        console.print(f"No sandbox can be opened on this machine: {error}", markup=False)
        return UNUSABLE_MACHINE
    passed = sum(outcome.passed for outcome in results)
    console.print(f"{passed} of {len(results)} checks passed in {time.monotonic() - started:.1f} s")
    for outcome in results:
        if not outcome.passed:
            console.print(f"  {outcome}", markup=False)
    return FAILED if any(outcome.problem for outcome in results) else OK


def _say_what_is_used(console: Console, backend: MiniBackend) -> None:
    facts = backend.facts
    controllers = facts["controllers"]
    ids = f"root inside is id {facts['outside_uid']}{' or above' if facts['shifted'] else ''} outside"
    limits = f"cgroup {facts['cgroup_version']} ({', '.join(controllers)})" if controllers else "rlimits only"
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    console.print(f"Running as {who}: {ids}; limits by {limits}.", markup=False)
    for line in report_of(backend).lines():
        console.print(line, markup=False)


async def _time_to_first_command(backend: MiniBackend) -> float:
    times: list[float] = []
    for _ in range(5):
        started = time.monotonic()
        async with await backend.open(SandboxSpec()) as sandbox:
            await sandbox.exec(["true"], timeout_s=30)
            times.append((time.monotonic() - started) * 1000)
    return sorted(times)[2]


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
