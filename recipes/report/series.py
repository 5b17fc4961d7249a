"""A run as series of numbers over its steps, gathered from its metrics file and rollout index.

Group figures (how far the groups of a step lie apart) come from the index, since metrics hold only
means. A value that a step lacks is NaN, so that curves of different metrics stay aligned.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.report.metrics import FILE_NAME, StepMetrics, read_metrics
from recipes.report.trajectories import IndexLine, read_index
from recipes.swe.types import STAGES

RESOLVE_RATE = ("environment/resolved_mean", "reward/avg_raw_reward")
"""Metrics of the resolve rate, the first that exists counts."""
STEP_TIMES = (
    ("rollouts", "timing/generate"),
    ("logprobs", "timing/fwd_logprobs_values_reward"),
    ("update", "timing/policy_train"),
    ("weight sync", "timing/sync_weights"),
    ("checkpoint", "timing/save_checkpoints"),
)
"""Parts of a trainer step with their metrics; what they leave of timing/step is called other."""
HELD_OUT_RATE = ("eval/all/environment/resolved_mean", "eval/all/avg_score")
"""Metrics of an evaluation, the first that exists counts."""
FAILURES = "environment/num_fail_"
PER_STEP = {
    "cache_hit": "environment/cache_hit_mean",
    "gate_wait_s": "environment/gate_wait_mean",
    "memory_peak_mib": "environment/memory_peak_mib_max",
    "group_flat": "environment/group_flat_mean",
    "group_excluded": "environment/group_excluded_mean",
}
"""Field of RunSeries to the metric that it is."""


@dataclass(frozen=True, slots=True)
class RunSeries:
    """Everything a report draws."""

    steps: tuple[int, ...]
    """Trainer steps on record, from 1."""
    resolve_rate: tuple[float, ...]
    """Share of rollouts that solved their task, per step."""
    group_low: tuple[float, ...]
    """10th percentile of the groups' resolve rates, per step."""
    group_high: tuple[float, ...]
    """90th percentile of the groups' resolve rates, per step."""
    stage_s: Mapping[str, tuple[float, ...]]
    """Mean seconds a rollout spent in each stage, per step."""
    step_s: Mapping[str, tuple[float, ...]]
    """Seconds of each part of the trainer step, per step."""
    logprob_diff_mean: tuple[float, ...]
    """Mean absolute difference of sampled and recomputed logprobs, per step, nats."""
    rollouts: int
    """Rollouts on record."""
    failures: Mapping[str, int]
    """Failure kind to count: ours, not the model's, left out of training."""
    ends: Mapping[str, int]
    """How the agent's work ended, to count."""
    failures_by_step: Mapping[str, tuple[int, ...]]
    """Failure kind to count per step; only kinds that occurred."""
    held_out: tuple[tuple[int, float], ...]
    """(step, share solved) of each evaluation on held-out tasks; step 0 is before training."""
    cache_hit: tuple[float, ...]
    """Share of rollouts whose environment was ready on the node, per step."""
    gate_wait_s: tuple[float, ...]
    """Mean seconds a rollout waited for the gate in front of extraction, per step; part of env_prep."""
    memory_peak_mib: tuple[float, ...]
    """Highest memory of any sandbox, per step, MiB."""
    group_flat: tuple[float, ...]
    """Share of groups whose rewards are all equal, per step."""
    group_excluded: tuple[float, ...]
    """Share of groups left out for failures, per step."""


def load_series(run_dir: Path) -> RunSeries:
    """Read a run folder. Raises FileNotFoundError when it holds no metrics."""
    every = read_metrics(run_dir / FILE_NAME)
    metrics = [line for line in every if line.step >= 1]
    index = read_index(run_dir)
    groups = [_group_rates(index.get(line.step, [])) for line in metrics]
    known = {line.step for line in metrics}
    rollouts = [rollout for step, lines in index.items() if step in known for rollout in lines]
    return RunSeries(
        steps=tuple(line.step for line in metrics),
        resolve_rate=tuple(_first(line, RESOLVE_RATE) for line in metrics),
        group_low=tuple(_quantile(rates, 0.1) for rates in groups),
        group_high=tuple(_quantile(rates, 0.9) for rates in groups),
        stage_s={
            stage: tuple(_stage_mean(stage, line, index.get(line.step, [])) for line in metrics)
            for stage in STAGES
        },
        step_s=_step_parts(metrics),
        logprob_diff_mean=tuple(
            _first(line, ("policy/rollout_train_logprobs_abs_diff_mean",)) for line in metrics
        ),
        rollouts=len(rollouts),
        failures=_count(rollout.failure for rollout in rollouts),
        ends=_count(rollout.end for rollout in rollouts if not rollout.failure),
        failures_by_step=_failures_by_step(metrics),
        held_out=tuple(
            (line.step, rate) for line in every if math.isfinite(rate := _first(line, HELD_OUT_RATE))
        ),
        **{field: tuple(_first(line, (name,)) for line in metrics) for field, name in PER_STEP.items()},
    )


def _first(line: StepMetrics, names: Sequence[str]) -> float:
    return next((line.metrics[name] for name in names if name in line.metrics), math.nan)


def _group_rates(lines: Sequence[IndexLine]) -> list[float]:
    groups: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line.failure is None:
            groups[line.instance_id].append(float(line.verdict == "solved"))
    return sorted(statistics.fmean(rates) for rates in groups.values())


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics."""
    if not ordered:
        return math.nan
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _stage_mean(stage: str, line: StepMetrics, lines: Sequence[IndexLine]) -> float:
    name = f"generate/trajectory_time_{stage}_mean"
    if name in line.metrics:
        return line.metrics[name]
    times = [rollout.stage_times_s[stage] for rollout in lines if stage in rollout.stage_times_s]
    return statistics.fmean(times) if times else math.nan


def _step_parts(metrics: Sequence[StepMetrics]) -> dict[str, tuple[float, ...]]:
    parts = {
        label: tuple(_first(line, (name,)) for line in metrics)
        for label, name in STEP_TIMES
        if any(name in line.metrics for line in metrics)
    }
    whole = [_first(line, ("timing/step",)) for line in metrics]
    if parts and not all(math.isnan(seconds) for seconds in whole):
        parts["other"] = tuple(
            max(0.0, seconds - sum(values[i] for values in parts.values() if not math.isnan(values[i])))
            for i, seconds in enumerate(whole)
        )
    return parts


def _failures_by_step(metrics: Sequence[StepMetrics]) -> dict[str, tuple[int, ...]]:
    kinds = sorted({name for line in metrics for name in line.metrics if name.startswith(FAILURES)})
    counts = {name: tuple(int(line.metrics.get(name, 0)) for line in metrics) for name in kinds}
    return {name.removeprefix(FAILURES): values for name, values in counts.items() if any(values)}


def _count(values: Iterable[str | None]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for value in values:
        if value is not None:
            counts[value] += 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
