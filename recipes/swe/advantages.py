"""The trainer: SkyRL's, with failed rollouts kept out of the loss and of their group's statistics.

SkyRL's group estimators take mean and standard deviation over all rewards of a group, whatever the loss
mask says, so a failed rollout with reward 0 would shift its healthy siblings. Here each row without loss
leaves its group just before advantages are computed, and a group with fewer than two healthy rows is
dropped whole. It also stops the run when too many rollouts of a step failed, or when the server's
log-probabilities are not the trainer's. Everything else is RayPPOTrainer's.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from loguru import logger
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.train.generators.base import GeneratorOutput
from skyrl.train.trainer import RayPPOTrainer

from recipes.swe.output import QUARANTINED

LOGPROB_DIFF = "policy/rollout_train_logprobs_abs_diff_mean"
"""SkyRL's own name of the mean difference between sampled and recomputed log-probabilities."""


class TooManyFailuresError(RuntimeError):
    """Too large a share of a step's rollouts failed for reasons of ours."""


class LogprobMismatchError(RuntimeError):
    """The server does not sample from the weights that are trained."""


def excluded_rows(loss_mask: torch.Tensor, uids: Sequence[str]) -> list[bool]:
    """Rows to leave out: those without any loss, and all rows of a group with fewer than two others."""
    healthy = (loss_mask.sum(dim=-1) > 0).tolist()
    per_group = Counter(uid for uid, ok in zip(uids, healthy, strict=True) if ok)
    return [not ok or per_group[uid] < 2 for uid, ok in zip(uids, healthy, strict=True)]


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


class SweTrainer(RayPPOTrainer):
    """RayPPOTrainer with exclusion of failed rollouts and the two checks."""

    max_failed_share: float = 0.5
    """Largest share of failed rollouts in a step that is still trained on."""
    logprob_tolerance: float | None = None
    """Mean difference of log-probabilities that stops the run; None where kernels differ (bf16, GPU)."""

    async def train(self) -> None:
        """As SkyRL's; the connections to the server belong to this event loop and end with it."""
        try:
            await super().train()
        finally:
            await self.inference_engine_client.teardown()

    def postprocess_generator_output(
        self,
        generator_output: GeneratorOutput,
        uids: list[str],
        metrics_generator_output: GeneratorOutput | None = None,
        metrics_uids: list[str] | None = None,
    ) -> tuple[GeneratorOutput, list[str]]:
        """As SkyRL's, with reward metrics over healthy rollouts only."""
        masks = generator_output["loss_masks"]
        kept = [row for row, mask in enumerate(masks) if any(mask)]
        reasons = generator_output["stop_reasons"] or []
        failed = len(masks) - len(kept) - reasons.count(QUARANTINED)
        if not kept or failed / len(masks) > self.max_failed_share:
            raise TooManyFailuresError(
                f"{failed} of {len(masks)} rollouts of step {self.global_step} failed "
                f"(limit {self.max_failed_share:.0%}): {dict(Counter(_reasons(generator_output, kept)))}"
            )
        if len(kept) < len(masks) and metrics_generator_output is None:
            logger.warning(
                f"step {self.global_step}: {failed} of {len(masks)} rollouts failed, "
                f"{reasons.count(QUARANTINED)} are quarantined; they are left out"
            )
            metrics_generator_output = _select(generator_output, kept)
            metrics_uids = [uids[row] for row in kept]
        return super().postprocess_generator_output(
            generator_output, uids, metrics_generator_output, metrics_uids
        )

    def fwd_logprobs_values_reward(self, training_input: TrainingInputBatch) -> TrainingInputBatch:
        """As SkyRL's, then the check that server and trainer agree."""
        result = super().fwd_logprobs_values_reward(training_input)
        check_logprobs(self.all_metrics, self.logprob_tolerance)
        return result

    def compute_advantages_and_returns(self, data: TrainingInputBatch) -> TrainingInputBatch:
        """As SkyRL's, over healthy rows; the others get advantage 0 and no loss."""
        uids = data.metadata["uids"]
        excluded = excluded_rows(data["loss_mask"], uids)
        if not any(excluded):
            return super().compute_advantages_and_returns(data)
        out = torch.tensor(excluded)
        data["rewards"] = torch.where(out[:, None], torch.zeros_like(data["rewards"]), data["rewards"])
        data.metadata["uids"] = separate_uids(uids, excluded)
        data = super().compute_advantages_and_returns(data)
        for name in ("advantages", "returns", "loss_mask"):
            data[name] = torch.where(out[:, None], torch.zeros_like(data[name]), data[name])
        data.metadata["uids"] = uids
        return data


def _reasons(output: GeneratorOutput, kept: Sequence[int]) -> list[str]:
    healthy = set(kept)
    return [reason for row, reason in enumerate(output["stop_reasons"] or []) if row not in healthy]


def _select(output: GeneratorOutput, rows: Sequence[int]) -> GeneratorOutput:
    """The rows that reward metrics are made of."""
    fields: dict[str, Any] = {
        name: [values[row] for row in rows]
        for name, values in output.items()
        if isinstance(values, list) and len(values) == len(output["response_ids"])
    }
    return GeneratorOutput(**fields)  # type: ignore[typeddict-item]
