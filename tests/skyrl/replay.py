"""SkyRL's real trainer on recorded rollouts, with nothing but the processes taken away.

`replay` goes through the steps of SkyRL's `train()` by its own methods: generate, postprocess, convert,
forward, advantages, train. In place of workers stands `LocalWorkers`, which computes SkyRL's own policy loss
on exactly the shards that workers would get. Its "model" gives each token a log-probability that depends on
every id before it, so a row with a wrong prompt, or a token in the wrong place, gives another loss.
"""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from skyrl.backends.skyrl_train.distributed import dispatch as dispatch_module
from skyrl.backends.skyrl_train.distributed.dispatch import MeshDispatch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.backends.skyrl_train.workers.worker_utils import BaseBatchIterator
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.fully_async_trainer import GeneratedOutputGroup
from skyrl.train.generators.base import GeneratorOutput, TrajectoryID

from recipes.swe.advantages import Exclusions, SweTrainer
from recipes.swe.output import to_generator_output
from recipes.swe.trainers import AsyncTrainer
from recipes.swe.types import Failure, Rollout, Trajectory, Turn
from rewards.types import RewardResult

PAD = 0
DP = 4
"""Data-parallel workers that are pretended, so that batches must be padded."""


def old_logprob(prefix: Sequence[int], token: int) -> float:
    """What the trainer's model gives `token` after `prefix` before the update."""
    return -(1 + zlib.crc32(np.array([*prefix, token], dtype=np.int64).tobytes()) % 1000) / 400


def new_logprob(prefix: Sequence[int], token: int) -> float:
    """The same after some update: ratios on both sides of the clipping bounds."""
    shift = zlib.crc32(np.array([token, *prefix], dtype=np.int64).tobytes()) % 1000
    return old_logprob(prefix, token) + (shift - 500) / 1000


def sampled_logprob(prefix: Sequence[int], token: int) -> float:
    """What the server said it sampled with: a little off."""
    return old_logprob(prefix, token) + (token % 5 - 2) / 100


def make_turn(prompt: Sequence[int], response: Sequence[int]) -> Turn:
    """A turn as recorded from the server."""
    logprobs = tuple(sampled_logprob([*prompt, *response[:i]], token) for i, token in enumerate(response))
    return Turn(tuple(prompt), tuple(response), logprobs, "stop", "text", "call", "shown")


def make_rollout(name: str, turns: Sequence[Turn], reward: float, **options: Any) -> Rollout:
    """A graded rollout of task `name`."""
    end = options.pop("end", "submitted")
    return Rollout(
        name,
        name,
        Trajectory(tuple(turns), "", end),
        RewardResult(reward, reward == 1.0, reward, 0),
        **options,
    )


def failed(name: str, kind: str = "sandbox") -> Rollout:
    """A failed rollout of task `name`."""
    return Rollout(name, name, None, None, failure=Failure(kind, f"{kind} on purpose"))  # type: ignore[arg-type]


@dataclass(slots=True)
class LocalWorkers:
    """Stands in for SkyRL's dispatch to worker processes."""

    algorithm: Any
    losses: list[float]

    def get_lcm_dp_size(self) -> int:
        return DP

    def forward(self, model: str, data: TrainingInputBatch) -> Any:
        rows = logprob_rows(data, old_logprob)
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": row} for row in rows.tolist()])

    def forward_from_staged(self, model: str, chunks: list[TrainingInputBatch]) -> Any:
        outputs = [self.forward(model, chunk).loss_fn_outputs for chunk in chunks]
        return SimpleNamespace(loss_fn_outputs=[row for rows in outputs for row in rows])

    def empty_cache(self, model: str | None = None) -> None:
        del model

    def stage_data(
        self, model: str, data: TrainingInputBatch, boundaries: list[tuple[int, int]]
    ) -> list[list[TrainingInputBatch]]:
        put, dispatch_module.ray.put = dispatch_module.ray.put, lambda chunk: chunk
        try:
            return MeshDispatch.stage_chunks(DP, data, boundaries)
        finally:
            dispatch_module.ray.put = put

    def forward_backward_from_staged(self, model: str, chunks: list[TrainingInputBatch]) -> Any:
        """The policy loss of one mini-batch, summed over workers as their gradients are."""
        loss_fn, total, metrics = PolicyLossRegistry.get(self.algorithm.policy_loss_type), 0.0, {}
        for chunk in chunks:
            experience = BaseBatchIterator.batch_to_experience(chunk)
            loss, metrics = loss_fn(
                logprob_rows(chunk, new_logprob),
                experience.action_log_probs,
                experience.advantages,
                config=self.algorithm,
                loss_mask=experience.loss_mask,
                rollout_logprobs=experience.rollout_logprobs,
            )
            total += loss.item()
        self.losses.append(total)
        return SimpleNamespace(metrics={"policy_loss": total, **metrics})

    def optim_step(self, model: str) -> None:
        del model


