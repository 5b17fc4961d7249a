"""The experiment: SkyRL's `BasePPOExp` with our data set, generator, trainer and tracker.

`run(config)` is what `launch/train.py` calls with the resolved configuration: SkyRL's own keys under
`skyrl`, ours beside it. Everything that differs on a machine with no GPU is in `recipes/cpu`. Importing
this module loads SkyRL, Ray and torch.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train import evaluate, fully_async_trainer
from skyrl.train import trainer as trainer_module
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import validate_cfg
from tqdm import tqdm

from recipes.report.recorder import RolloutRecorder
from recipes.swe.advantages import Exclusions
from recipes.swe.console import log_to_file
from recipes.swe.dataset import TaskDataset
from recipes.swe.fanout import Fanout
from recipes.swe.generator import SweGenerator
from recipes.swe.gpu_trainers import GpuAsyncTrainer, GpuSyncTrainer
from recipes.swe.task_loader import TaskLoader
from recipes.swe.task_sets import load_task_sets, task_order
from recipes.swe.tracking import DropRepeatedSteps, RunTracking
from recipes.swe.trainers import AsyncTrainer, SyncTrainer
from recipes.swe.worker import RUNNER_FACTORY


class SweExp(BasePPOExp):
    """One training run. `settings` is the whole resolved configuration."""

    sync_trainer: type[SyncTrainer] = GpuSyncTrainer
    async_trainer: type[AsyncTrainer] = GpuAsyncTrainer
    logprob_tolerance: float | None = None
    reconnect_s: float = 30.0
    """How long rollouts try to reach a server that refuses connections."""

    def __init__(self, cfg: SkyRLTrainConfig, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.run_dir = Path(settings["paths"]["run_dir"])
        self.task_sets = load_task_sets(settings)
        self.tasks = self.task_sets.train
        self._task_by_id = {task.instance_id: task for task in (*self.tasks, *self.task_sets.held_out)}
        self.order: TaskLoader | None = None
        self.tracking: RunTracking | None = None
        self.fanout: Fanout | None = None
        self.recorder = RolloutRecorder(self.run_dir, int(settings["logger"]["samples_per_table"]))
        super().__init__(cfg)

    def get_train_dataset(self) -> Any:
        """The tasks to train on; SkyRL shuffles them by seed, unless an order or skips are configured."""
        if len(self.tasks) < self.cfg.trainer.train_batch_size:
            raise ValueError(
                f"{self.settings['data']['path']} has {len(self.tasks)} tasks, a step needs "
                f"{self.cfg.trainer.train_batch_size}: prepare more, or lower trainer.prompts_per_step"
            )
        dataset = TaskDataset(self.tasks)
        order = task_order(self.settings, self.task_sets, self.cfg.trainer.train_batch_size)
        if order is not None:
            self.order = dataset.loader = TaskLoader(dataset, order, run_dir=self.run_dir)
        return dataset

    def get_eval_dataset(self) -> Any:
        """The held-out tasks; None when nothing is evaluated on the way."""
        held_out = self.task_sets.held_out
        return TaskDataset(held_out) if self.cfg.trainer.eval_interval > 0 and held_out else None

    def get_generator(
        self, cfg: SkyRLTrainConfig, tokenizer: Any, inference_engine_client: Any
    ) -> SweGenerator:
        """Our generator over a fan-out of Ray actors."""
        if self.fanout is None:
            self.fanout = self.start_fanout(inference_engine_client.proxy_url)
        return SweGenerator(
            self.fanout,
            self._task_by_id,
            seed=int(self.settings["seed"]),
            pad_token_id=tokenizer.pad_token_id,
            step_wise=cfg.generator.step_wise_trajectories,
            overlong_filtering=cfg.generator.apply_overlong_filtering,
            observers=[self.recorder, *([self.order] if self.order is not None else ())],
        )

    def start_fanout(self, server_url: str) -> Fanout:
        """Start the rollout workers; they come up while other parts do."""
        served = resolve_policy_model_name(self.cfg)  # with LoRA the adapter has a name of its own
        config = {
            **{name: self.settings[name] for name in ("agent", "sandbox", "reward", "paths", "policy")},
            "server_url": server_url,
            "served_model_name": served,
            "reconnect_s": self.reconnect_s,
        }
        factory = self.settings.get("runner_factory", RUNNER_FACTORY)
        return Fanout(
            factory,
            config,
            nodes=int(self.settings["cluster"]["num_nodes"]),
            slots=int(self.settings["sandbox"]["max_concurrent"]),
        )

    def get_trainer(self, **kwargs: Any) -> Exclusions:
        """SkyRL's trainer, one of its two loops, with our exclusions and checks."""
        if self.cfg.trainer.fully_async.enabled:
            trainer = self.async_trainer(
                **kwargs
            )  # its loop has no callbacks: it drops repeated steps itself
        else:
            trainer = self.sync_trainer(**kwargs, callbacks=[DropRepeatedSteps(self.order)])
            trainer.prepare = self.prepare
        log_to_file(self.run_dir)  # SkyRL's trainer sets its own handlers when it is made
        trainer.run_dir = self.run_dir
        trainer.max_failed_share = float(self.settings["trainer"]["max_failed_share"])
        trainer.logprob_tolerance = self.logprob_tolerance
        return trainer

    def prepare(self, instance_ids: Sequence[str]) -> None:
        """Have the workers open sandboxes for rollouts of these tasks to come."""
        if self.fanout is not None:
            self.fanout.prepare([self._task_by_id[instance_id] for instance_id in instance_ids])

    def _setup_trainer(self) -> Exclusions:
        """SkyRL's set-up; then wait for what came up meanwhile."""
        trainer = super()._setup_trainer()
        self.wait_until_ready()
        return trainer

    def wait_until_ready(self) -> None:
        """Block until rollouts can run; raises what went wrong."""
        if self.fanout is not None:
            self.fanout.wait_ready()

    def get_trajectory_logger(self) -> None:
        """None: rollouts are written by the generator."""
        return

    def get_tracker(self) -> RunTracking:
        """W&B (or nothing) and the run's own file."""
        self.tracking = RunTracking(
            run_dir=self.run_dir,
            recorder=self.recorder,
            samples_every_steps=int(self.settings["logger"]["samples_every_steps"]),
            more_metrics=[self.order.metrics] if self.order is not None else (),
            total_steps=self.cfg.trainer.max_training_steps or 0,
            project_name=self.cfg.trainer.project_name,
            experiment_name=self.cfg.trainer.run_name,
            backend=self.cfg.trainer.logger,
            config=self.cfg,
            tags=self.settings["logger"]["tags"],
        )
        return self.tracking

    def close(self) -> None:
        """Close the rollout workers and their sandboxes, and SkyRL's router; end the tracker, which cannot
        end itself any more once the interpreter is going down."""
        fanout, self.fanout = self.fanout, None
        with ExitStack() as each:  # the last one first, and each of them whatever the others raise
            if self.tracking is not None:
                each.callback(self.tracking.finish)
            if self._inference_router is not None:
                each.callback(self._inference_router.shutdown)
            if fanout is not None:
                asyncio.run(fanout.close())


