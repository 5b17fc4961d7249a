"""From samples to figures: medians, the targets of the sandbox against its peers, the table and the JSON.

Pure functions over plain data; nothing is measured here. A target whose figures are missing says why.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

BARE, FLOOR, COLD, POOL, PAPER, PODMAN = "fork", "floor", "mini", "mini-pool", "paper", "podman"
AGAIN, READY, SHELL = "mini-again", "mini-ready", "mini-shell"
"""A sandbox opened ahead for the very environment; judged as the warm pool is."""
BWRAPS = ("bwrap-overlay", "bwrap")
"""Compared with the first that was measured: the overlay does what ours does."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Some samples of one quantity."""

    median: float
    """Middle sample."""
    p90: float
    """Ninth decile, by nearest rank."""
    n: int
    """Number of samples."""


@dataclass(slots=True)
class Result:
    """What was measured of one system."""

    name: str
    """Name of the system."""
    what: str
    """What one start includes."""
    version: str = ""
    """Version of its program."""
    missing: str = ""
    """Why nothing was measured, or ''."""
    start_ms: list[float] = field(default_factory=list[float])
    """Start to the first command's output, one at a time."""
    teardown_ms: list[float] = field(default_factory=list[float])
    """From there until all is gone."""
    cpu_ms: list[float] = field(default_factory=list[float])
    """Processor time of all its processes per start and end; each sample is a mean over a batch."""
    rates: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    """Starts per second, start and end, with so many at once."""
    correct: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Correct results of all, with so many at once."""
    notes: list[str] = field(default_factory=list[str])
    """What else should be known, such as errors."""


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the contract."""

    name: str
    """What is asked."""
    need: str
    """The bound, in words."""
    got: str
    """The figure, or why there is none."""
    met: bool | None
    """None when it was not measured."""


def summarize(samples: Sequence[float]) -> Summary | None:
    """None without samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    rank = min(len(ordered) - 1, max(0, -(-9 * len(ordered) // 10) - 1))
    return Summary(statistics.median(ordered), ordered[rank], len(ordered))


def _median(result: Result | None, quantity: str) -> float | None:
    found = summarize(getattr(result, quantity)) if result else None
    return found.median if found else None


def _at_least(name: str, need: float, above: float | None, below: float | None, why: str) -> Target:
    """`above` must be at least `need` times `below`."""
    if above is None or below is None or below <= 0:
        return Target(name, f">= {need:g}x", f"not measured: {why}", None)
    return Target(name, f">= {need:g}x", f"{above / below:.1f}x", above / below >= need)


def _at_most(name: str, need: float, value: float | None, base: float | None, why: str) -> Target:
    """`value` may be at most `need` times `base`."""
    if value is None or base is None or base <= 0:
        return Target(name, f"<= {need:g}x", f"not measured: {why}", None)
    return Target(name, f"<= {need:g}x", f"{value / base:.2f}x", value / base <= need)


def targets(results: Sequence[Result], extra: dict[str, Any]) -> list[Target]:
    """Every target of the sandbox's contract that this benchmark judges."""
    by_name = {result.name: result for result in results}
    found: list[Target] = []
    bwrap = next((name for name in BWRAPS if _median(by_name.get(name), "start_ms")), BWRAPS[-1])
    for ours, bounds in (
        (COLD, ((PODMAN, 20.0), ("crun", 5.0), (bwrap, 1.5))),
        (POOL, ((PODMAN, 40.0), ("crun", 10.0))),
        (AGAIN, ((PODMAN, 40.0), ("crun", 10.0))),
        (READY, ((PODMAN, 40.0), ("crun", 10.0))),
        (SHELL, ((PODMAN, 40.0), ("crun", 10.0))),
    ):
        mine = _median(by_name.get(ours), "start_ms")
        for peer, need in bounds:
            theirs = _median(by_name.get(peer), "start_ms")
            why = _why(by_name, ours, peer)
            found.append(_at_least(f"start: {ours} faster than {peer}", need, theirs, mine, why))
        floor = _median(by_name.get(FLOOR), "start_ms")
        bound = 2.5 if ours == COLD else 1.3
        found.append(
            _at_most(f"start: {ours} against the floor", bound, mine, floor, _why(by_name, ours, FLOOR))
        )
    cold, teardown = (_median(by_name.get(COLD), name) for name in ("start_ms", "teardown_ms"))
    found.append(_at_most("teardown against a cold start", 0.5, teardown, cold, _why(by_name, COLD)))
    for count in (32, 128):
        for ours in (COLD, POOL, READY, SHELL):
            found.append(_rate_target(by_name, ours, count))
    paper, mine = (_median(by_name.get(name), "cpu_ms") for name in (PAPER, COLD))
    found.append(
        _at_least("CPU per start, less than the paper's", 1000, paper, mine, _why(by_name, COLD, PAPER))
    )
    return found + _extra_targets(extra)


