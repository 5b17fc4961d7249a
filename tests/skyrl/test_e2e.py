"""SkyRL's trainer and a real vLLM server, end to end, with a tiny random model and a toy environment."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch

from recipes.report.metrics import read_metrics
from recipes.report.trajectories import read_rollouts
from recipes.swe.advantages import LOGPROB_DIFF
from tests.skyrl.tiny_model import save_tiny_model
from tests.skyrl.toy import write_tasks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
RUN_VARIABLE = "MINISANDBOX_RUN"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with model and tasks; its path is short, since Ray's sockets lie below it."""
    path = Path(tempfile.mkdtemp(prefix="toy", dir="/tmp"))
    save_tiny_model(path / "model")
    write_tasks(path / "tasks.jsonl", 8)
    yield path
    shutil.rmtree(path)


def start(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, RUN_VARIABLE: folder.name, "PYTHONPATH": str(ROOT)}
    with (folder / "out.txt").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.skyrl.run_toy", str(folder), *overrides],
            cwd=ROOT,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def finish(process: subprocess.Popen[bytes], folder: Path, timeout_s: float = 300) -> tuple[int, str]:
    try:
        status = process.wait(timeout=timeout_s)
    finally:
        process.kill()
        process.wait()
    return status, (folder / "out.txt").read_text(errors="replace")


def survivors(folder: Path, timeout_s: float = 15) -> list[str]:
    """Processes that carry the run's variable, once they had time to go."""
    deadline = time.monotonic() + timeout_s
    while True:
        found: list[str] = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(RUN_VARIABLE) == folder.name:
                    found.append(" ".join(process.cmdline())[:200])
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def steps_on_record(folder: Path) -> list[int]:
    path = folder / "runs/toy/metrics.jsonl"
    return [line.step for line in read_metrics(path)] if path.exists() else []


def kill_after_step(process: subprocess.Popen[bytes], folder: Path, step: int) -> None:
    deadline = time.monotonic() + 300
    while step not in steps_on_record(folder):
        assert process.poll() is None, (folder / "out.txt").read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, "no step in 300 s"
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_trains_survives_a_kill_and_resumes(folder: Path) -> None:
    options = ["agent.fail_ids=[toy__task.00000000.toy__00000000/1]", "skyrl.trainer.dump_data_batch=true"]
    process = start(folder, "trainer.max_steps=40", *options)
    kill_after_step(process, folder, 2)
    assert survivors(folder) == []
    saved = int((folder / "runs/toy/checkpoints/latest_ckpt_global_step.txt").read_text())
    assert saved >= 2

    last = saved + 2
    again = start(folder, f"trainer.max_steps={last}", "skyrl.trainer.resume_mode=latest", *options)
    status, text = finish(again, folder)
    assert status == 0, text[-3000:]
    assert survivors(folder) == []
    assert steps_on_record(folder) == list(range(1, last + 1))
    assert f"step {last}/{last}" in text
    lines = read_metrics(folder / "runs/toy/metrics.jsonl")
    # The difference is there for every step, and both sides hold the same weights after every sync.
    assert max(line.metrics[LOGPROB_DIFF] for line in lines) < 1e-3
    assert all(line.metrics["policy/grad_norm"] > 0 for line in lines)
    # Every other step has the task whose second rollout fails on purpose.
    assert any(line.metrics["environment/num_fail_sandbox"] == 1 for line in lines)
    check_rows(folder, last)


def check_rows(folder: Path, last: int) -> None:
    """The tensors that were trained on, against the turns as they were recorded: byte for byte."""
    for step in range(1, last + 1):
        rollouts = read_rollouts(folder / f"runs/toy/rollouts/step_{step:04d}.jsonl")
        dump = folder / f"runs/toy/exports/dumped_data/global_step_{step}_training_input.pkl"
        batch = TrainingInputBatch().load(str(dump))
        assert len(rollouts) == len(batch["sequences"]) == 16
        for row, rollout in enumerate(rollouts):
            trained = batch["loss_mask"][row].bool()
            if rollout.trajectory is None:
                assert not trained.any()
                continue
            turns = rollout.trajectory.turns
            sequence = batch["sequences"][row][batch["attention_mask"][row].bool()]
            assert bytes_of(sequence.tolist()) == bytes_of(turns[-1].prompt_ids + turns[-1].response_ids)
            responses = batch["sequences"][row][-trained.shape[0] :]
            sampled = [token for turn in turns for token in turn.response_ids]
            assert bytes_of(responses[trained].tolist()) == bytes_of(sampled)
            logprobs = torch.tensor([value for turn in turns for value in turn.logprobs])
            assert torch.equal(batch["rollout_logprobs"][row][trained], logprobs)