def skyrl_config(settings: Mapping[str, Any]) -> SkyRLTrainConfig:
    """SkyRL's own configuration object out of the `skyrl` subtree. Raises ValueError for unknown keys."""
    return SkyRLTrainConfig.from_cli_overrides(dict(settings["skyrl"]))


def without_progress_bar() -> None:
    """Take the bars out of SkyRL's trainers: we print a line per step instead."""
    for module in (trainer_module, fully_async_trainer, evaluate):
        module.tqdm = partial(tqdm, disable=True)


def ray_address(cluster: Mapping[str, Any]) -> str:
    """What SkyRL's `ray.init()` is to join: `local` starts Ray here and joins nothing that happens to run."""
    if cluster["kind"] == "local":
        return "local"
    if cluster["address"] in (None, "auto"):
        return os.environ.get("RAY_ADDRESS") or "auto"
    return str(cluster["address"])


def run(settings: Mapping[str, Any]) -> None:
    """Train. Returns when all steps are done; raises when the run failed."""
    if int(settings["cluster"]["gpus_per_node"]) == 0:
        from recipes.cpu.experiment import run_on_cpu

        run_on_cpu(settings)
        return
    import ray
    from skyrl.train.utils.utils import initialize_ray

    log_to_file(Path(settings["paths"]["run_dir"]))
    without_progress_bar()
    cfg = skyrl_config(settings)
    validate_cfg(cfg)
    os.environ["RAY_ADDRESS"] = ray_address(settings["cluster"])
    try:
        initialize_ray(cfg)
        exp = SweExp(cfg, settings)
        try:
            exp.run()
        finally:
            exp.close()
    finally:
        ray.shutdown()
