"""The trainer: SkyRL's, with failed rollouts kept out of the loss and of their group's statistics.

SkyRL's group estimators take mean and standard deviation over all rewards of a group, whatever the loss
mask says, so a failed rollout with reward 0 would shift its healthy siblings. Here the rows of failed and
quarantined rollouts leave their group just before advantages are computed, and a group with fewer than two
healthy trajectories is dropped whole. A row whose loss was masked for another reason (overlong filtering)
stays in the statistics, as in SkyRL. It also stops the run when too many rollouts of a step failed, or when
the server's log-probabilities are not the trainer's. Everything else is SkyRL's; `Exclusions` goes in front
of any trainer of it, `SweTrainer` is the synchronous one.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.train.generators.base import GeneratorOutput
from skyrl.train.generators.utils import slice_generator_output
from skyrl.train.trainer import RayPPOTrainer

from recipes.swe.dynamic_sampling import SamplingRound, groups_of, joined
from recipes.swe.failure_report import TooManyFailuresError, write_failure_report
from recipes.swe.output import FAILED, QUARANTINED

LOGPROB_DIFF = "policy/rollout_train_logprobs_abs_diff_mean"
"""SkyRL's own name of the mean difference between sampled and recomputed log-probabilities."""
SAMPLED = ("environment/", "generate/")
"""Metrics of a batch of rollouts; a step of several batches joins them."""
LEFT_OUT = "left_out"
"""Key of a batch's metadata: for each row whether its rollout is not to be trained on."""


class LogprobMismatchError(RuntimeError):
    """The server does not sample from the weights that are trained."""


def left_out_rows(output: GeneratorOutput) -> list[bool]:
    """For each row whether its rollout failed or is quarantined."""
    reasons = output["stop_reasons"]
    assert reasons is not None, "recipes.swe.output always sets them"
    return [reason == QUARANTINED or reason.startswith(FAILED) for reason in reasons]


def excluded_rows(left_out: Sequence[bool], uids: Sequence[str], last: Sequence[bool]) -> list[bool]:
    """Rows to leave out: those that are, and all rows of a group with fewer than two other trajectories.

    `last` marks the last row of each trajectory, so that long ones do not count more than once."""
    rows = zip(uids, left_out, last, strict=True)
    per_group = Counter(uid for uid, out, is_last in rows if is_last and not out)
    return [out or per_group[uid] < 2 for uid, out in zip(uids, left_out, strict=True)]


def separate_uids(uids: Sequence[str], excluded: Sequence[bool]) -> list[str]:
    """Group names in which each excluded row is alone."""
    return [
        f"{uid}#excluded{i}" if out else uid for i, (uid, out) in enumerate(zip(uids, excluded, strict=True))
    ]


def check_logprobs(metrics: dict[str, Any], tolerance: float | None) -> None:
    """Raise LogprobMismatchError when the mean difference reaches `tolerance` (None: only logged)."""
    difference = metrics.get(LOGPROB_DIFF)
    if difference is None or tolerance is None or difference < tolerance:
        return
    raise LogprobMismatchError(
        f"log-probabilities sampled by the server and recomputed by the trainer differ by {difference:.2e} "
        f"on average (limit {tolerance:.0e}): the weight sync does not reach the weights that are served"
    )