def logprob_rows(data: TrainingInputBatch, model: Any) -> torch.Tensor:
    """Log-probabilities of the response part of each row, as a model over unpadded sequences gives them."""
    width = data.metadata["response_length"]
    rows = torch.zeros(len(data["sequences"]), width)
    for row, (ids, mask) in enumerate(zip(data["sequences"], data["attention_mask"], strict=True)):
        real = ids[mask.bool()].tolist()
        for back in range(1, min(width, len(real) - 1) + 1):
            rows[row, -back] = model(real[:-back], real[-back])
    return rows


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came out."""

    output: GeneratorOutput
    batch: TrainingInputBatch
    losses: list[float]
    metrics: dict[str, Any]


def make_trainer[T: Exclusions](
    kind: type[T], *, groups: int, samples: int, step_wise: bool, mini_batches: int = 1, **algorithm: Any
) -> T:
    """A trainer without processes; `algorithm` are SkyRL's keys."""
    trainer = kind.__new__(kind)
    trainer.cfg = SkyRLTrainConfig.from_cli_overrides(
        {
            "trainer": {
                "train_batch_size": groups,
                "policy_mini_batch_size": groups // mini_batches,
                "algorithm": {"advantage_estimator": "grpo", "use_kl_loss": False, **algorithm},
            },
            "generator": {"n_samples_per_prompt": samples, "step_wise_trajectories": step_wise},
        }
    )
    trainer.all_metrics, trainer.all_timings, trainer.global_step = {}, {}, 3
    trainer.tokenizer = SimpleNamespace(pad_token_id=PAD, decode=str)
    trainer.trajectory_logger, trainer.max_staleness_steps = None, 1
    trainer.ref_model = trainer.reward_kl_controller = None
    trainer.dispatch = LocalWorkers(trainer.cfg.trainer.algorithm, [])
    return trainer


def replay(trainer: SweTrainer, rollouts: Sequence[Rollout], *, overlong_filtering: bool = False) -> Replayed:
    """One step of SkyRL's training loop on recorded rollouts."""
    step_wise = trainer.cfg.generator.step_wise_trajectories
    counts: dict[str, int] = {}
    ids: list[TrajectoryID] = []
    for rollout in rollouts:
        counts[rollout.instance_id] = counts.get(rollout.instance_id, -1) + 1
        ids.append(TrajectoryID(rollout.instance_id, counts[rollout.instance_id]))

    class Recorded:
        async def generate(self, _: Any) -> GeneratorOutput:
            return to_generator_output(
                rollouts,
                pad_token_id=PAD,
                trajectory_ids=ids,
                step_wise=step_wise,
                overlong_filtering=overlong_filtering,
            )

    trainer.generator = Recorded()
    output = asyncio.run(trainer.generate({"prompts": [[]] * len(rollouts)}))  # type: ignore[typeddict-item]
    uids = [rollout.instance_id for rollout in rollouts]
    if step_wise:
        uids = [trajectory_id.instance_id for trajectory_id in output["trajectory_ids"] or []]
    output, uids = trainer.postprocess_generator_output(output, uids)
    batch = trainer.convert_to_training_input(output, uids)
    batch = trainer.fwd_logprobs_values_reward(batch)
    batch = trainer.compute_advantages_and_returns(batch)
    batch.pop("rewards")
    batch.metadata.pop("uids")
    batch.metadata.pop("is_last_step", None)
    trainer.train_critic_and_policy(batch)
    return Replayed(output, batch, trainer.dispatch.losses, trainer.all_metrics)


def replay_async(trainer: AsyncTrainer, groups: Sequence[Sequence[Rollout]]) -> Replayed:
    """One step of SkyRL's fully asynchronous loop: each group was generated by a call of its own."""
    outputs = [
        GeneratedOutputGroup(
            to_generator_output(
                group,
                pad_token_id=PAD,
                trajectory_ids=[TrajectoryID(group[0].instance_id, number) for number in range(len(group))],
                step_wise=trainer.cfg.generator.step_wise_trajectories,
            ),
            uid=group[0].instance_id,
            global_step_when_scheduled=trainer.global_step,
        )
        for group in groups
    ]
    batch = trainer.convert_generation_group_mini_batch_to_training_input(outputs)
    batch = trainer.fwd_logprobs_values_reward(batch)
    batch = trainer.compute_advantages_and_returns(batch)
    trainer.train_critic_and_policy(batch)
    return Replayed(outputs[0].generator_output, batch, trainer.dispatch.losses, trainer.all_metrics)
