"""Rows of rollouts: one a rollout, whole after a kill, none twice after a resume."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl

from recipes.report.recorder import RolloutRecorder
from recipes.report.rows import MERGED, PARTS, SCHEMA, merge_parts, read_rows, write_part
from recipes.report.samples import COLUMNS, Sample, pick_samples, sample_row
from recipes.report.trajectories import read_index, read_rollouts
from recipes.swe.types import Failure
from tests.launch.fake_run import make_rollout

ROOT = Path(__file__).resolve().parents[2]
SOLVED = make_rollout("a__b.1", solved=True)
UNSOLVED = make_rollout("a__b.1", solved=False, repetition=1)
FAILED = make_rollout("c__d.2", solved=False, failed=True)


def record(recorder: RolloutRecorder, step: int, *rollouts, phase="train") -> None:
    asyncio.run(recorder.observe(phase, step, rollouts))


def test_a_row_says_what_the_rollout_says(tmp_path: Path):
    full = replace(SOLVED, cache_hit=True, gate_wait_s=0.5, memory_peak_bytes=1 << 20, cpu_s=1.25)
    write_part(tmp_path, "train", 3, 0, [full, FAILED])
    frame = read_rows(tmp_path)
    assert frame is not None and dict(frame.schema) == SCHEMA
    first, second = frame.to_dicts()
    for name, value in {
        "run": tmp_path.name, "phase": "train", "step": 3, "instance_id": "a__b.1", "verdict": "solved",
        "trained_on": True, "failure": None, "reward": 1.0, "resolved": True, "turns": 2, "sampled_tokens": 4,
        "context_tokens": 9, "cache_hit": True, "gate_wait_s": 0.5, "memory_peak_bytes": 1 << 20,
        "sandbox_cpu_s": 1.25, "end": "submitted", "patch_bytes": 15,
    }.items():  # fmt: skip
        assert first[name] == value, name
    assert first["llm_s"] == full.stage_times_s["llm"]
    assert (second["verdict"], second["failure"], second["reward"]) == ("failed", "sandbox", None)
    assert second["trained_on"] is False and second["cache_hit"] is None and second["patch_sha256"] is None


def test_text_that_is_not_unicode_stops_nothing(tmp_path: Path):
    turn = replace(SOLVED.trajectory.turns[0], response="\ud800")
    bad = replace(SOLVED, trajectory=replace(SOLVED.trajectory, turns=(turn,), patch="+\udcff\n"))
    broken = replace(FAILED, failure=Failure("sandbox", "said \udcfe"))
    recorder = RolloutRecorder(tmp_path)
    record(recorder, 1, bad, broken)
    assert read_rollouts(tmp_path / "rollouts/step_0001.jsonl") == [bad, broken]
    assert pl.read_parquet(recorder.finish())["failure_message"].to_list() == [None, "said \\udcfe"]
    assert all("\udcff" not in str(value) for value in sample_row(recorder.take_samples()[0]))


def test_records_are_exact_whatever_is_in_them(tmp_path: Path):
    """Separators that only str.splitlines knows, infinities, and floats to the last bit."""
    turn = replace(SOLVED.trajectory.turns[0], response="a\x85b\u2028c\x1cd\re", observation="日本\0")
    odd = replace(turn, response_ids=(7, 8, 9), logprobs=(float("-inf"), -0.1 - 0.2, -5e-324))
    records = [
        replace(SOLVED, trajectory=replace(SOLVED.trajectory, turns=(one, one))) for one in (turn, odd)
    ]
    record(RolloutRecorder(tmp_path), 1, *records)
    assert read_rollouts(tmp_path / "rollouts/step_0001.jsonl") == records


def test_batches_of_a_step_add_up_and_an_earlier_attempt_goes(tmp_path: Path):
    first = RolloutRecorder(tmp_path)
    record(first, 1, SOLVED, UNSOLVED, FAILED)
    record(first, 2, UNSOLVED)
    record(first, 2, SOLVED)
    record(first, 2, SOLVED, phase="eval")
    again = RolloutRecorder(tmp_path)  # a resumed process, which begins step 2 again
    again.keep_until(1)
    record(again, 2, FAILED)
    record(again, 2, SOLVED)
    frame = pl.read_parquet(again.finish())
    rows = [(row["phase"], row["step"], row["verdict"]) for row in frame.to_dicts()]
    assert rows == [
        ("train", 1, "solved"), ("train", 1, "unsolved"), ("train", 1, "failed"),
        ("train", 2, "failed"), ("train", 2, "solved"),
    ]  # fmt: skip
    assert [len(lines) for lines in read_index(tmp_path).values()] == [3, 2]
    assert len(list((tmp_path / "rollouts/step_0002").iterdir())) == 2
    assert read_index(tmp_path / "eval")[2][0].verdict == "solved"


KILLED = """
import sys
from pathlib import Path
from recipes.report.recorder import RolloutRecorder
from tests.launch.fake_run import make_rollout
recorder = RolloutRecorder(Path(sys.argv[1]))
for step in range(1, 1_000_000):
    recorder.write("train", step, [make_rollout(f"t{i}", solved=i % 2 == 0) for i in range(16)])
    print(step, flush=True)
"""


def test_a_killed_run_loses_at_most_the_step_it_was_in(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 5:
            break
    time.sleep(0.03)
    process.send_signal(signal.SIGKILL)
    told = [5, *map(int, process.stdout.read().split())]
    process.wait()
    merged = merge_parts(tmp_path)
    assert merged == tmp_path / MERGED
    counts = dict(pl.read_parquet(merged).group_by("step").len().iter_rows())
    assert counts == dict.fromkeys(range(1, max(counts) + 1), 16)
    assert max(counts) >= told[-1]


def test_parts_of_an_older_version_are_read(tmp_path: Path):
    write_part(tmp_path, "train", 1, 0, [SOLVED])
    old = pl.read_parquet(write_part(tmp_path, "train", 2, 0, [SOLVED])).drop("wait_slot_s", "cache_hit")
    old.write_parquet(tmp_path / PARTS / "train_000002_0000.parquet")
    frame = read_rows(tmp_path)
    assert frame is not None and frame["step"].to_list() == [1, 2] and set(frame.columns) == set(SCHEMA)


def test_samples_show_every_verdict():
    many = [Sample("train", 1, SOLVED)] * 9 + [Sample("train", 1, FAILED), Sample("train", 1, UNSOLVED)]
    picked = [sample_row(sample)[COLUMNS.index("verdict")] for sample in pick_samples(many, 4)]
    assert picked == ["solved", "unsolved", "failed", "solved"]
    assert all(len(sample_row(sample)) == len(COLUMNS) for sample in many)
