"""The two trainers: synchronous with the next step's sandboxes opening meanwhile, and fully asynchronous.

Both are SkyRL's loops with our exclusions and checks. The synchronous one tells the workers what comes next
as soon as a step's rollouts have ended. In the asynchronous one generation never stops, so nothing
is opened ahead; a group is trained on at most `max_staleness_steps` steps late, and a generation that raises
ends the run as any other error does (SkyRL's own worker would end the process on the spot, without clean-up).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput

from recipes.swe.advantages import Exclusions, SweTrainer
from recipes.swe.lookahead import Lookahead

STALENESS_MAX = "async/staleness_max"
"""SkyRL's name of the largest staleness of a step's groups, in steps."""


class SyncTrainer(SweTrainer):
    """One step after the other; sandboxes of the next one open during the update of this one."""

    prepare: Callable[[Sequence[str]], object] | None = None
    """Told the tasks of the next step's rollouts, one id each; None opens nothing early."""

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        super()._build_train_dataloader_and_compute_training_steps()
        if self.train_dataloader is not None:
            own = getattr(self.train_dataset, "loader", None)  # of the same length
            self.train_dataloader = Lookahead(own or self.train_dataloader)

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """As SkyRL's; then the next step's sandboxes start to open."""
        output = await super().generate(input_batch)
        self.prepare_next_step()
        return output

    async def eval(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As SkyRL's. Its rollouts let go of what was prepared, so that is prepared again."""
        metrics = await super().eval(*args, **kwargs)
        self.prepare_next_step()
        return metrics

    def prepare_next_step(self) -> None:
        """Tell what comes next, unless this is the last step."""
        rows = self.train_dataloader.next_batch
        if self.prepare is not None and rows and self.global_step < (self.total_training_steps or 0):
            repetitions = self.cfg.generator.n_samples_per_prompt
            self.prepare([row["env_extras"]["instance_id"] for row in rows for _ in range(repetitions)])


class _Guarded(GeneratorInterface):
    """A generator whose errors are kept for the trainer; the generation worker then waits for its end."""

    def __init__(self, generator: GeneratorInterface) -> None:
        self._generator = generator
        self.failed = asyncio.Event()
        self.error: Exception | None = None

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        try:
            return await self._generator.generate(input_batch)
        except Exception as error:  # kept, and raised by the trainer
            self.error = self.error or error
            self.failed.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets that event") from error


class AsyncTrainer(Exclusions, FullyAsyncRayPPOTrainer):
    """SkyRL's fully asynchronous loop: one group per call of the generator."""

    compares_logprobs: bool = False
    """Whether to compute the policy's log-probabilities even where the loss does not need them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.generator = _Guarded(self.generator)

    async def train(self) -> None:
        """As SkyRL's; the connections to the server belong to this event loop and end with it."""
        try:
            await super().train()
        finally:
            await self.inference_engine_client.teardown()

    def load_checkpoints(self) -> Any:
        """As SkyRL's; steps that will be repeated leave the run's files, since this loop has no callbacks."""
        loaded = super().load_checkpoints()
        self.tracker.metrics_file.keep_until(loaded[0])
        self.tracker.recorder.keep_until(loaded[0])
        return loaded

    async def _collect_generation_mini_batch(self, *args: Any, **kwargs: Any) -> Any:
        """As SkyRL's, unless generation failed."""
        collecting = asyncio.create_task(super()._collect_generation_mini_batch(*args, **kwargs))
        failing = asyncio.create_task(self.generator.failed.wait())
        try:
            await asyncio.wait((collecting, failing), return_when=asyncio.FIRST_COMPLETED)
            if self.generator.error is not None:
                raise self.generator.error
            return collecting.result()
        finally:
            for task in (collecting, failing):
                task.cancel()

    def _skip_policy_forward(self, training_input: Any) -> bool:
        """Where log-probabilities are to agree, they are computed to be compared, whatever the loss needs."""
        return not self.compares_logprobs and super()._skip_policy_forward(training_input)

    def fwd_logprobs_values_reward(self, training_input: Any) -> Any:
        """As SkyRL's. Only a step whose groups were all sampled by the weights being trained is checked."""
        tolerance = self.logprob_tolerance
        self.logprob_tolerance = tolerance if self.all_metrics.get(STALENESS_MAX, 0) == 0 else None
        try:
            return super().fwd_logprobs_values_reward(training_input)
        finally:
            self.logprob_tolerance = tolerance
