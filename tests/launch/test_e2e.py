"""The real command, trained for real: killed in the middle, then resumed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launch.cleanup import RUN_VARIABLE, clean_up
from recipes.report.metrics import read_metrics
from tests.launch.runner import ROOT

TASKS = ROOT / ".cache" / "tasks" / "local.jsonl"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not TASKS.exists(),
        reason="needs launch/prepare.py to have run",
    ),
]


def command(folder: Path, *more: str) -> list[str]:
    return [
        sys.executable, str(ROOT / "launch" / "train.py"), "+recipe=cpu_demo", f"paths.runs_dir={folder}",
        f"policy.path={folder / 'policy'}",
        "trainer.max_steps=4", "trainer.prompts_per_step=4", "trainer.rollouts_per_prompt=4",
        "trainer.checkpoint_every_steps=1", "trainer.checkpoints_kept=-1", *more,
    ]  # fmt: skip


def carriers(run_name: str) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_VARIABLE, "").startswith(f"{run_name}@"):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def msb_folders() -> set[Path]:
    return {*Path("/tmp").glob("msb-*"), *Path("/dev/shm").glob("msb-*")}


def test_a_killed_run_leaves_nothing_after_the_next_start_and_resumes(tmp_path: Path):
    from tests.skyrl.tiny_model import save_tiny_model  # imports torch

    save_tiny_model(tmp_path / "policy")
    folder = tmp_path / "cpu_demo-seed0"
    before = msb_folders()
    environment = {key: value for key, value in os.environ.items() if key != RUN_VARIABLE}
    log = (tmp_path / "first.log").open("w")
    process = subprocess.Popen(command(tmp_path), stdout=log, stderr=log, env=environment)
    latest = folder / "checkpoints" / "latest_ckpt_global_step.txt"
    deadline = time.monotonic() + 900
    while not latest.exists() or int(latest.read_text() or 0) < 2:
        assert process.poll() is None, (tmp_path / "first.log").read_text()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.kill()
    process.wait()
    assert carriers("cpu_demo-seed0"), "a killed driver leaves processes, else this test shows nothing"
    owner = json.loads((folder / "owner.json").read_text())
    assert owner["state"] == "running"

    done = subprocess.run(command(tmp_path), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "going on with cpu_demo-seed0" in done.stdout
    assert "removed what dead runs left" in done.stdout
    assert [line.step for line in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4]
    assert (folder / "report.png").exists()
    assert carriers("cpu_demo-seed0") == []
    assert msb_folders() <= before
    assert clean_up().sandbox_parts == 0
    assert sorted(path.name for path in (folder / "rollouts").glob("step_*.index.jsonl")) == [
        f"step_{step:04d}.index.jsonl" for step in (1, 2, 3, 4)
    ]


def test_a_step_is_trained_in_every_kind_of_sandbox(tmp_path: Path, sandboxes: list[str]):
    """In Ray's worker, whose event loop is another than that of an evaluation."""
    from tests.skyrl.tiny_model import save_tiny_model  # imports torch

    save_tiny_model(tmp_path / "policy")
    words = command(tmp_path, *sandboxes, "trainer.max_steps=1", "logger=file")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (step,) = read_metrics(tmp_path / "cpu_demo-seed0" / "metrics.jsonl")
    assert step.metrics["environment/num_rollouts"] == 16
    assert step.metrics["environment/infra_failure_rate_mean"] == 0