def _rate_target(by_name: dict[str, Result], ours: str, count: int) -> Target:
    rates = [
        summarize(by_name[name].rates.get(count, [])) if name in by_name else None for name in (ours, PODMAN)
    ]
    mine, theirs = (rate.median if rate else None for rate in rates)
    target = _at_least(
        f"{count} at once: {ours}'s rate over podman's", 40, mine, theirs, _why(by_name, ours, PODMAN)
    )
    right, total = by_name[ours].correct.get(count, (0, 0)) if ours in by_name else (0, 0)
    if target.met and right < total:
        return Target(target.name, target.need, f"{target.got}, only {right} of {total} correct", False)
    return target


def _why(by_name: dict[str, Result], *names: str) -> str:
    reasons = [
        f"{name}: {by_name[name].missing or 'not in this run'}" if name in by_name else f"{name}: left out"
        for name in names
        if name not in by_name or by_name[name].missing or not by_name[name].start_ms
    ]
    return "; ".join(reasons) or "not in this run"


def _extra_targets(extra: dict[str, Any]) -> list[Target]:
    session, memory = extra.get("session"), extra.get("memory")
    over = session["over_ms"] if session else None
    found = [
        Target("session command over a bare shell", "<= 1 ms", "not measured", None)
        if over is None
        else Target("session command over a bare shell", "<= 1 ms", f"{over:.3f} ms", over <= 1.0)
    ]
    if not memory:
        return [*found, Target("unshared memory of an idle sandbox", "<= 1.5 MiB", "not measured", None)]
    mib = memory["unshared_mib"]["median"]
    found.append(Target("unshared memory of an idle sandbox", "<= 1.5 MiB", f"{mib:.2f} MiB", mib <= 1.5))
    enough = memory["live"] >= 1000
    got = f"{memory['live']} opened" if enough else f"not measured: {memory['live']} (--live 1000)"
    return [*found, Target("1,000 live idle sandboxes", ">= 1000", got, True if enough else None)]


def systems_table(results: Sequence[Result]) -> Table:
    """One row a system."""
    by_name = {result.name: result for result in results}
    counts = sorted({count for result in results for count in result.rates})
    table = Table(title="Start to first command", title_justify="left")
    headings = ["system", "median ms", "p90", "n", "against podman", "teardown ms", "both ms", "CPU ms/start"]
    for heading in headings + [f"per s, {count} at once" for count in counts]:
        table.add_column(
            heading, justify="left" if heading == "system" else "right", no_wrap=heading == "system"
        )
    podman = _median(by_name.get(PODMAN), "start_ms")
    for result in results:
        if result.missing:
            table.add_row(result.name, "[yellow]not measured")
            continue  # the reason is too long for a cell and stands below
        start = summarize(result.start_ms)
        figures = ["-"] * 4
        if start:
            ratio = f"{podman / start.median:.1f}x" if podman else "-"
            figures = [f"{start.median:.2f}", f"{start.p90:.2f}", str(start.n), ratio]
        rates = [_rate_cell(result, count) for count in counts]
        table.add_row(
            result.name,
            *figures,
            _cell(result.teardown_ms),
            _cell(_both(result)),
            _cell(result.cpu_ms),
            *rates,
        )
    return table


def _both(result: Result) -> list[float]:
    """Whole runs, as `time podman run --rm ...` would show them."""
    return [start + end for start, end in zip(result.start_ms, result.teardown_ms, strict=True)]


def _cell(samples: Sequence[float]) -> str:
    found = summarize(samples)
    return f"{found.median:.2f}" if found else "-"


def _rate_cell(result: Result, count: int) -> str:
    found = summarize(result.rates.get(count, []))
    if not found:
        return "-"
    right, total = result.correct[count]
    return f"{found.median:.1f}" + ("" if right == total else f" ({right}/{total} right)")


def targets_table(found: Sequence[Target]) -> Table:
    """One row a target."""
    table = Table(title="Targets", title_justify="left")
    for heading in ("target", "need", "got", ""):
        table.add_column(heading)
    for target in found:
        mark = {True: "[green]met", False: "[red]NOT met", None: "[yellow]not measured"}[target.met]
        table.add_row(target.name, target.need, target.got, mark)
    return table


def as_json(results: Sequence[Result], found: Sequence[Target], extra: dict[str, Any]) -> dict[str, Any]:
    """Everything, samples included."""
    systems: dict[str, Any] = {}
    for result in results:
        data = asdict(result)
        for quantity in ("start_ms", "teardown_ms", "cpu_ms"):
            summary = summarize(data[quantity])
            data[quantity + "_summary"] = asdict(summary) if summary else None
        systems[result.name] = data
    return {"systems": systems, "targets": [asdict(target) for target in found], **extra}
