"""One rollout: open the task's environment, let the agent work, grade its patch, clean up.

A fault of ours is tried once more in fresh sandboxes (only the grading, when the agent's work is done) and
then returned as data: `RolloutRunner.run` raises for programming errors and cancellation only. A rollout
holds at most one sandbox at any time; how many hold one, and how many grade, is bounded here. It knows
neither Ray nor SkyRL.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from recipes.report.trajectories import rollout_text
from recipes.swe.agent import AgentConfig, Sampling, run_agent
from recipes.swe.chat import ChatCodec
from recipes.swe.failures import INFRASTRUCTURE, classify
from recipes.swe.stages import Stage, StageClock
from recipes.swe.types import Failure, Policy, Rollout, RolloutRequest, TaskInstance, Trajectory
from rewards.retry import grade_with_retry
from rewards.types import RewardResult, TestSpec
from sandbox.errors import SandboxStartError
from sandbox.types import Backend, CachedEnv, EnvSpec, Limits, Sandbox

logger = logging.getLogger(__name__)


class Environments(Protocol):
    """Where prepared environments are found; `sandbox.cache.EnvCache` satisfies it."""

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        """Raises CacheError."""
        ...


class Grade(Protocol):
    """Runs the tests on a patch in a fresh sandbox; `rewards.grade.grade` satisfies it."""

    async def __call__(self, tests: TestSpec, patch: str, sandbox: Sandbox) -> RewardResult:
        """Raises GraderError."""
        ...


class Verdicts(Protocol):
    """Remembers verdicts; `rewards.cache.GradeCache` satisfies it."""

    async def get(
        self, task_id: str, patch: str, grade: Callable[[], Awaitable[RewardResult]]
    ) -> RewardResult:
        """The known verdict, or that of `grade`; equal patches that come at once are graded once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """What rollouts on one machine may use."""

    sandbox: Limits = field(default_factory=Limits)
    """Of each sandbox."""
    max_concurrent: int = 8
    """Rollouts that hold a sandbox at once."""
    max_grading: int = 2
    """Of those, how many run tests at once; about the number of cores."""
    grading_timeout_s: float | None = None
    """Wall time of a test run in seconds; None keeps the task's own."""
    start_timeout_s: float = 120.0
    """To find an environment and open its sandbox, in seconds."""
    attempt_timeout_s: float = 3600.0
    """Of one whole attempt, in seconds, so that nothing can hang a step for ever."""
    attempts: int = 2
    """Tries before a fault of ours is returned as a failure."""


@dataclass(slots=True)
class _Progress:
    """What an attempt has got to; survives into the next one."""

    trajectory: Trajectory | None = None
    reward: RewardResult | None = None
    clock: StageClock = field(default_factory=StageClock)


class RolloutRunner:
    """Runs rollouts concurrently within the limits. Belongs to one event loop."""

    def __init__(
        self,
        backend: Backend,
        cache: Environments,
        policy: Policy,
        codec: ChatCodec,
        agent: AgentConfig,
        *,
        grade: Grade,
        verdicts: Verdicts | None = None,
        limits: RolloutLimits = RolloutLimits(),
    ) -> None:
        """The backend must be open (`async with backend`) while rollouts run; it is not closed here."""
        self._backend = backend
        self._cache = cache
        self._policy = policy
        self._codec = codec
        self._agent = agent
        self._grade = grade
        self._verdicts = verdicts
        self._limits = limits
        self.grading_faults: Counter[str] = Counter()
        """Faults of grading by kind, and how many repeated ones were counted as 0."""
        self._slots = asyncio.Semaphore(limits.max_concurrent)
        self._grading_slots = asyncio.Semaphore(limits.max_grading)

    async def run(self, request: RolloutRequest) -> Rollout:
        """One rollout. Its wall time starts when it gets a slot; waiting for one is not part of it."""
        async with self._slots:
            progress = _Progress()
            failure: Failure | None = None
            attempt = 0
            while attempt < self._limits.attempts:
                attempt += 1
                failure = await self._attempt(request, progress)
                if failure is None or failure.kind == "grader":  # Grading has its own retry.
                    break
                logger.warning(
                    "rollout %s, attempt %d of %d failed: %s: %s",
                    request.trajectory_id, attempt, self._limits.attempts, failure.kind, failure.message,
                )  # fmt: skip
            return Rollout(
                trajectory_id=request.trajectory_id,
                instance_id=request.task.instance_id,
                trajectory=progress.trajectory,
                reward=progress.reward,
                stage_times_s=progress.clock.stop(),
                failure=failure,
                attempts=attempt,
            )

    async def _attempt(self, request: RolloutRequest, progress: _Progress) -> Failure | None:
        try:
            async with asyncio.timeout(self._limits.attempt_timeout_s):
                if progress.trajectory is None:
                    progress.trajectory = await self._work(request, progress.clock)
                progress.reward = await self._verdict(request.task, progress.trajectory.patch, progress.clock)
        except INFRASTRUCTURE as error:
            failure = classify(error, stage=progress.clock.stage)
            if failure is None:
                raise
            return failure
        return None

    async def _work(self, request: RolloutRequest, clock: StageClock) -> Trajectory:
        async with self._sandbox(request.task, clock) as sandbox:
            return await run_agent(
                sandbox,
                self._policy,
                self._codec,
                request.task,
                self._agent,
                sampling=Sampling(request.temperature, request.top_p, request.seed),
                clock=clock,
            )

    async def _verdict(self, task: TaskInstance, patch: str, clock: StageClock) -> RewardResult:
        clock.switch("grade")
        if self._verdicts is None:
            return await self._run_tests(task, patch, clock)
        return await self._verdicts.get(task.instance_id, patch, lambda: self._run_tests(task, patch, clock))

    async def _run_tests(self, task: TaskInstance, patch: str, clock: StageClock) -> RewardResult:
        tests = task.tests
        if self._limits.grading_timeout_s is not None:
            tests = replace(tests, timeout_s=self._limits.grading_timeout_s)
        async with self._grading_slots:
            return await grade_with_retry(
                lambda: self._sandbox(task, clock, opening="grade"),
                lambda sandbox: self._grade(tests, patch, sandbox),
                attempts=self._limits.attempts,
                faults=self.grading_faults,
            )

    @asynccontextmanager
    async def _sandbox(
        self, task: TaskInstance, clock: StageClock, opening: Stage | None = None
    ) -> AsyncIterator[Sandbox]:
        """A fresh sandbox of the task, closed whatever happens; `opening` charges its start to one stage."""
        clock.switch(opening or "env_prep")
        env = await asyncio.to_thread(self._cache.ensure, task.env)
        clock.switch(opening or "sandbox_start")
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                sandbox = await self._backend.open(env.spec(self._limits.sandbox))
        except TimeoutError as error:
            raise SandboxStartError(f"did not open in {self._limits.start_timeout_s:g} s") from error
        try:
            yield sandbox
        finally:
            before = clock.switch("cleanup")
            await sandbox.close()
            if before is not None:  # An error on its way out is classified by the stage that it came from.
                clock.switch(before)


def render(rollout: Rollout, task: TaskInstance) -> str:
    """The whole rollout as text for a person, beginning with what the agent was asked."""
    return f"TASK\n{task.problem_statement.rstrip()}\n\n{rollout_text(rollout)}"