class Exclusions(RayPPOTrainer):
    """What every trainer of ours does beside SkyRL's: exclusion of failed rollouts and the two checks."""

    max_failed_share: float = 0.5
    """Largest share of failed rollouts in a step that is still trained on."""
    logprob_tolerance: float | None = None
    """Mean difference of log-probabilities that stops the run; None where kernels differ (bf16, GPU)."""
    sampled: SamplingRound | None = None
    """Batches of the step that dynamic sampling has not filled yet."""
    run_dir: Path | None = None
    """Where the report of a step with too many failures goes; None for none."""

    def handle_dynamic_sampling(
        self, generator_output: GeneratorOutput, uids: list[str]
    ) -> tuple[GeneratorOutput, list[str], bool]:
        """As SkyRL's, by whole groups and their healthy rollouts, see `recipes.swe.dynamic_sampling`."""
        self._check_failures(generator_output)
        config = self.cfg.trainer.algorithm.dynamic_sampling
        # Kept apart from SkyRL's own state, which is dropped at the end of an epoch with all it holds.
        sampled, self.sampled = self.sampled or SamplingRound(), None
        own = {name: value for name, value in self.all_metrics.items() if name.startswith(SAMPLED)}
        sampled.add(groups_of(generator_output, uids, left_out_rows(generator_output)), own)
        chosen = sampled.choose(
            config.type,
            wanted=self.cfg.trainer.train_batch_size,
            most_batches=config.max_sample_batches,
            least_share=config.min_replace_ratio,
        )
        if chosen is None:
            self.sampled = sampled
            return generator_output, uids, True
        self.all_metrics.update(sampled.combined_metrics())
        return *joined(chosen), False

    def postprocess_generator_output(
        self,
        generator_output: GeneratorOutput,
        uids: list[str],
        metrics_generator_output: GeneratorOutput | None = None,
        metrics_uids: list[str] | None = None,
    ) -> tuple[GeneratorOutput, list[str]]:
        """As SkyRL's, with reward metrics over healthy rollouts only."""
        self._check_failures(generator_output)
        metrics_output = metrics_generator_output or generator_output
        left_out = left_out_rows(metrics_output)
        if any(left_out):
            kept = [row for row, out in enumerate(left_out) if not out]
            names = metrics_uids if metrics_generator_output is not None else uids
            assert names is not None, "SkyRL gives an output for metrics and its uids together"
            metrics_generator_output = slice_generator_output(metrics_output, kept, preserve_metrics=False)
            metrics_uids = [names[row] for row in kept]
        return super().postprocess_generator_output(
            generator_output, uids, metrics_generator_output, metrics_uids
        )

    def convert_to_training_input(
        self, generator_output: GeneratorOutput, uids: list[str]
    ) -> TrainingInputBatch:
        """As SkyRL's; the batch also knows which rows are left out, padding included."""
        batch = super().convert_to_training_input(generator_output, uids)
        left_out = left_out_rows(generator_output)
        batch.metadata[LEFT_OUT] = left_out + [True] * (batch.batch_size - len(left_out))
        return batch

    def fwd_logprobs_values_reward(self, training_input: TrainingInputBatch) -> TrainingInputBatch:
        """As SkyRL's, then the check that server and trainer agree."""
        result = super().fwd_logprobs_values_reward(training_input)
        check_logprobs(self.all_metrics, self.logprob_tolerance)
        return result

    def compute_advantages_and_returns(self, data: TrainingInputBatch) -> TrainingInputBatch:
        """As SkyRL's, over healthy trajectories; the others get advantage 0 and no loss."""
        uids, left_out = data.metadata["uids"], data.metadata.pop(LEFT_OUT)
        last = data.metadata.get("is_last_step") or [True] * len(uids)
        excluded = excluded_rows(left_out, uids, last)
        out = torch.tensor(excluded)
        scores = data["rewards"].sum(dim=-1)
        counted = torch.tensor([is_last and not gone for is_last, gone in zip(last, left_out, strict=True)])
        data["rewards"] = torch.where(out[:, None], torch.zeros_like(data["rewards"]), data["rewards"])
        data.metadata["uids"] = separate_uids(uids, excluded)
        data = super().compute_advantages_and_returns(data)
        for name in ("advantages", "returns", "loss_mask"):
            data[name] = torch.where(out[:, None], torch.zeros_like(data[name]), data[name])
        data.metadata["uids"] = uids
        # SkyRL's own mean of this name has rows of failed rollouts in it.
        self.all_metrics["loss/avg_final_rewards"] = scores[counted].mean().item() if counted.any() else 0.0
        return data

    def _execute_forward_pass(
        self,
        model: str,
        data_fwd_pass: TrainingInputBatch,
        key: str,
        mini_batch_boundaries: list[tuple[int, int]] | None,
    ) -> torch.Tensor:
        """As SkyRL's, but never by mini-batches that workers would have to pad.

        SkyRL 0.4.0 joins the outputs of padded mini-batches with the padding still in them, so every row
        after the first would get another row's log-probabilities. Only step-wise rows are so uneven."""
        workers = self.dispatch.get_lcm_dp_size()
        if any((end - start) % workers for start, end in mini_batch_boundaries or ()):
            mini_batch_boundaries = None
        return super()._execute_forward_pass(model, data_fwd_pass, key, mini_batch_boundaries)

    def _check_failures(self, output: GeneratorOutput) -> None:
        """Raise TooManyFailuresError, its report written, when the step is not worth training on."""
        last = output.get("is_last_step") or [True] * len(output["response_ids"])
        ends = [end for end, is_last in zip(output["stop_reasons"] or [], last, strict=True) if is_last]
        failed = sum(end.startswith(FAILED) for end in ends)
        quarantined = ends.count(QUARANTINED)
        if failed + quarantined == len(ends) or failed / len(ends) > self.max_failed_share:
            report = write_failure_report(output, step=self.global_step, run_dir=self.run_dir)
            raise TooManyFailuresError(
                f"{failed} of {len(ends)} rollouts of step {self.global_step} failed, {quarantined} are "
                f"quarantined (limit {self.max_failed_share:.0%}): {report}"
            )
        if failed or quarantined:
            logger.warning(
                f"step {self.global_step}: {failed} of {len(ends)} rollouts failed, {quarantined} are "
                "quarantined; they are left out"
            )


class SweTrainer(Exclusions):
    """The synchronous trainer."""

    async def train(self) -> None:
        """As SkyRL's; the connections to the server belong to this event loop and end with it."""
        try:
            await super().train()
        finally:
            await self.inference_engine_client.teardown()
