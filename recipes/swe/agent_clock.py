"""The agent's own time, kept apart from what it waited for a busy model server.

What counts against `time_limit_s`: tools in full, and of each model call at most what an idle server takes
for it (`model_call_s` + `model_token_s` for each sampled token). The rest of the call is waiting: the
server reports no queueing time, so this is what can be known of it. Opening a sandbox, waiting for a slot or
for the I/O gate, and grading lie outside of this clock. docs/failures.md has the rule for users.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from recipes.swe.agent_config import AgentConfig
from recipes.swe.failures import DeadlineError, ProviderError
from recipes.swe.types import Completion


class AgentClock:
    """Own and waited seconds of one rollout's agent."""

    def __init__(self, config: AgentConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self.own_s = 0.0
        """Counts against the limit."""
        self.waited_s = 0.0
        """Does not."""

    @property
    def left_s(self) -> float:
        """Own time that is left; 0 or less when it is used up."""
        return self._config.time_limit_s - self.own_s

    @contextmanager
    def tools(self) -> Iterator[None]:
        """Count the block in full."""
        started = self._now()
        try:
            yield
        finally:
            self.own_s += self._now() - started

    async def model(self, call: Awaitable[Completion]) -> Completion:
        """Await a model call and divide its time. Raises ProviderError when it takes longer than
        `llm_timeout_s`, DeadlineError when waiting reaches `wait_limit_s`."""
        config, started = self._config, self._now()
        bound = asyncio.timeout(config.llm_timeout_s)
        try:
            async with bound:
                completion = await call
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise ProviderError(f"no answer to a model call in {config.llm_timeout_s:g} s") from error
        seconds = self._now() - started
        own = min(seconds, config.model_call_s + config.model_token_s * len(completion.token_ids))
        self.own_s += own
        self.waited_s += seconds - own
        if self.waited_s >= config.wait_limit_s:
            raise DeadlineError(
                f"waited {self.waited_s:.0f} s for the model (agent.wait_limit_s {config.wait_limit_s:g}), "
                f"with {self.own_s:.0f} of {config.time_limit_s:g} s of its own time used"
            )
        return completion
