"""SkyRL's real training loop without its processes: for measurements of what is ours around it.

Data loader, generator, exclusions, advantages, metrics, recorder and tracker are the real ones, in the real
`train()` of our synchronous trainer, with real rollout workers behind Ray. Policy and update are sleeps; the
numbers that a model would give are zeros.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.train.config import SkyRLTrainConfig

from recipes.report.recorder import RolloutRecorder
from recipes.swe.dataset import TaskDataset
from recipes.swe.generator import SweGenerator
from recipes.swe.tracking import RunTracking
from recipes.swe.trainers import SyncTrainer
from recipes.swe.types import TaskInstance

PAD = 0
ROOT = Path(__file__).resolve().parents[1]


def start_ray() -> None:
    """Ray on this machine, for workers that import the benchmarks."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=512 << 20,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )


class PacedWorkers:
    """Stands in for SkyRL's dispatch to worker processes; an update takes `update_s` seconds."""

    def __init__(self, update_s: float) -> None:
        self._update_s = update_s

    def get_lcm_dp_size(self) -> int:
        return 1

    def forward_from_staged(self, model: str, chunk: tuple[int, int]) -> Any:
        rows, width = chunk
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": [0.0] * width} for _ in range(rows)])

    def stage_data(
        self, model: str, data: TrainingInputBatch, boundaries: list[tuple[int, int]]
    ) -> list[Any]:
        return [(end - start, data.metadata["response_length"]) for start, end in boundaries]

    def forward_backward_from_staged(self, model: str, chunks: Any) -> Any:
        time.sleep(self._update_s)  # as SkyRL's, it blocks the driver's event loop
        return SimpleNamespace(metrics={"policy_loss": 0.0})

    def optim_step(self, model: str) -> float:
        return 0.0

    def empty_cache(self, model: str | None = None) -> None:
        del model

    def init_weight_sync_state(self, client: Any) -> None:
        del client

    async def save_weights_for_sampler(self) -> None:
        await asyncio.sleep(0)

    def get_timing_metrics(self) -> dict[str, float]:
        return {}

    def finalize_pending_saves(self, model: str) -> None:
        del model


class TimedTracking(RunTracking):
    """The run's own tracker; also keeps what each step took, and calls `on_step`."""

    on_step: Callable[[int], None] = staticmethod(lambda step: None)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps: list[dict[str, float]] = []

    def log(self, data: Any, step: int, commit: bool = False) -> None:
        super().log(data, step, commit)
        self.steps.append({key: value for key, value in data.items() if key.startswith("timing/")})
        self.on_step(step)


def config(
    run_dir: Path, *, prompts: int, samples: int, steps: int, step_wise: bool = False
) -> SkyRLTrainConfig:
    """SkyRL's configuration of the loop: GRPO, one mini-batch, no reference model, no checkpoints."""
    return SkyRLTrainConfig.from_cli_overrides(
        {
            "data": {"dataloader": {"num_workers": 0}},
            "trainer": {
                "train_batch_size": prompts,
                "policy_mini_batch_size": prompts,
                "max_training_steps": steps,
                "epochs": steps,
                "ckpt_interval": -1,
                "hf_save_interval": -1,
                "eval_interval": -1,
                "eval_before_train": False,
                "resume_mode": "none",
                "logger": "console",
                "export_path": str(run_dir / "exports"),
                "ckpt_path": str(run_dir / "checkpoints"),
                "enable_ray_gpu_monitor": False,
                "placement": {"colocate_all": False},
                "algorithm": {"advantage_estimator": "grpo", "use_kl_loss": False},
            },
            "generator": {
                "n_samples_per_prompt": samples,
                "step_wise_trajectories": step_wise,
                "inference_engine": {"enable_ray_prometheus_stats": False},
            },
        }
    )


def make_loop(
    run_dir: Path,
    fanout: Any,
    tasks: Sequence[TaskInstance],
    *,
    prompts: int,
    samples: int,
    steps: int,
    update_s: float,
    overlap: bool = True,
    seed: int = 0,
    step_wise: bool = False,
) -> tuple[SyncTrainer, TimedTracking]:
    """The trainer, ready for `train()`, and its tracker."""
    cfg = config(run_dir, prompts=prompts, samples=samples, steps=steps, step_wise=step_wise)
    by_id = {task.instance_id: task for task in tasks}
    recorder = RolloutRecorder(run_dir)
    tracker = make_tracker(run_dir, recorder, cfg, steps=steps)
    trainer = SyncTrainer(
        cfg=cfg,
        tracker=tracker,
        tokenizer=SimpleNamespace(pad_token_id=PAD, decode=lambda ids: ""),  # type: ignore[arg-type]
        train_dataset=TaskDataset(tasks),  # type: ignore[arg-type]
        inference_engine_client=SimpleNamespace(teardown=partial(asyncio.sleep, 0)),  # type: ignore[arg-type]
        generator=SweGenerator(
            fanout, by_id, seed=seed, pad_token_id=PAD, step_wise=step_wise, observers=[recorder]
        ),
    )
    trainer.dispatch = PacedWorkers(update_s)
    if overlap:
        trainer.prepare = lambda ids: fanout.prepare([by_id[one] for one in ids])
    return trainer, tracker


def make_tracker(
    run_dir: Path, recorder: RolloutRecorder, cfg: SkyRLTrainConfig, *, steps: int
) -> TimedTracking:
    """A tracker without W&B."""
    return TimedTracking(
        run_dir=run_dir,
        recorder=recorder,
        total_steps=steps,
        project_name="benchmark",
        experiment_name="loop",
        backend="console",
        config=cfg,
        tags=[],
    )
