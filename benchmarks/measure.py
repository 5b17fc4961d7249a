"""The measuring loops: one at a time and interleaved, many at once, and processor time by batches.

Works on any `System`; a start whose result is wrong counts as such and is never timed. Summaries and targets
are in `benchmarks.report`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.children import WrongResultError
from benchmarks.place import Place
from benchmarks.report import Result
from benchmarks.systems import System

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int
    """Starts of each system, one at a time."""
    slow_rounds: int
    """The same for a system that takes seconds."""
    at_once: Mapping[int, int]
    """Number at once -> repetitions."""
    cpu_batches: int
    """Batches for processor time."""
    cpu_starts: int
    """Starts in a batch."""
    live: int
    """Sandboxes kept open together."""
    session_commands: int
    """Commands in a session."""


QUICK = Plan(10, 1, {32: 1}, 2, 5, 50, 200)
FULL = Plan(40, 3, {32: 3, 128: 1}, 3, 15, 200, 2000)


async def interleaved(
    systems: Sequence[System], results: Mapping[str, Result], plan: Plan, place: Place, say: Say
) -> None:
    """A, B, C, A, B, C, ...: whatever drifts hits all alike. The first start of each is thrown away."""
    for system in systems:
        if not system.slow:
            await (await system.start()).finish()
    every = max(1, plan.rounds // max(1, plan.slow_rounds))
    for number in range(plan.rounds):
        say(f"one at a time: round {number + 1} of {plan.rounds}")
        for system in systems:
            if system.slow and (number % every or len(results[system.name].start_ms) >= plan.slow_rounds):
                continue
            await _one(system, results[system.name], place)
            await asyncio.sleep(system.settle_s)


async def _one(system: System, result: Result, place: Place) -> None:
    if system.slow:  # too dear to start again for its processor time only
        with place.inside(system.name):
            cpu_before = place.cpu_s(system.name)
            await _timed(system, result)
            result.cpu_ms.append((place.cpu_s(system.name) - cpu_before) * 1e3)
    else:
        await _timed(system, result)


async def _timed(system: System, result: Result) -> None:
    await system.ready(1)
    begin = time.perf_counter()
    try:
        started = await system.start()
        first = time.perf_counter()
        await started.finish()
    except WrongResultError as error:
        result.notes.append(f"wrong result: {error}")
        return
    result.start_ms.append((first - begin) * 1e3)
    result.teardown_ms.append((time.perf_counter() - first) * 1e3)


async def processor_time(
    systems: Sequence[System], results: Mapping[str, Result], plan: Plan, place: Place, say: Say
) -> None:
    """Everything between a request and its end, daemons and kernel work in their name included."""
    for batch in range(plan.cpu_batches):
        say(f"processor time: batch {batch + 1} of {plan.cpu_batches}")
        for system in systems:
            if system.slow:
                continue
            with place.inside(system.name):
                before = place.cpu_s(system.name)
                for _ in range(plan.cpu_starts):
                    await system.ready(1)
                    await (await system.start()).finish()
                await asyncio.sleep(system.settle_s)  # a pool fills up again: that belongs to the start
                used = place.cpu_s(system.name) - before
            results[system.name].cpu_ms.append(used / plan.cpu_starts * 1e3)


async def at_once(systems: Sequence[System], results: Mapping[str, Result], plan: Plan, say: Say) -> None:
    """Many starts together, each ended as soon as its result is here; per second over all of it."""
    for count, repetitions in plan.at_once.items():
        for repetition in range(repetitions):
            for system in systems:
                if system.slow:
                    continue
                say(f"{count} at once: {system.name}, {repetition + 1} of {repetitions}")
                result = results[system.name]
                await system.ready(count)
                begin = time.perf_counter()
                done = await asyncio.gather(*(_whole(system) for _ in range(count)))
                elapsed = time.perf_counter() - begin
                right = sum(error is None for error in done)
                result.rates.setdefault(count, []).append(right / elapsed)
                before = result.correct.get(count, (0, 0))
                result.correct[count] = (before[0] + right, before[1] + count)
                result.notes += sorted({f"{count} at once: {error}" for error in done if error})[:3]
                await asyncio.sleep(max(0.3, system.settle_s))


async def _whole(system: System) -> str | None:
    """None when right."""
    try:
        await (await system.start()).finish()
    except (WrongResultError, TimeoutError) as error:
        return str(error) or "timed out"
    return None
