"""The picture of a run: is it learning (above), and where does the time go (below).

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

BLUE, SKY, GREY = "#0072B2", "#56B4E9", "#7f7f7f"
PALETTE = ("#56B4E9", "#009E73", "#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#999999")
LABELS = {
    "env_prep": "environment",
    "sandbox_start": "sandbox start",
    "llm": "model",
    "env": "commands",
    "grade": "grading",
    "cleanup": "clean-up",
}


def draw_report(series: RunSeries, title: str, path: Path) -> None:
    """Write the picture as PNG."""
    figure = Figure(figsize=(9.5, 8.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.25, 1.0))
    figure.suptitle(title, fontsize=13, fontweight="bold")
    _draw_curve(above, series)
    _draw_times(below, series)
    below.set_xlabel("trainer step")
    below.set_xlim(0.3, max(series.steps, default=1) + 0.7)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
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
    axes.set_ylabel("rollouts that fixed their bug")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _tidy(axes)
    axes.legend(loc="upper left", frameon=False, fontsize=9)


def _draw_times(axes: Axes, series: RunSeries) -> None:
    stages = {LABELS.get(name, name): values for name, values in series.stage_s.items() if _any(values)}
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


def _stack(axes: Axes, steps: Sequence[int], parts: Mapping[str, Sequence[float]]) -> None:
    bottom = [0.0] * len(steps)
    for colour, (label, values) in zip(PALETTE, parts.items(), strict=False):
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
