"""What W&B gets of a run, read back from the offline run's own folder."""

import asyncio
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from skyrl.train.config import SkyRLTrainConfig
from wandb.proto import wandb_internal_pb2 as pb

from launch.tracker import tracker_environment
from recipes.report.metrics import read_metrics
from recipes.report.recorder import RolloutRecorder
from recipes.report.samples import COLUMNS
from recipes.report.trajectories import rollout_text
from recipes.swe.tracking import RunTracking
from tests.launch.fake_run import make_rollout

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 32 * 1024
SETTINGS = {
    "recipe_name": "toy",
    "seed": 7,
    "run_name": "toy-seed7",
    "logger": {"mode": "offline", "entity": None},
}


def run_steps(folder: Path, last: int) -> None:
    """What a training does with its tracker."""
    recorder = RolloutRecorder(folder)
    tracking = RunTracking(
        run_dir=folder,
        total_steps=last,
        recorder=recorder,
        samples_every_steps=2,
        more_metrics=[lambda: {"data/extra_mean": 2.0}],
        project_name="toy",
        experiment_name="toy-seed7",
        backend="wandb",
        config=SkyRLTrainConfig(),
        tags=["sandbox:mini", "policy:tiny"],
    )
    failed = make_rollout("c__d.2", solved=False, failed=True)
    for step in range(1, last + 1):
        rollouts = [make_rollout("a__b.1", solved=step % 2 == 0), failed]
        asyncio.run(recorder.observe("train", step, rollouts))
        tracking.log({"environment/resolved_mean": step / 10}, step=step, commit=True)
    tracking.finish()
    tracking.finish()  # SkyRL calls it again when the object goes


def records(path: Path) -> Iterator[pb.Record]:
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    data, position, pending = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        pending += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = pb.Record()
            record.ParseFromString(pending)
            yield record
            pending = b""


def value_of(item: pb.HistoryItem) -> tuple[str, object]:
    return item.key or "/".join(item.nested_key), json.loads(item.value_json)


def test_an_offline_run_holds_metrics_samples_and_the_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in tracker_environment(SETTINGS | {"paths": {"run_dir": str(tmp_path)}}).items():
        monkeypatch.setenv(name, value)
    run_steps(tmp_path, 4)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    found = list(records(next(folder.glob("run-*.wandb"))))

    run = next(record.run for record in found if record.HasField("run"))
    assert (run.run_id, run.run_group, run.job_type) == ("toy-seed7", "toy-seed7", "train")
    assert (run.display_name, run.project, sorted(run.tags)) == (
        "toy-seed7", "toy", ["policy:tiny", "sandbox:mini"],
    )  # fmt: skip
    history = [dict(map(value_of, r.history.item)) for r in found if r.HasField("history")]
    logged = [(h["_step"], h["trainer/global_step"], h["environment/resolved_mean"]) for h in history]
    assert logged == [(step, step, step / 10) for step in (1, 2, 3, 4)]
    assert [h["data/extra_mean"] for h in history] == [2.0] * 4
    assert [h["_step"] for h in history if any(key.startswith("samples/rollouts") for key in h)] == [1, 2, 4]

    tables = sorted((folder / "files/media/table/samples").glob("rollouts_*.table.json"))
    assert len(tables) == 3
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in json.loads(tables[0].read_text())["data"]]
    assert [row["verdict"] for row in rows] == ["unsolved", "failed"]
    shown = next(json.loads(t.read_text())["data"] for t in tables if "solved" in t.read_text())
    assert rollout_text(make_rollout("c__d.2", solved=False, failed=True)) in [row[-1] for row in shown]

    artifacts = [r.request.log_artifact.artifact for r in found if r.request.HasField("log_artifact")]
    artifacts += [r.artifact for r in found if r.HasField("artifact")]
    (artifact,) = (artifact for artifact in artifacts if artifact.type == "rollouts")
    assert artifact.name == "rollouts-toy-seed7"
    (entry,) = artifact.manifest.contents
    assert entry.path == "rollouts.parquet" and Path(entry.local_path).exists()
    frame = pl.read_parquet(tmp_path / "rollouts.parquet")
    assert frame["step"].to_list() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [line.step for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


LEFT_OPEN = """
import sys
from pathlib import Path
from skyrl.train.config import SkyRLTrainConfig
from recipes.report.recorder import RolloutRecorder
from recipes.swe.tracking import RunTracking
folder = Path(sys.argv[1])
tracking = RunTracking(
    run_dir=folder, total_steps=1, recorder=RolloutRecorder(folder), project_name="toy",
    experiment_name="toy", backend="wandb", config=SkyRLTrainConfig(), tags=[],
)
tracking.log({"a": 1.0}, step=1, commit=True)
raise KeyboardInterrupt
"""


@pytest.mark.slow
def test_a_tracker_that_was_not_ended_does_not_hold_the_process(tmp_path: Path):
    environment = tracker_environment(SETTINGS | {"paths": {"run_dir": str(tmp_path)}})
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(tmp_path)],
        env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert "KeyboardInterrupt" in done.stderr and done.returncode != 0


def test_a_step_logged_in_two_parts_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # As SkyRL's asynchronous loop does: metrics first, times with the commit.
    tracking = RunTracking(
        run_dir=tmp_path,
        total_steps=2,
        recorder=RolloutRecorder(tmp_path),
        project_name="toy",
        experiment_name="toy",
        backend="console",
        config=SkyRLTrainConfig(),
        tags=[],
    )
    tracking.log({"reward/avg_raw_reward": 0.25}, step=1, commit=False)
    tracking.log({"timing/step": 3.5}, step=1, commit=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step 1/2")]
    assert len(lines) == 1
    assert "0.25" in lines[0] and "3.50" in lines[0]
    (step,) = read_metrics(tmp_path / "metrics.jsonl")
    assert step.metrics["reward/avg_raw_reward"] == 0.25 and step.metrics["timing/step"] == 3.5
