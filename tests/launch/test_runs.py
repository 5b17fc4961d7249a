"""A run's life: folder, owner, resume, and what a killed run leaves for the next start."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.cleanup import RUN_VARIABLE, clean_up, end_run, is_alive, make_run_id, start_ticks, temp_folder
from launch.config_compose import ConfigError
from launch.run_registry import changed_keys, checkpoint_step, plan_run, read_state, save_config, write_owner
from tests.launch.fake_run import make_run
from tests.launch.runner import inputs, start, train

SPAWNING = """
import os, subprocess, sys, time
from pathlib import Path
def run(config):
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
        start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    Path(config["paths"]["shm_dir"], "weights").write_text("w")
    Path(config["paths"]["run_dir"], "child").write_text(str(child.pid))
    time.sleep(600)
"""
REPORTING = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from tests.launch.fake_run import make_run
def run(config):
    make_run(Path(config["paths"]["run_dir"]), steps=4)
"""


def wait_for(path: Path) -> str:
    for _ in range(600):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise TimeoutError(path)


def checkpoint(folder: Path, step: int) -> None:
    (folder / "checkpoints" / f"global_step_{step}").mkdir(parents=True)
    (folder / "checkpoints" / "latest_ckpt_global_step.txt").write_text(str(step))


def test_a_finished_run_has_its_report_and_state(tmp_path: Path):
    body = REPORTING.format(tests=str(Path(__file__).parents[2]))
    done = train(inputs(tmp_path), body)
    folder = tmp_path / "runs" / "cpu_demo-seed0"
    assert done.returncode == 0, done.stderr
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "last 3 steps" in (folder / "summary.txt").read_text()
    assert "last 3 steps" in done.stdout
    assert read_state(folder) == "finished"
    assert not list((tmp_path / "tmp").iterdir())
    again = train(inputs(tmp_path), body)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "runs" / "cpu_demo-seed0-2" / "report.png").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_all_it_started(tmp_path: Path, number: signal.Signals):
    process = start(inputs(tmp_path), SPAWNING)
    folder = tmp_path / "runs" / "cpu_demo-seed0"
    child = int(wait_for(folder / "child"))
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert start_ticks(child) is None
    assert read_state(folder) == "interrupted"
    assert not list((tmp_path / "tmp").iterdir())


def test_after_a_kill_the_next_start_removes_what_was_left(tmp_path: Path):
    process = start(inputs(tmp_path), SPAWNING)
    folder = tmp_path / "runs" / "cpu_demo-seed0"
    child = int(wait_for(folder / "child"))
    process.kill()
    process.wait(timeout=60)
    assert start_ticks(child) is not None
    assert len(list((tmp_path / "tmp").iterdir())) == 2
    done = train(inputs(tmp_path), "def run(config): raise RuntimeError('planned')")
    assert done.returncode == 1
    assert start_ticks(child) is None
    assert not list((tmp_path / "tmp").iterdir())
    assert "1 processes" in done.stdout


def test_living_runs_are_left_alone(tmp_path: Path):
    code = "import time; print('up', flush=True); time.sleep(600)"
    mine = make_run_id("mine")
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, RUN_VARIABLE: mine}, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        folder = temp_folder(tmp_path, mine)
        cleaned = clean_up((tmp_path,))
        assert start_ticks(child.pid) is not None
        assert folder.exists()
        assert str(folder) not in map(str, cleaned.folders)
        end_run(mine, (folder,))
        child.wait(timeout=10)
    assert not folder.exists()


def test_run_ids():
    run_id = make_run_id("a@b")
    assert is_alive(run_id)
    name, pid, ticks, namespace = run_id.rsplit("@", 3)
    assert name == "a@b"
    assert not is_alive(f"{name}@{pid}@{int(ticks) + 1}@{namespace}")
    assert is_alive(f"{name}@999999999@1@1"), "another container's pids mean nothing here"
    assert is_alive("nonsense"), "what cannot be read is not ours to judge"


def test_plan_of_a_first_run(tmp_path: Path):
    plan = plan_run(tmp_path, "r", "auto", {})
    assert (plan.run_name, plan.resume_step) == ("r", None)


def test_an_unfinished_run_goes_on_from_its_checkpoint(tmp_path: Path):
    _, pid, _, namespace = make_run_id("r").rsplit("@", 3)
    write_owner(tmp_path / "r", f"r@{pid}@1@{namespace}", "running")
    save_config(tmp_path / "r", {"trainer": {"lr": 1}, "resume": "auto"})
    checkpoint(tmp_path / "r", 5)
    plan = plan_run(tmp_path, "r", "auto", {"trainer": {"lr": 1}, "resume": True})
    assert (plan.run_name, plan.resume_step) == ("r", 5)
    with pytest.raises(ConfigError, match=r"trainer\.lr"):
        plan_run(tmp_path, "r", "auto", {"trainer": {"lr": 2}})
    assert plan_run(tmp_path, "r", True, {"trainer": {"lr": 2}}).resume_step == 5
    assert plan_run(tmp_path, "r", False, {"trainer": {"lr": 2}}).run_name == "r-2"


def test_a_torn_checkpoint_is_none(tmp_path: Path):
    checkpoint(tmp_path / "r", 5)
    (tmp_path / "r" / "checkpoints" / "global_step_5").rmdir()
    assert checkpoint_step(tmp_path / "r") is None
    with pytest.raises(ConfigError, match="no checkpoint"):
        plan_run(tmp_path, "r", True, {})


def test_a_finished_run_is_not_touched(tmp_path: Path):
    write_owner(tmp_path / "r", "r@1@1@1", "finished")
    checkpoint(tmp_path / "r", 20)
    (tmp_path / "r-3").mkdir()
    write_owner(tmp_path / "r-3", "r@1@1@1", "finished")
    assert plan_run(tmp_path, "r", "auto", {}).run_name == "r-4"


def test_a_running_run_is_refused(tmp_path: Path):
    write_owner(tmp_path / "r", make_run_id("r"), "running")
    with pytest.raises(ConfigError, match="is running now"):
        plan_run(tmp_path, "r", "auto", {})


def test_changed_keys_leave_out_what_never_matters():
    old = {"a": {"b": 1}, "paths": {"x": 1}, "skyrl": {"trainer": {"ckpt_path": "p", "lr": 1}}}
    new = {"a": {"b": 2}, "paths": {"x": 2}, "skyrl": {"trainer": {"ckpt_path": "q", "lr": 2}}, "new": 1}
    assert changed_keys(old, new) == ["a.b", "new", "skyrl.trainer.lr"]


def test_owner_file(tmp_path: Path):
    write_owner(tmp_path, "id", "failed")
    record = json.loads((tmp_path / "owner.json").read_text())
    assert (record["run_id"], record["state"], record["pid"]) == ("id", "failed", os.getpid())


def test_report_command(tmp_path: Path):
    from launch.report import main

    make_run(tmp_path / "r", steps=3)
    assert main([str(tmp_path / "r")]) == 0
    assert main([str(tmp_path / "none")]) == 2
