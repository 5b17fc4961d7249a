"""The line printed after each trainer step, from the step's metrics alone."""

import math
from collections.abc import Mapping
from typing import Any

from recipes.swe.types import STAGES

BAR_WIDTH = 20


def progress_line(step: int, total: int, metrics: Mapping[str, Any]) -> str:
    """One line: step, mean reward, resolve rate as a bar, stage times, step time, logprob difference."""
    rate = _get(metrics, "environment/resolved_mean", _get(metrics, "reward/avg_raw_reward"))
    filled = 0 if math.isnan(rate) else round(rate * BAR_WIDTH)
    stages = " ".join(
        f"{stage} {_seconds(value)}"
        for stage in STAGES
        if not math.isnan(value := _get(metrics, f"generate/trajectory_time_{stage}_mean"))
    )
    parts = [
        f"step {step:>{len(str(total))}}/{total}",
        f"reward {_number(_get(metrics, 'reward/avg_raw_reward'))}",
        f"resolved {_number(rate)} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}]",
        f"stages(mean s): {stages}" if stages else "",
        f"step {_seconds(_get(metrics, 'timing/step'))} s",
        f"logprob diff {_get(metrics, 'policy/rollout_train_logprobs_abs_diff_mean'):.1e}",
        f"held-out {_number(_get(metrics, 'eval/all/environment/resolved_mean'))}",
    ]
    failed = sum(
        int(value) for name, value in metrics.items() if name.startswith("environment/num_fail_") and value
    )
    if failed:
        parts.append(f"failed {failed}")
    return "  ".join(part for part in parts if part and "nan" not in part.split())


def _get(metrics: Mapping[str, Any], name: str, default: float = math.nan) -> float:
    try:
        return float(metrics[name])
    except (KeyError, TypeError, ValueError):
        return default


def _number(value: float) -> str:
    return f"{value:.3f}"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
