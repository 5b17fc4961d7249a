"""What an evaluation found: pass@1 with a confidence interval, what failed, where the time went.

Made from the rows of its rollouts alone, so that it can be made again. A rollout that failed for reasons of
ours says nothing about the policy: it is left out, counted, and a second figure takes it as unsolved. With
one rollout a task the interval is Wilson's; with several the tasks are resampled (bootstrap), since rollouts
of one task are not independent.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl

from recipes.swe.types import STAGES

RESAMPLES = 10_000
"""Of the bootstrap."""
BOOTSTRAP_SEED = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures. Shares are of 1, times are seconds."""

    tasks: int
    """Tasks attempted."""
    tasks_judged: int
    """Tasks with at least one healthy rollout; what follows is about these."""
    rollouts: int
    """Attempts, failed ones included."""
    pass_at_1: float | None
    """Mean over tasks of the share of healthy rollouts that solved the task; None without any."""
    interval: tuple[float, float] | None
    """Of pass@1."""
    interval_method: str
    """wilson or bootstrap over tasks."""
    confidence: float
    """Of the interval."""
    pass_at_1_failures_unsolved: float
    """The same with failed rollouts taken as unsolved: what it is at least."""
    pass_at_k: dict[int, float]
    """Unbiased estimate for each k up to the rollouts that every judged task has."""
    solved_tasks: int
    """Tasks that at least one rollout solved."""
    failures: dict[str, int]
    """Failed rollouts by kind (ours, not the policy's)."""
    ends: dict[str, int]
    """How the agent's work ended, healthy rollouts."""
    by_repo: dict[str, tuple[int, float]]
    """Repository to (judged tasks, pass@1)."""
    means: dict[str, float]
    """Over healthy rollouts: f2p_fraction, turns, sampled_tokens, format_errors, seconds of each stage."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def evaluate_rows(rows: pl.DataFrame, *, confidence: float = 0.95) -> Evaluation:
    """The figures of an evaluation's rows (see `recipes.report.rows`)."""
    healthy = rows.filter(
        pl.col("failure").is_null() & ~pl.col("quarantined") & pl.col("resolved").is_not_null()
    )
    counts = healthy.group_by("instance_id").agg(pl.col("resolved").sum(), pl.len().alias("n"))
    counts = counts.sort("instance_id")
    solved, tried = counts["resolved"].to_numpy(), counts["n"].to_numpy()
    rates = solved / tried if len(tried) else np.zeros(0)
    single = bool(len(tried)) and int(tried.max()) == 1
    least = int(tried.min()) if len(tried) else 0
    return Evaluation(
        tasks=rows["instance_id"].n_unique(),
        tasks_judged=len(counts),
        rollouts=len(rows),
        pass_at_1=float(rates.mean()) if len(rates) else None,
        interval=interval(rates, confidence, single=single) if len(rates) else None,
        interval_method="wilson" if single else "bootstrap over tasks",
        confidence=confidence,
        pass_at_1_failures_unsolved=_with_failures(rows),
        pass_at_k={k: _pass_at_k(solved, tried, k) for k in range(1, least + 1)},
        solved_tasks=int((solved > 0).sum()),
        failures=_counts(rows["failure"]),
        ends=_counts(healthy["end"]),
        by_repo=_by_repo(counts, rates),
        means=_means(healthy),
    )


