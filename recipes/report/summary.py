"""The one-screen summary of a run: did it learn, where did the time go, what failed, where is what."""

import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from recipes.report.series import RunSeries

WIDTH = 98
ENDS = 3
"""Steps averaged at each end of the run."""


def summary_text(series: RunSeries, run_dir: Path, *, colour: bool = False) -> str:
    """The summary, at most one screen (about 30 lines)."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, force_terminal=colour, highlight=False, color_system="auto")
    console.rule(f"[bold]{run_dir.name}[/bold]")
    console.print(_learning(series))
    console.print(_times(series))
    console.print(_health(series))
    console.print(_files(run_dir))
    return out.getvalue()


def first_and_last(series: RunSeries) -> tuple[float, float]:
    """Mean resolve rate of the first and of the last three steps."""
    rates = [rate for rate in series.resolve_rate if math.isfinite(rate)]
    return _mean(rates[:ENDS]), _mean(rates[-ENDS:])


def _learning(series: RunSeries) -> Table:
    first, last = first_and_last(series)
    by_step = zip(series.resolve_rate, series.steps, strict=True)
    known = ((rate, -step) for rate, step in by_step if math.isfinite(rate))
    best = max(known, default=(math.nan, 0))  # the earliest of equals
    table = _table("Resolve rate")
    table.add_row(f"first {ENDS} steps", f"{first:.3f}")
    table.add_row(f"last {ENDS} steps", f"[bold]{last:.3f}[/bold]  ({last - first:+.3f})")
    table.add_row("best step", f"{best[0]:.3f} at step {-best[1]}")
    if series.held_out:
        (start, before), (end, after) = series.held_out[0], series.held_out[-1]
        table.add_row("held-out tasks", f"{before:.3f} at step {start}, {after:.3f} at step {end}")
    table.add_row("steps", f"{len(series.steps)} ({series.rollouts} rollouts on record)")
    return table


def _times(series: RunSeries) -> Table:
    table = _table("Time")
    table.add_row("of a rollout", _shares(series.stage_s.items()))
    if series.step_s:
        table.add_row("of a step", _shares(series.step_s.items()))
    hits, waits, prepared = (
        _finite_mean(values)
        for values in (series.cache_hit, series.gate_wait_s, series.stage_s.get("env_prep", ()))
    )
    if math.isfinite(hits):
        share = f" ({waits / prepared:.0%} of it)" if waits > 0 and prepared > 0 else ""
        table.add_row("environments", f"{hits:.1%} ready on the node, {waits:.2f} s at the gate{share}")
    return table


def _health(series: RunSeries) -> Table:
    table = _table("Health")
    failed = sum(series.failures.values())
    share = f" ({failed / series.rollouts:.1%} of rollouts)" if series.rollouts else ""
    kinds = ", ".join(f"{kind} {count}" for kind, count in series.failures.items())
    table.add_row("failures (not trained on)", f"{failed}{share}{': ' + kinds if kinds else ''}")
    excluded, flat = _finite_mean(series.group_excluded), _finite_mean(series.group_flat)
    if math.isfinite(excluded) and math.isfinite(flat):
        table.add_row("groups without a lesson", f"{flat:.0%} of one reward, {excluded:.1%} left out whole")
    peaks = [peak for peak in series.memory_peak_mib if math.isfinite(peak)]
    if peaks:
        table.add_row("largest sandbox", f"{max(peaks):.0f} MiB")
    if series.ends:
        table.add_row("agent ended by", ", ".join(f"{end} {count}" for end, count in series.ends.items()))
    differences = [value for value in series.logprob_diff_mean if math.isfinite(value)]
    if differences:
        table.add_row("logprob difference", f"mean at most {max(differences):.1e} (served - trained)")
    return table


def _files(run_dir: Path) -> Table:
    table = _table("Files")
    for name, what in (
        ("report.png", "picture"),
        ("metrics.jsonl", "metrics"),
        ("rollouts.parquet", "every rollout as a row"),
        ("rollouts", "trajectories as text"),
        ("checkpoints", "checkpoints"),
        ("config.yaml", "configuration"),
        ("wandb", "W&B (wandb sync)"),
    ):
        if (run_dir / name).exists():
            table.add_row(what, str(run_dir / name))
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
    table.add_column(width=26)
    table.add_column(overflow="fold")
    return table


def _shares(parts: Iterable[tuple[str, Sequence[float]]]) -> str:
    means = {name: _mean([v for v in values if math.isfinite(v)]) for name, values in parts}
    means = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    whole = sum(means.values())
    if not whole:
        return "unknown"
    listed = ", ".join(f"{name} {mean / whole:.0%}" for name, mean in means.items())
    return f"{whole:.2f} s: {listed}"


def _finite_mean(values: Sequence[float]) -> float:
    return _mean([value for value in values if math.isfinite(value)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
