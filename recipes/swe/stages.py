"""A stopwatch for the stages of a rollout.

Exactly one stage runs at any moment: switching ends the last one, so the stages never overlap and their
sum is the wall time between the first switch and `stop`, whatever happens in between.
"""

import time
from collections.abc import Callable
from typing import Literal

from recipes.swe.types import STAGES

Stage = Literal["env_prep", "sandbox_start", "llm", "env", "grade", "cleanup"]


class StageClock:
    """Attributes wall time to stages."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        """Seconds since some moment."""
        self._times_s: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._stage: Stage | None = None
        self._since = 0.0

    @property
    def stage(self) -> str:
        """The stage that runs now; empty when stopped."""
        return self._stage or ""

    def switch(self, stage: Stage) -> Stage | None:
        """End the running stage and start `stage`; returns the one that ended."""
        self._charge()
        before, self._stage = self._stage, stage
        return before

    def stop(self) -> dict[str, float]:
        """End the running stage; seconds by stage so far. The clock may be switched on again."""
        self._charge()
        self._stage = None
        return dict(self._times_s)

    def _charge(self) -> None:
        now = self.now()
        if self._stage is not None:
            self._times_s[self._stage] += now - self._since
        self._since = now
