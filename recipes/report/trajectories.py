"""Rollouts written so that a person can read them, and so that a program can replay them.

`rollouts/step_0007/` holds one text file a rollout (what the model wrote, what it was shown, the patch,
the verdict), `rollouts/step_0007.jsonl` the exact records, token ids and logprobs included, and
`rollouts/step_0007.index.jsonl` one short line a rollout for reports. A prompt is stored as edits of what
came before, so that records grow with a trajectory's length, not its square.
It keeps the last attempt at a step: a resumed run overwrites the files of the steps that it repeats.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, cast

import orjson

from recipes.report.token_delta import edits, rebuild
from recipes.swe.shared_ids import TokenIds
from recipes.swe.types import Failure, Rollout, Trajectory, Turn
from rewards.types import RewardResult

RULE = "=" * 100


@dataclass(frozen=True, slots=True)
class IndexLine:
    """What a report needs to know of one rollout."""

    trajectory_id: str
    """Unique in the run."""
    instance_id: str
    """Task; rollouts of one task in one step are a group."""
    verdict: str
    """solved, unsolved or failed."""
    reward: float | None
    """None when it failed or is quarantined."""
    end: str | None
    """How the agent ended; None when it failed before."""
    failure: str | None
    """Kind of failure."""
    turns: int
    """Turns taken."""
    sampled_tokens: int
    """Tokens sampled."""
    stage_times_s: dict[str, float]
    """Seconds a stage."""


def write_rollouts(run_dir: Path, step: int, rollouts: Sequence[Rollout], *, before: int = 0) -> Path:
    """Write rollouts of a step; returns the folder of the text files.

    `before`: how many of the step are written already; 0 begins it, taking away an earlier attempt."""
    folder = run_dir / "rollouts" / f"step_{step:04d}"
    if before == 0:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for index, rollout in enumerate(rollouts, start=before):
        name = f"{index:03d}_{verdict(rollout)}_{safe_name(rollout.instance_id)}.txt"
        (folder / name).write_text(rollout_text(rollout), encoding="utf-8", errors="backslashreplace")
    mode = "ab" if before else "wb"
    with folder.with_suffix(".jsonl").open(mode) as file:
        file.writelines(_line(_pack(rollout)) for rollout in rollouts)
    with folder.with_suffix(".index.jsonl").open(mode) as file:
        file.writelines(json.dumps(asdict(_index(rollout))).encode() + b"\n" for rollout in rollouts)
    return folder


def read_rollouts(path: Path) -> list[Rollout]:
    """The exact rollouts of a `step_NNNN.jsonl`."""
    with path.open("rb") as file:  # a line ends with \n only: not with all that str.splitlines knows
        return [_unpack(json.loads(line)) for line in file]


def read_index(run_dir: Path) -> dict[int, list[IndexLine]]:
    """Step to the short lines of its rollouts, for every step on record."""
    steps: dict[int, list[IndexLine]] = {}
    for path in sorted((run_dir / "rollouts").glob("step_*.index.jsonl")):
        step = int(path.name.removeprefix("step_").split(".", 1)[0])
        lines = path.read_text(encoding="utf-8").splitlines()
        steps[step] = [IndexLine(**json.loads(line)) for line in lines]
    return steps


def _line(record: dict[str, Any]) -> bytes:
    """The record as JSON. orjson takes a tenth of the time, but refuses text with lone surrogates (bytes that
    are no UTF-8), and writes infinities as null."""
    trajectory = record["trajectory"]
    if trajectory is None or all(isfinite(sum(turn["logprobs"])) for turn in trajectory["turns"]):
        try:
            return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError:
            pass
    return json.dumps(record).encode() + b"\n"


def _index(rollout: Rollout) -> IndexLine:
    turns = rollout.trajectory.turns if rollout.trajectory else ()
    trained = rollout.failure is None and not rollout.quarantined
    return IndexLine(
        trajectory_id=rollout.trajectory_id,
        instance_id=rollout.instance_id,
        verdict=verdict(rollout),
        reward=rollout.reward.reward if rollout.reward is not None and trained else None,
        end=rollout.trajectory.end if rollout.trajectory else None,
        failure=rollout.failure.kind if rollout.failure else None,
        turns=len(turns),
        sampled_tokens=sum(len(turn.response_ids) for turn in turns),
        stage_times_s=dict(rollout.stage_times_s),
    )


def _pack(rollout: Rollout) -> dict[str, Any]:
    if rollout.trajectory is None:
        return asdict(rollout)
    # Without the turns: asdict would walk over every id of every prompt.
    record = asdict(replace(rollout, trajectory=replace(rollout.trajectory, turns=())))
    before: TokenIds = ()
    turns: list[dict[str, Any]] = []
    for turn in rollout.trajectory.turns:
        packed = {one.name: getattr(turn, one.name) for one in fields(turn)}
        packed["prompt_ids"] = None if before else list(turn.prompt_ids)
        if before:
            packed["prompt_edits"] = edits(before, turn.prompt_ids)
        turns.append(packed)
        before = turn.prompt_ids + turn.response_ids
    record["trajectory"]["turns"] = turns
    return record


def _unpack(record: dict[str, Any]) -> Rollout:
    trajectory: Trajectory | None = None
    if record["trajectory"] is not None:
        turns: list[Turn] = []
        for packed in record["trajectory"]["turns"]:
            made = packed.pop("prompt_edits", None)
            if packed["prompt_ids"] is None:
                packed["prompt_ids"] = rebuild(turns[-1].prompt_ids + turns[-1].response_ids, made)
            sequences = {key: tuple(packed[key]) for key in ("prompt_ids", "response_ids", "logprobs")}
            turns.append(Turn(**{**packed, **sequences}))
        left_out = tuple((path, reason) for path, reason in record["trajectory"].get("left_out", ()))
        trajectory = Trajectory(**{**record["trajectory"], "turns": tuple(turns), "left_out": left_out})
    reward = None if record["reward"] is None else RewardResult(**_tuples(record["reward"]))
    failure = None if record["failure"] is None else Failure(**record["failure"])
    return Rollout(**{**record, "trajectory": trajectory, "reward": reward, "failure": failure})


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(cast(list[Any], v)) if isinstance(v, list) else v for key, v in record.items()}


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
    if rollout.quarantined:
        lines.append("quarantined: its verdict is suspicious, so it is not trained on")
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
