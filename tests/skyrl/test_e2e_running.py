"""Asynchronous runs, runs on two nodes, and runs hit by a killed server and a killed worker; with vLLM."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch

from recipes.report.metrics import read_metrics
from recipes.report.trajectories import read_rollouts
from recipes.swe.advantages import LOGPROB_DIFF
from recipes.swe.trainers import STALENESS_MAX
from recipes.swe.types import Rollout
from tests.skyrl.test_e2e import RUN_VARIABLE, finish, folder, start, steps_on_record, survivors

__all__ = ["folder"]
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_asynchronous_training_is_exact_and_bounded(folder: Path) -> None:
    """Steps whose groups are fresh agree to rounding with the trainer; none is staler than allowed."""
    steps = 6
    status, text = finish(
        start(
            folder,
            "trainer=grpo_cpu_async",
            f"trainer.max_steps={steps}",
            "trainer.max_staleness_steps=1",
            "agent.pause_s=0.3",  # so that updates and weight syncs fall into the midst of rollouts
            "skyrl.trainer.dump_data_batch=true",
        ),
        folder,
        timeout_s=500,
    )
    assert status == 0, text[-3000:]
    assert survivors(folder) == []
    lines = read_metrics(folder / "runs/toy/metrics.jsonl")
    assert [line.step for line in lines] == list(range(1, steps + 1))
    staleness = [line.metrics[STALENESS_MAX] for line in lines]
    assert max(staleness) == 1, "sampled while the policy was updated, and no longer than allowed"
    fresh = [line for line, stale in zip(lines, staleness, strict=True) if stale == 0]
    assert fresh and max(line.metrics[LOGPROB_DIFF] for line in fresh) < 1e-3
    assert any(line.metrics[LOGPROB_DIFF] > 1e-2 for line in lines), "a stale one is seen to be stale"
    check_trained_rows(folder, steps)


def check_trained_rows(folder: Path, steps: int) -> None:
    """Each row that was trained on is a recorded rollout, ids and log-probabilities as they were sampled."""
    recorded: dict[tuple[int, ...], Rollout] = {}
    for path in (folder / "runs/toy/rollouts").glob("step_*.jsonl"):
        if not path.name.endswith(".index.jsonl"):
            for rollout in read_rollouts(path):
                assert rollout.trajectory is not None
                last = rollout.trajectory.turns[-1]
                recorded[last.prompt_ids + last.response_ids] = rollout
    for step in range(1, steps + 1):
        dump = folder / f"runs/toy/exports/dumped_data/global_step_{step}_training_input.pkl"
        batch = TrainingInputBatch().load(str(dump))
        assert len(batch["sequences"]) == 16
        for row in range(16):
            ids = tuple(batch["sequences"][row][batch["attention_mask"][row].bool()].tolist())
            trajectory = recorded[ids].trajectory
            assert trajectory is not None
            trained = batch["loss_mask"][row].bool()
            logprobs = torch.tensor([value for turn in trajectory.turns for value in turn.logprobs])
            assert torch.equal(batch["rollout_logprobs"][row][trained], logprobs)


def test_two_nodes_a_killed_server_and_a_killed_worker(folder: Path) -> None:
    """Nothing is lost: the server comes back with the last weights, the worker's rollouts run elsewhere."""
    steps = 5
    process = start(
        folder,
        f"trainer.max_steps={steps}",
        "cluster.num_nodes=2",
        "agent.pause_s=2",  # a step takes some seconds, so that there is a midst of it
    )
    after_step(process, folder, 1)
    time.sleep(1.5)
    workers = of_run(folder, lambda line: line.startswith("ray::RolloutWorker"))
    assert len(workers) == 2
    kill(workers[0])
    after_step(process, folder, 2)
    time.sleep(1.5)
    (server,) = of_run(folder, lambda line: "vllm_server_actor" in line and "recipes.cpu.guard" not in line)
    kill(server)
    status, text = finish(process, folder, timeout_s=500)
    assert status == 0, text[-3000:]
    assert survivors(folder) == []
    assert text.count("starting it again") == 1
    lines = read_metrics(folder / "runs/toy/metrics.jsonl")
    assert [line.step for line in lines] == list(range(1, steps + 1))
    assert max(line.metrics[LOGPROB_DIFF] for line in lines) < 1e-3, "the new server has the last weights"
    failed = [
        sum(v for k, v in line.metrics.items() if k.startswith("environment/num_fail_")) for line in lines
    ]
    assert failed == [0.0] * steps
    retried = [line.metrics["environment/num_retried"] for line in lines]
    assert 1 <= retried[1] <= 16 and retried[0] == 0, "those of the killed worker, and no others"


def after_step(process: subprocess.Popen[bytes], folder: Path, step: int) -> None:
    deadline = time.monotonic() + 400
    while step not in steps_on_record(folder):
        assert process.poll() is None, (folder / "out.txt").read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def of_run(folder: Path, wanted: Callable[[str], bool]) -> list[psutil.Process]:
    """Processes of the run with such a command line."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if wanted(" ".join(process.cmdline())) and process.environ().get(RUN_VARIABLE) == folder.name:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def kill(process: psutil.Process) -> None:
    process.kill()
