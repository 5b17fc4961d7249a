"""One table row per rollout: what analyses of a run and curricula of later runs read.

Written a part a batch below `rollouts_parquet/`, each part whole or not there at all, and merged into
`rollouts.parquet` at the end, so that a killed run loses at most the batch that it was in. A step that is
repeated after a resume replaces its parts. Trajectories themselves are not in here; they are recorded by
`recipes.report.trajectories` under the same trajectory ids.
"""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl

from recipes.report.trajectories import verdict
from recipes.swe.parsing import TOOLS
from recipes.swe.rollout_metrics import tool_calls
from recipes.swe.types import STAGES, WAITS, Rollout, Trajectory, is_healthy
from rewards.types import RewardResult

Phase = Literal["train", "eval"]
PARTS = "rollouts_parquet"
MERGED = "rollouts.parquet"
SCHEMA: dict[str, Any] = {
    "run": pl.String,
    "phase": pl.String,
    "step": pl.Int64,
    "logged_at_s": pl.Float64,
    "trajectory_id": pl.String,
    "instance_id": pl.String,
    "verdict": pl.String,
    "trained_on": pl.Boolean,
    "failure": pl.String,
    "failure_message": pl.String,
    "quarantined": pl.Boolean,
    "attempts": pl.Int64,
    "end": pl.String,
    "reward": pl.Float64,
    "resolved": pl.Boolean,
    "tests_passed": pl.Boolean,
    "f2p_fraction": pl.Float64,
    "p2p_fraction": pl.Float64,
    "p2p_broken": pl.Int64,
    "missing": pl.Int64,
    "dropped_paths": pl.Int64,
    "gradings": pl.Int64,
    "exhausted": pl.String,
    "suspicions": pl.List(pl.String),
    "grading_faults": pl.Int64,
    "turns": pl.Int64,
    "first_prompt_tokens": pl.Int64,
    "context_tokens": pl.Int64,
    "sampled_tokens": pl.Int64,
    "format_errors": pl.Int64,
    **{f"calls_{tool}": pl.Int64 for tool in TOOLS},
    "patch_bytes": pl.Int64,
    "patch_sha256": pl.String,
    "left_out": pl.Int64,
    **{f"{stage}_s": pl.Float64 for stage in STAGES},
    **{f"wait_{wait}_s": pl.Float64 for wait in WAITS},
    "cache_hit": pl.Boolean,
    "gate_wait_s": pl.Float64,
    "memory_peak_bytes": pl.Int64,
    "sandbox_cpu_s": pl.Float64,
}
"""Column to type. Times are seconds; `trained_on` says healthy, before groups are looked at."""


def rollout_row(run: str, phase: Phase, step: int, rollout: Rollout) -> dict[str, Any]:
    """The row of one rollout, keys of SCHEMA; what it does not know is None."""
    return {
        "run": run,
        "phase": phase,
        "step": step,
        "logged_at_s": time.time(),
        "trajectory_id": rollout.trajectory_id,
        "instance_id": rollout.instance_id,
        "verdict": verdict(rollout),
        "trained_on": is_healthy(rollout) and phase == "train",
        "failure": rollout.failure.kind if rollout.failure else None,
        "failure_message": _printable(rollout.failure.message) if rollout.failure else None,
        "quarantined": rollout.quarantined,
        "attempts": rollout.attempts,
        "grading_faults": sum(rollout.grading_faults.values()),
        **_reward_fields(rollout.reward),
        **_work_fields(rollout.trajectory),
        **{f"{stage}_s": rollout.stage_times_s.get(stage) for stage in STAGES},
        **{f"wait_{wait}_s": rollout.waits_s.get(wait) for wait in WAITS},
        "cache_hit": rollout.cache_hit,
        "gate_wait_s": rollout.gate_wait_s,
        "memory_peak_bytes": rollout.memory_peak_bytes,
        "sandbox_cpu_s": rollout.cpu_s,
    }


def _reward_fields(reward: RewardResult | None) -> dict[str, Any]:
    if reward is None:
        return {}
    return {
        "reward": reward.reward,
        "resolved": reward.resolved,
        "tests_passed": reward.tests_passed,
        "f2p_fraction": reward.f2p_fraction,
        "p2p_fraction": reward.p2p_fraction,
        "p2p_broken": reward.p2p_broken,
        "missing": len(reward.missing),
        "dropped_paths": len(reward.dropped_paths),
        "gradings": reward.gradings,
        "exhausted": reward.exhausted,
        "suspicions": [_printable(text) for text in reward.suspicions],
    }


def _printable(text: str) -> str:
    """Without lone surrogates, which come from bytes that are not UTF-8 and fit no column."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _work_fields(trajectory: Trajectory | None) -> dict[str, Any]:
    if trajectory is None:
        return {}
    turns = trajectory.turns
    calls: Counter[str] = tool_calls(trajectory)
    patch = trajectory.patch.encode("utf-8", "surrogateescape")
    return {
        "end": trajectory.end,
        "turns": len(turns),
        "first_prompt_tokens": len(turns[0].prompt_ids) if turns else None,
        "context_tokens": max((len(t.prompt_ids) + len(t.response_ids) for t in turns), default=None),
        "sampled_tokens": sum(len(turn.response_ids) for turn in turns),
        "format_errors": calls[""],
        **{f"calls_{tool}": calls[tool] for tool in TOOLS},
        "patch_bytes": len(patch),
        "patch_sha256": hashlib.sha256(patch).hexdigest(),
        "left_out": len(trajectory.left_out),
    }


def write_part(
    run_dir: Path, phase: Phase, step: int, part: int, rollouts: Sequence[Rollout], *, run: str | None = None
) -> Path:
    """Write one batch; the first of a step (`part` 0) takes away what an earlier attempt at it left."""
    folder = run_dir / PARTS
    folder.mkdir(parents=True, exist_ok=True)
    if part == 0:
        for old in folder.glob(f"{phase}_{step:06d}_*.parquet"):
            old.unlink()
    rows = [rollout_row(run or run_dir.name, phase, step, rollout) for rollout in rollouts]
    path = folder / f"{phase}_{step:06d}_{part:04d}.parquet"
    _write_whole(pl.DataFrame(rows, schema=SCHEMA), path)
    return path


def keep_parts_until(run_dir: Path, step: int) -> None:
    """Take away the parts of later steps, which a resumed run repeats."""
    for path in (run_dir / PARTS).glob("*_*_*.parquet"):
        if int(path.stem.split("_")[1]) > step:
            path.unlink()


def read_rows(run_dir: Path) -> pl.DataFrame | None:
    """All rows of a run, from its parts or, without these, from the merged file; None when it has neither."""
    parts = sorted((run_dir / PARTS).glob("*.parquet"))
    if parts:  # Parts of an older version may lack a column.
        frame = pl.concat([pl.read_parquet(part) for part in parts], how="diagonal_relaxed")
        return frame.sort("phase", "step", maintain_order=True, descending=[True, False])
    merged = run_dir / MERGED
    return pl.read_parquet(merged) if merged.exists() else None


def merge_parts(run_dir: Path) -> Path | None:
    """Write `rollouts.parquet` out of the parts, which stay; None when there are none."""
    if not any((run_dir / PARTS).glob("*.parquet")):
        return None
    frame = read_rows(run_dir)
    assert frame is not None
    return _write_whole(frame, run_dir / MERGED)


def _write_whole(frame: pl.DataFrame, path: Path) -> Path:
    """Write a file that is there whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    frame.write_parquet(temporary, compression="zstd")
    temporary.replace(path)
    return path
