"""SkyRL's generator over our rollouts: a batch of rows in, the same rows with trajectories out.

Each row becomes one request; observers are told of the rollouts before they are trained on (one writes
them to the run's folder). Seeds depend on run seed, step, task and repetition only, so a repeated step asks
for the same samples. Making rows of rollouts is `recipes.swe.output`'s, running them the fan-out's.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import psutil
from skyrl.train.generators.base import (
    GeneratorInput,
    GeneratorInterface,
    GeneratorOutput,
    TrajectoryID,
)

from recipes.report.recorder import Observer
from recipes.swe.output import to_generator_output, trainable
from recipes.swe.seeds import rollout_seed
from recipes.swe.types import Rollout, RolloutRequest, TaskInstance


class RunsRollouts(Protocol):
    """Runs many rollouts at once; `recipes.swe.fanout.Fanout` satisfies it."""

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Results in the order of the requests."""
        ...


class SweGenerator(GeneratorInterface):
    """What SkyRL's trainer calls each step."""

    def __init__(
        self,
        fanout: RunsRollouts,
        tasks: Mapping[str, TaskInstance],
        *,
        seed: int,
        pad_token_id: int,
        step_wise: bool = False,
        overlong_filtering: bool = False,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`tasks` by instance id; the ids of input rows must be among them. `step_wise` and
        `overlong_filtering` are SkyRL's keys step_wise_trajectories and apply_overlong_filtering."""
        self._fanout = fanout
        self._tasks = tasks
        self._seed = seed
        self._pad_token_id = pad_token_id
        self._step_wise = step_wise
        self._overlong_filtering = overlong_filtering
        self._observers = tuple(observers)

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """One rollout for each input row, in order; several rows of output for it when step-wise."""
        metadata, trajectory_ids = input_batch["batch_metadata"], input_batch["trajectory_ids"]
        assert metadata is not None and trajectory_ids is not None, "SkyRL's trainer always sets both"
        sampling = input_batch["sampling_params"] or {}
        phase = "" if metadata.training_phase == "train" else f"{metadata.training_phase}/"
        step = metadata.global_step or 0  # None when nothing is trained
        requests = [self._request(row, step, phase, sampling) for row in trajectory_ids]
        psutil.cpu_percent()
        started = time.monotonic()
        finished = await self._fanout.run(requests)
        seconds = time.monotonic() - started
        extra = {
            "environment/cpu_util_mean": psutil.cpu_percent() / 100,
            "environment/rollouts_per_s_mean": len(finished) / seconds if seconds else 0.0,
        }
        rollouts, rows = trainable(finished, pad_token_id=self._pad_token_id, step_wise=self._step_wise)
        for observer in self._observers:
            await observer.observe(metadata.training_phase, step, rollouts)
        return to_generator_output(
            rollouts,
            pad_token_id=self._pad_token_id,
            grouped=rows,
            trajectory_ids=trajectory_ids,
            step_wise=self._step_wise,
            overlong_filtering=self._overlong_filtering and not phase,
            extra_metrics=extra,
        )

    def _request(
        self, row: TrajectoryID, step: int, phase: str, sampling: Mapping[str, float]
    ) -> RolloutRequest:
        return RolloutRequest(
            trajectory_id=f"{phase}step{step:04d}/{row.instance_id}/{row.repetition_id}",
            task=self._tasks[row.instance_id],
            temperature=float(sampling.get("temperature", 1.0)),
            top_p=float(sampling.get("top_p", 1.0)),
            seed=rollout_seed(self._seed, step, row.instance_id, row.repetition_id),
        )
