"""The picture of a run: is it learning (above), where does the time go (below), and what failed, if anything.

Colours are the colour-blind-safe set of Okabe and Ito. Drawn with matplotlib's Agg canvas directly,
without pyplot's global state, so that it works with no display and in any thread.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from recipes.report.series import RunSeries

BLUE, SKY, GREY, ORANGE = "#0072B2", "#56B4E9", "#7f7f7f", "#D55E00"
STAGES = {
    "gate": ("gate (within environment)", "#F0E442"),
    "env_prep": ("environment", "#56B4E9"),
    "sandbox_start": ("sandbox start", "#009E73"),
    "llm": ("model", "#0072B2"),
    "env": ("commands", "#E69F00"),
    "grade": ("grading", "#D55E00"),
    "cleanup": ("clean-up", "#CC79A7"),
}
"""Stage to its name for people and its colour, which stays whatever other stages there are."""


def draw_report(series: RunSeries, title: str, path: Path) -> None:
    """Write the picture as PNG."""
    heights = (1.25, 1.0, 0.35) if series.failures_by_step else (1.25, 1.0)
    figure = Figure(figsize=(9.5, 6.6 + 1.6 * (len(heights) - 1)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    _draw_curve(axes[0], series)
    _draw_times(axes[1], series)
    if series.failures_by_step:
        _draw_failures(axes[2], series)
    first = 0.3 if not series.held_out else min(0.3, series.held_out[0][0] - 0.5)
    axes[-1].set_xlabel("trainer step")
    axes[-1].set_xlim(first, max(series.steps, default=1) + 0.7)
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, format="png")


def _draw_curve(axes: Axes, series: RunSeries) -> None:
    steps = series.steps
    axes.fill_between(
        steps, series.group_low, series.group_high, color=SKY, alpha=0.22, linewidth=0,
        label="groups of a step, 10th to 90th percentile",
    )  # fmt: skip
    axes.plot(
        steps,
        series.resolve_rate,
        "o-",
        color=BLUE,
        markersize=4,
        linewidth=1.3,
        label="resolve rate of a step",
    )
    if len(steps) >= 5:
        smooth = moving_mean(series.resolve_rate, 5)
        axes.plot(steps, smooth, color="black", linewidth=2, alpha=0.75, label="mean of 5 steps around")
    if series.held_out:
        steps, rates = zip(*series.held_out, strict=True)
        axes.plot(steps, rates, "D--", color=ORANGE, markersize=5, linewidth=1, label="held-out tasks")
    axes.set_ylabel("rollouts that fixed their bug")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _tidy(axes)
    axes.legend(loc="upper left", frameon=False, fontsize=9)


def _draw_times(axes: Axes, series: RunSeries) -> None:
    parts = _with_gate(series)
    stages = {name: values for name, values in parts.items() if _any(values)}
    _stack(axes, series.steps, stages)
    axes.set_ylabel("seconds of a rollout (mean)")
    _tidy(axes)
    handles, labels = axes.get_legend_handles_labels()
    whole = [  # a part that a step did not have (no checkpoint) is NaN
        sum(value for value in values if math.isfinite(value))
        for values in zip(*series.step_s.values(), strict=True)
    ]
    if any(math.isfinite(value) for value in whole):
        twin = axes.twinx()
        twin.plot(series.steps, whole, "k--", linewidth=1, label="whole trainer step (right)")
        twin.set_ylabel("seconds of a trainer step")
        twin.set_ylim(0, 1.25 * max(value for value in whole if math.isfinite(value)))
        twin.spines[["top"]].set_visible(False)
        more_handles, more_labels = twin.get_legend_handles_labels()
        handles, labels = handles + more_handles, labels + more_labels
    if handles:
        axes.legend(
            handles,
            labels,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
            ncols=4,
            frameon=False,
            fontsize=9,
        )


def _with_gate(series: RunSeries) -> dict[str, Sequence[float]]:
    """The stages, with what of env_prep was waiting at the gate as a part of its own."""
    parts: dict[str, Sequence[float]] = {}
    for name, values in series.stage_s.items():
        if name == "env_prep" and _any(series.gate_wait_s):
            waits = [wait if math.isfinite(wait) else 0.0 for wait in series.gate_wait_s]
            parts["gate"] = waits
            parts[name] = [max(0.0, value - wait) for value, wait in zip(values, waits, strict=True)]
        else:
            parts[name] = values
    return parts


def _draw_failures(axes: Axes, series: RunSeries) -> None:
    """Failed rollouts by class; drawn only when there were any."""
    colours = (ORANGE, "#E69F00", "#CC79A7", "#009E73", BLUE, "#F0E442", GREY)
    bottom = [0] * len(series.steps)
    for colour, (kind, counts) in zip(colours, series.failures_by_step.items(), strict=False):
        axes.bar(series.steps, counts, bottom=bottom, width=0.8, color=colour, label=kind, linewidth=0)
        bottom = [low + count for low, count in zip(bottom, counts, strict=True)]
    axes.set_ylabel("failed (ours)")
    axes.set_ylim(0, 1.3 * max(bottom))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    _tidy(axes)
    axes.legend(loc="upper left", ncols=len(series.failures_by_step), frameon=False, fontsize=8)


def _stack(axes: Axes, steps: Sequence[int], parts: Mapping[str, Sequence[float]]) -> None:
    bottom = [0.0] * len(steps)
    for name, values in parts.items():
        label, colour = STAGES.get(name, (name, GREY))
        heights = [value if math.isfinite(value) else 0.0 for value in values]
        axes.bar(steps, heights, bottom=bottom, width=0.8, color=colour, label=label, linewidth=0)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    if bottom and max(bottom) > 0:
        axes.set_ylim(0, 1.15 * max(bottom))


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def moving_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean of the finite values around each value, the window cut at the ends."""
    half = width // 2
    means: list[float] = []
    for index in range(len(values)):
        window = [v for v in values[max(0, index - half) : index + half + 1] if math.isfinite(v)]
        means.append(sum(window) / len(window) if window else math.nan)
    return means


def _any(values: Sequence[float]) -> bool:
    return any(math.isfinite(value) and value > 0 for value in values)
