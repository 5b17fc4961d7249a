"""SkyRL's real loop with what chooses tasks: skips, dynamic sampling, evaluation, and a resume in between."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from skyrl.train.utils.trainer_utils import build_dataloader

from benchmarks.loop import make_loop
from recipes.report.metrics import read_metrics
from recipes.swe.dataset import TaskDataset
from recipes.swe.generator import SweGenerator
from recipes.swe.lookahead import Lookahead
from recipes.swe.task_loader import TaskLoader
from recipes.swe.task_order import OrderConfig, TaskOrder
from recipes.swe.tracking import DropRepeatedSteps
from recipes.swe.types import Rollout, RolloutRequest, TaskInstance
from rewards.types import TestSpec
from sandbox.types import EnvSpec
from tests.launch.fake_run import make_rollout

TRAIN = [f"task{i:02d}" for i in range(10)]
HELD_OUT = ["held0", "held1", "held2"]
ALWAYS, NEVER = {"task00", "task01"}, {"task02", "held2"}


def tasks(names: Sequence[str]) -> list[TaskInstance]:
    return [TaskInstance(name, "r", f"Fix {name}.", EnvSpec(name), TestSpec((), (), ())) for name in names]


class RuledFanout:
    """Some tasks are always solved, some never, the others by every other rollout; one rollout fails."""

    def __init__(self) -> None:
        self.trained: list[list[str]] = []

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        if requests[0].trajectory_id.startswith("step"):
            self.trained.append(list(dict.fromkeys(r.task.instance_id for r in requests)))
        return [self.rollout(request) for request in requests]

    def rollout(self, request: RolloutRequest) -> Rollout:
        name, repetition = request.task.instance_id, int(request.trajectory_id.rsplit("/", 1)[1])
        solved = name in ALWAYS or (name not in NEVER and repetition % 2 == 0)
        failed = name == "held1" and repetition == 1
        return make_rollout(name, solved=solved and not failed, failed=failed, repetition=repetition)


class Loop:
    """One process of a run: until `last`, from the beginning or after step `resume`."""

    def __init__(self, folder: Path, *, last: int, resume: int = 0, sampling: str | None = None) -> None:
        self.fanout = RuledFanout()
        trainer, self.tracker = make_loop(
            folder, self.fanout, tasks(TRAIN), prompts=3, samples=4, steps=last, update_s=0, overlap=False
        )
        cfg = trainer.cfg
        cfg.trainer.eval_interval, cfg.trainer.eval_before_train = 2, True
        cfg.trainer.eval_batch_size, cfg.generator.eval_n_samples_per_prompt = 2, 2
        cfg.trainer.algorithm.dynamic_sampling.type = sampling
        cfg.trainer.algorithm.dynamic_sampling.max_sample_batches = 2
        trainer.eval_dataloader = build_dataloader(cfg, TaskDataset(tasks(HELD_OUT)), is_train=False)  # type: ignore[arg-type]
        config = OrderConfig(seed=1, skip_solved_visits=1, skip_unsolved_visits=1)
        order = TaskOrder(TRAIN, 3, config)
        self.loader = TaskLoader(TaskDataset(tasks(TRAIN)), order, run_dir=folder)
        trainer.train_dataloader = self.ahead = Lookahead(self.loader)
        every = {task.instance_id: task for task in tasks([*TRAIN, *HELD_OUT])}
        observers = [self.tracker.recorder, self.loader]
        trainer.generator = SweGenerator(self.fanout, every, seed=0, pad_token_id=0, observers=observers)
        trainer.add_callback(DropRepeatedSteps(self.loader))
        self.states: dict[int, str] = {}
        self.tracker.on_step = lambda step: self.states.update({step: json.dumps(self.ahead.state_dict())})
        self.tracker._more_metrics = (self.loader.metrics,)  # as the experiment sets it
        self.trainer: Any = trainer

    def run(self, states: dict[int, str] | None = None, resume: int = 0) -> "Loop":
        if states is not None:  # what load_checkpoints does
            self.trainer.resume_mode = "latest"
            self.trainer.load_checkpoints = lambda: (
                self.ahead.load_state_dict(json.loads(states[resume])) or resume, "",
            )  # fmt: skip
        asyncio.run(self.trainer.train())
        self.tracker.finish()
        return self


def test_skips_and_evaluation_in_the_loop_and_the_same_after_a_resume(tmp_path: Path):
    whole = Loop(tmp_path / "whole", last=9).run()
    batches = whole.fanout.trained
    assert len(batches) == 9
    assert not {name for batch in batches[5:] for name in batch} & (ALWAYS | {"task02"})
    assert not {name for batch in batches for name in batch} & set(HELD_OUT)
    lines = {line.step: line.metrics for line in read_metrics(tmp_path / "whole/metrics.jsonl")}
    assert sorted(lines) == list(range(10))
    evaluated = [step for step, metrics in lines.items() if "eval/all/avg_score" in metrics]
    assert evaluated == [0, 2, 4, 6, 8, 9]  # before the first step, every other, and the last
    # held0: one of two; held1: its failed rollout says nothing, the other solved; held2: none.
    assert lines[0]["eval/all/avg_score"] == 2 / 6
    assert lines[0]["eval/all/environment/num_fail_sandbox"] == 1
    assert lines[9]["data/num_tasks_skipped_solved"] == 2
    assert lines[9]["data/num_tasks_skipped_unsolved"] == 1
    frame = pl.read_parquet(tmp_path / "whole/rollouts.parquet")
    assert (
        frame.filter(pl.col("phase") == "train")["step"].value_counts().sort("step")["count"].to_list()
        == [12] * 9
    )
    assert set(frame.filter(pl.col("phase") == "eval")["instance_id"]) == set(HELD_OUT)
    assert len(frame.filter(pl.col("phase") == "eval")) == 6 * 6

    killed = Loop(tmp_path / "killed", last=6).run()
    assert killed.fanout.trained == batches[:6]
    resumed = Loop(tmp_path / "killed", last=9).run(killed.states, resume=4)
    assert resumed.fanout.trained == batches[4:]
    again = pl.read_parquet(tmp_path / "killed/rollouts.parquet").drop("run", "logged_at_s")
    expected = frame.drop("run", "logged_at_s")
    keys = ["phase", "step", "trajectory_id"]
    assert (
        again.filter(pl.col("phase") == "train")
        .sort(keys)
        .equals(expected.filter(pl.col("phase") == "train").sort(keys))
    )


def test_dynamic_sampling_in_the_loop(tmp_path: Path):
    loop = Loop(tmp_path, last=4, sampling="filter").run()
    lines = {line.step: line.metrics for line in read_metrics(tmp_path / "metrics.jsonl")}
    rounds = [lines[step]["environment/num_sampled_batches"] for step in range(1, 5)]
    assert sum(rounds) == len(loop.fanout.trained) > 4 and max(rounds) == 2
    frame = pl.read_parquet(tmp_path / "rollouts.parquet").filter(pl.col("phase") == "train")
    for step, count in enumerate(rounds, start=1):
        assert len(frame.filter(pl.col("step") == step)) == 12 * count
        assert lines[step]["environment/num_rollouts"] == 12 * count
