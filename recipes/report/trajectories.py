"""Rollouts written so that a person can read them, and so that a program can replay them.

`rollouts/step_0007/` holds one text file a rollout (what the model wrote, what it was shown, the patch,
the verdict) and `rollouts/step_0007.jsonl` the exact records, token ids and logprobs included. It keeps
the last attempt at a step: a resumed run overwrites the files of the steps that it repeats.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from recipes.swe.types import Rollout, Turn

RULE = "=" * 100


def write_rollouts(run_dir: Path, step: int, rollouts: Sequence[Rollout]) -> Path:
    """Write all rollouts of a step; returns the folder of the text files."""
    folder = run_dir / "rollouts" / f"step_{step:04d}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for index, rollout in enumerate(rollouts):
        name = f"{index:03d}_{verdict(rollout)}_{safe_name(rollout.instance_id)}.txt"
        (folder / name).write_text(rollout_text(rollout), encoding="utf-8")
    with folder.with_suffix(".jsonl").open("w", encoding="utf-8") as file:
        for rollout in rollouts:
            file.write(json.dumps(asdict(rollout)) + "\n")
    return folder


def verdict(rollout: Rollout) -> str:
    """One word for a file name: solved, unsolved, or failed (ours, not trained on)."""
    if rollout.failure is not None or rollout.reward is None:
        return "failed"
    return "solved" if rollout.reward.resolved else "unsolved"


def safe_name(text: str) -> str:
    """`text` with everything but letters, digits, dot, dash and underscore replaced, cut to 80."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text)[:80]


def rollout_text(rollout: Rollout) -> str:
    """The whole rollout as text."""
    lines = [f"instance   {rollout.instance_id}", f"trajectory {rollout.trajectory_id}"]
    lines.append(f"verdict    {verdict(rollout)}")
    if rollout.failure is not None:
        lines.append(f"failure    {rollout.failure.kind}: {rollout.failure.message}")
    if rollout.reward is not None:
        reward = rollout.reward
        lines.append(
            f"reward     {reward.reward:g}  (FAIL_TO_PASS passed {reward.f2p_fraction:.0%}, "
            f"PASS_TO_PASS broken {reward.p2p_broken})"
        )
        lines.extend(f"reason     {reason}" for reason in reward.reasons)
    times = "  ".join(f"{stage} {seconds:.2f} s" for stage, seconds in rollout.stage_times_s.items())
    lines.append(f"stages     {times}  (attempts: {rollout.attempts})")
    if rollout.trajectory is not None:
        lines.append(f"end        {rollout.trajectory.end} after {len(rollout.trajectory.turns)} turns")
        for number, turn in enumerate(rollout.trajectory.turns, start=1):
            lines.extend(_turn_lines(number, turn))
        lines.extend([RULE, "PATCH", rollout.trajectory.patch or "(empty)"])
    return "\n".join(lines) + "\n"


def _turn_lines(number: int, turn: Turn) -> list[str]:
    mean_logprob = sum(turn.logprobs) / len(turn.logprobs) if turn.logprobs else 0.0
    return [
        RULE,
        f"TURN {number}  ({len(turn.prompt_ids)} prompt tokens, {len(turn.response_ids)} sampled, "
        f"mean logprob {mean_logprob:.3f}, {turn.stop_reason})",
        turn.response,
        "--- shown next " + "-" * 85,
        turn.observation or "(nothing: last turn)",
    ]