@pytest.mark.slow
def test_elided_histories_train_row_by_row(folder: Path) -> None:
    """Every sampled token of two steps was trained on once, behind the prompt that the server was sent."""
    elision = ["agent.keep_last_observations=1", "agent.toy_turns=4"]
    training = ["skyrl.generator.step_wise_trajectories=true", "skyrl.trainer.dump_data_batch=true"]
    status, text = finish(start(folder, "trainer.max_steps=2", *elision, *training), folder)
    assert status == 0, text[-3000:]
    lines = read_metrics(folder / "runs/toy/metrics.jsonl")
    assert max(line.metrics[LOGPROB_DIFF] for line in lines) < 1e-3
    for step in (1, 2):
        rollouts = read_rollouts(folder / f"runs/toy/rollouts/step_{step:04d}.jsonl")
        dump = folder / f"runs/toy/exports/dumped_data/global_step_{step}_training_input.pkl"
        batch = TrainingInputBatch().load(str(dump))
        assert len(batch["sequences"]) == 3 * 16, "two turns, then one more for each elision"
        sampled = [
            (turn.prompt_ids + turn.response_ids[: at + 1], torch.tensor(turn.logprobs[at]).item())
            for rollout in rollouts
            for turn in (rollout.trajectory.turns if rollout.trajectory else ())
            for at in range(len(turn.response_ids))
        ]
        assert sorted(trained_tokens(batch)) == sorted(sampled)


@pytest.mark.slow
def test_a_step_of_failures_stops_the_run_with_a_report(folder: Path) -> None:
    status, text = finish(start(folder, "trainer.max_steps=3", "agent.fail_ids=[/0,/1,/2]"), folder)
    assert status == 1
    assert "TooManyFailuresError: 12 of 16 rollouts of step 1 failed" in text, text[-3000:]
    report = (folder / "runs/toy/failures_step_0001.txt").read_text()
    assert "sandbox: 12\n    12 x on purpose" in report
    (line,) = read_metrics(folder / "runs/toy/metrics.jsonl")
    assert line.metrics["environment/num_fail_sandbox"] == 12
    assert not any(name.startswith("policy/") for name in line.metrics), "nothing was trained"
    assert survivors(folder) == []


def trained_tokens(batch: TrainingInputBatch) -> list[tuple[tuple[int, ...], float]]:
    """Each token with a loss, as all ids up to it, and its log-probability as sampled."""
    found: list[tuple[tuple[int, ...], float]] = []
    width = batch["loss_mask"].shape[1]
    for row in range(len(batch["sequences"])):
        ids = batch["sequences"][row][batch["attention_mask"][row].bool()].tolist()
        for column in batch["loss_mask"][row].nonzero().flatten().tolist():
            upto = tuple(ids[: len(ids) - width + column + 1])
            found.append((upto, batch["rollout_logprobs"][row, column].item()))
    return found


def bytes_of(ids: list[int] | tuple[int, ...]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in ids)


def test_a_sync_that_misses_the_packed_head_is_caught(folder: Path) -> None:
    # vLLM's own CPU worker does not pack the head again after a reload: a real way for a sync to be broken.
    stale = (
        "skyrl.generator.inference_engine.engine_init_kwargs.worker_cls=vllm.v1.worker.cpu_worker.CPUWorker"
    )
    status, text = finish(start(folder, stale), folder)
    assert status != 0
    assert "LogprobMismatchError" in text
    assert steps_on_record(folder)[0] == 1  # before the first update both sides hold the same weights
    assert survivors(folder) == []
