"""Sandboxes against their peers, in one run: `python benchmarks/sandbox.py [--quick] [--output FILE.json]`.

Measures start to first command, teardown, many at once, processor time, a session's command and memory, and
holds them against the targets. As root on Linux. Exit status: 0 measured (whatever the targets say), 2 wrong
arguments, 3 this machine cannot open sandboxes, 130 Ctrl-C, 143 SIGTERM; nothing is left behind.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # this file would shadow the package it measures

from rich.console import Console

from benchmarks import fixture, inside, measure, report
from benchmarks.children import WrongResultError
from benchmarks.containers import Crun, Docker, EngineError, Podman
from benchmarks.paper import Paper
from benchmarks.place import Place
from benchmarks.systems import MINIS, Bwrap, BwrapOverlay, Context, Floor, Fork, Mini, System
from launch.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED, OK, TERMINATED, UNUSABLE_MACHINE
from sandbox.errors import SandboxError
from sandbox.probe import unusable_reason

SYSTEMS = (Fork, Floor, *MINIS, Bwrap, BwrapOverlay, Crun, Podman, Docker, Paper)
NAMES = tuple(system.name for system in SYSTEMS)
_FIXTURE = Path(__file__).resolve().parents[1] / ".cache/benchmarks"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command line; exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(prog="python benchmarks/sandbox.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute or two instead of about ten")
    parser.add_argument(
        "--only", action="append", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--live", type=int, metavar="N", help="idle sandboxes open together (50 or 200)")
    parser.add_argument("--rounds", type=int, metavar="N", help="starts of each system, one at a time")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="where to work (default: temporary directory)"
    )
    parser.add_argument(
        "--fixture", type=Path, default=_FIXTURE, metavar="DIR", help="kept environment (.cache/benchmarks)"
    )
    options = parser.parse_args(arguments)
    for name in ("live", "rounds"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.work and not options.work.is_dir():
        parser.error(f"--work {options.work} is no directory")
    if options.output and not options.output.absolute().parent.is_dir():
        parser.error(f"--output {options.output}: no such directory")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status."""
    options = parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    reason = "it must run as root" if os.geteuid() else unusable_reason()
    if reason:
        console.print(f"benchmarks/sandbox.py: cannot measure here: {reason}", markup=False)
        return UNUSABLE_MACHINE
    terminated: list[int] = []
    try:
        with Place(options.work) as place:
            data = asyncio.run(_until_signal(_run(options, place, console), terminated))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped; nothing is left running")
        return TERMINATED if terminated else INTERRUPTED
    except SandboxError as error:
        console.print(f"benchmarks/sandbox.py: {error}", markup=False)
        return UNUSABLE_MACHINE
    except WrongResultError as error:
        console.print(f"benchmarks/sandbox.py: a system gave a wrong result: {error}", markup=False)
        return FAILED
    if options.output:
        try:
            options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            console.print(f"benchmarks/sandbox.py: {error}", markup=False)
            return BAD_CONFIG
    return OK


async def _until_signal(work: Any, terminated: list[int]) -> dict[str, Any]:
    """SIGTERM ends it as Ctrl-C does."""
    task = asyncio.ensure_future(work)

    def stop() -> None:
        terminated.append(signal.SIGTERM)
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return await task


async def _run(options: argparse.Namespace, place: Place, console: Console) -> dict[str, Any]:
    plan = measure.QUICK if options.quick else measure.FULL
    plan = replace(plan, live=options.live or plan.live, rounds=options.rounds or plan.rounds)
    chosen = [system for system in SYSTEMS if not options.only or system.name in options.only]
    extra: dict[str, Any] = {"machine": _machine(place), "load_before": os.getloadavg()}
    with console.status("preparing one environment in every form") as status:

        def say(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(text, markup=False, highlight=False)

        context = Context(place, fixture.ensure(options.fixture))
        extra["environment"] = {"bytes": context.fixture.size_bytes, "files": context.fixture.files}
        results = {system.name: report.Result(system.name, system.what) for system in chosen}
        async with contextlib.AsyncExitStack() as stack:
            systems = await _open([system(context) for system in chosen], results, place, stack, say)
            await measure.interleaved(systems, results, plan, place, say)
            await measure.processor_time(systems, results, plan, place, say)
            await measure.at_once(systems, results, plan, say)
        if not options.only or Mini.name in options.only:
            say("a command in a session")
            extra["session"] = await inside.session_command(context, plan.session_commands)
            extra["memory"] = await inside.idle_memory(context, plan.live, say)
    extra["load_after"] = os.getloadavg()
    return _show(list(results.values()), extra, console)


async def _open(
    systems: Sequence[System],
    results: dict[str, report.Result],
    place: Place,
    stack: contextlib.AsyncExitStack,
    say: measure.Say,
) -> list[System]:
    """Those that can be measured; the others say why not."""
    usable: list[System] = []
    for system in systems:
        result = results[system.name]
        result.version, result.missing = system.version(), system.missing()
        if result.missing:
            continue
        say(f"preparing {system.name}")
        try:
            with place.inside(system.name):
                await stack.enter_async_context(system)
        except EngineError as error:
            result.missing = f"could not be prepared: {error}"
            continue
        usable.append(system)
    return usable


def _machine(place: Place) -> dict[str, Any]:
    return {
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "notes": place.notes,
    }


def _show(results: list[report.Result], extra: dict[str, Any], console: Console) -> dict[str, Any]:
    found = report.targets(results, extra)
    console.print(report.systems_table(results))
    for result in results:
        console.print(f"{result.name}: {result.what} {result.version}", markup=False, highlight=False)
        if result.missing:
            console.print(f"  not measured: {result.missing}", markup=False, highlight=False)
        for note in result.notes[:5]:
            console.print(f"  {note}", markup=False, highlight=False)
    for name in ("machine", "environment", "load_before", "load_after", "session", "memory"):
        if name in extra:
            console.print(f"{name}: {extra[name]}", markup=False, highlight=False)
    console.print(report.targets_table(found))
    return report.as_json(results, found, extra)


if __name__ == "__main__":
    sys.exit(main())