def interval(rates: Sequence[float] | Any, confidence: float, *, single: bool) -> tuple[float, float]:
    """Confidence interval of the mean of tasks' solve rates; `single`: each is 0 or 1."""
    values = np.asarray(rates, dtype=float)
    if single:
        return wilson(int(values.sum()), len(values), confidence)
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    means = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        means[index] = values[generator.integers(0, len(values), len(values))].mean()
    low, high = np.quantile(means, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


def wilson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluation_text(evaluation: Evaluation, title: str) -> str:
    """One screen for a person."""
    e = evaluation
    lines = [title, "=" * len(title)]
    if e.pass_at_1 is None or e.interval is None:
        lines.append(f"no rollout of {e.rollouts} could be judged")
    else:
        low, high = e.interval
        lines.append(
            f"pass@1     {e.pass_at_1:.3f}   {e.confidence:.0%} interval [{low:.3f}, {high:.3f}] "
            f"({e.interval_method})"
        )
        lines.extend(f"pass@{k:<5} {value:.3f}" for k, value in e.pass_at_k.items() if k > 1)
    lines.append(f"tasks      {e.tasks_judged} judged of {e.tasks}, {e.solved_tasks} solved at least once")
    kinds = ", ".join(f"{kind} {count}" for kind, count in e.failures.items())
    failed = sum(e.failures.values())
    lines.append(f"rollouts   {e.rollouts}, {failed} failed (ours){': ' + kinds if kinds else ''}")
    if failed:
        lines.append(f"           with these as unsolved, pass@1 is {e.pass_at_1_failures_unsolved:.3f}")
    if e.ends:
        lines.append("ended by   " + ", ".join(f"{end} {count}" for end, count in e.ends.items()))
    stages = [(stage, e.means.get(f"{stage}_s", 0.0)) for stage in STAGES]
    if whole := sum(seconds for _, seconds in stages):
        shares = ", ".join(f"{stage} {seconds / whole:.0%}" for stage, seconds in stages)
        lines.append(f"time       {whole:.1f} s a rollout: {shares}")
    if "turns" in e.means:
        lines.append(
            f"work       {e.means['turns']:.1f} turns, {e.means['sampled_tokens']:.0f} tokens sampled"
        )
    if len(e.by_repo) > 1:
        lines.append("by repository (judged tasks, pass@1)")
        width = max(map(len, e.by_repo))
        for name, (count, rate) in e.by_repo.items():
            lines.append(f"  {name:<{width}}  {count:>4}  {rate:.3f}")
    return "\n".join(lines) + "\n"


def _with_failures(rows: pl.DataFrame) -> float:
    """Mean over tasks with every rollout that is not healthy taken as unsolved."""
    good = pl.col("resolved").fill_null(False) & pl.col("failure").is_null() & ~pl.col("quarantined")
    rates = rows.group_by("instance_id").agg(good.mean().alias("rate"))
    return float(rates["rate"].sum() / len(rates)) if len(rates) else 0.0


def _pass_at_k(solved: Any, tried: Any, k: int) -> float:
    """Chance that at least one of k rollouts drawn from a task's solves it, mean over tasks."""
    pairs = zip(solved.tolist(), tried.tolist(), strict=True)
    return float(np.mean([1 - math.comb(n - c, k) / math.comb(n, k) for c, n in pairs]))


def _counts(values: pl.Series) -> dict[str, int]:
    table = values.drop_nulls().value_counts(sort=True)
    return {str(name): int(count) for name, count in table.iter_rows()}


def _by_repo(counts: pl.DataFrame, rates: Any) -> dict[str, tuple[int, float]]:
    """By the first part of the instance id, which names the repository in all data sets."""
    groups: dict[str, list[float]] = {}
    for name, rate in zip(counts["instance_id"], rates.tolist(), strict=True):
        groups.setdefault(_repo(name), []).append(rate)
    return {name: (len(values), sum(values) / len(values)) for name, values in sorted(groups.items())}


def _repo(instance_id: str) -> str:
    """`owner__name` of SWE-smith's `owner__name.commit.bug` and SWE-bench's `owner__name-123`."""
    name = instance_id.split(".", 1)[0]
    head, _, number = name.rpartition("-")
    return head if head and number.isdigit() else name


def _means(healthy: pl.DataFrame) -> dict[str, float]:
    names = ("f2p_fraction", "turns", "sampled_tokens", "format_errors", *(f"{stage}_s" for stage in STAGES))
    means = {name: healthy[name].fill_null(0).mean() for name in names if len(healthy)}
    return {name: float(mean) for name, mean in means.items() if isinstance(mean, int | float)}
