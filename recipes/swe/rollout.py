"""One rollout: open the task's environment, let the agent work, grade its patch, clean up.

A fault of ours is tried once more in fresh sandboxes (only the grading, when the agent's work is done) and
then returned as data, a programming error too: `RolloutRunner.run` raises for cancellation only. A fault of
this node is returned at once when another can take the rollout. A rollout holds at most one sandbox at any
time; how many hold one, and how many grade, is bounded here. It knows neither Ray nor SkyRL.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from recipes.report.trajectories import rollout_text
from recipes.swe.agent import AgentConfig, Sampling, run_agent
from recipes.swe.agent_clock import AgentClock
from recipes.swe.chat import ChatCodec
from recipes.swe.failures import DeadlineError, classify, worth_retrying
from recipes.swe.policy import for_rollout
from recipes.swe.stages import Stage, StageClock
from recipes.swe.types import WAITS, Failure, Policy, Rollout, RolloutRequest, TaskInstance, Trajectory
from rewards.grader import Case, Grader
from rewards.shapes import Effort, ShapeConfig, shaped
from rewards.types import RewardResult, TestSpec
from sandbox.cache import have_env
from sandbox.errors import SandboxError, SandboxStartError
from sandbox.types import Backend, CachedEnv, EnvSpec, Limits, Sandbox, Usage

logger = logging.getLogger(__name__)


BINARY = ShapeConfig()


class Environments(Protocol):
    """Where prepared environments are found; `sandbox.cache.EnvCache` satisfies it."""

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        """Raises CacheError."""
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
    test_timeout_s: float | None = None
    """Wall time of one test in seconds; None keeps the task's own."""
    start_timeout_s: float = 120.0
    """To find an environment and open its sandbox, in seconds."""
    attempt_timeout_s: float = 3600.0
    """Of one whole attempt, in seconds, so that nothing can hang a step for ever."""
    attempts: int = 2
    """Tries before a fault of ours is returned as a failure; how often is graded is the grader's."""


@dataclass(slots=True)
class _Progress:
    """What an attempt has got to; survives into the next one."""

    trajectory: Trajectory | None = None
    verdict: RewardResult | None = None
    grading_faults: Counter[str] = field(default_factory=Counter[str])
    clock: StageClock = field(default_factory=StageClock)
    waits_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAITS, 0.0))
    env: CachedEnv | None = None
    usage: Usage | None = None


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
        grader: Grader,
        shape: ShapeConfig = BINARY,
        limits: RolloutLimits = RolloutLimits(),
    ) -> None:
        """The backend must be open (`async with backend`) while rollouts run; it is not closed here. `shape`
        makes the number that is trained on from a verdict."""
        self._backend = backend
        self._cache = cache
        self._policy = policy
        self._codec = codec
        self._agent = agent
        self._grader = grader
        self._shape = shape
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_concurrent)
        self._grading_slots = asyncio.Semaphore(limits.max_grading)

    async def run(self, request: RolloutRequest) -> Rollout:
        """One rollout. Its wall time starts when it gets a slot; waiting for one is not part of it."""
        progress = _Progress(trajectory=request.done)
        queued_s = progress.clock.now()
        async with self._slots:
            progress.waits_s["slot"] = progress.clock.now() - queued_s
            attempt, failure = await self._attempts(request, progress)
            reward, quarantined = self._rewarded(progress, request.task)
            return Rollout(
                trajectory_id=request.trajectory_id,
                instance_id=request.task.instance_id,
                trajectory=progress.trajectory,
                reward=reward,
                stage_times_s=progress.clock.stop(),
                failure=failure,
                attempts=attempt,
                waits_s=progress.waits_s,
                cache_hit=progress.env.hit if progress.env else None,
                gate_wait_s=progress.env.gate_wait_s if progress.env else 0.0,
                memory_peak_bytes=progress.usage.memory_peak_bytes if progress.usage else None,
                cpu_s=progress.usage.cpu_s if progress.usage else None,
                quarantined=quarantined,
                grading_faults=dict(progress.grading_faults),
            )

    async def _attempts(self, request: RolloutRequest, progress: _Progress) -> tuple[int, Failure | None]:
        """How many were made, and how the last one failed."""
        attempt = 0
        while True:
            attempt += 1
            failure = await self._attempt(request, progress)
            if failure is None:
                return attempt, None
            logger.warning(
                "rollout %s, attempt %d of %d failed: %s: %s",
                request.trajectory_id, attempt, self._limits.attempts, failure.kind, failure.message,
            )  # fmt: skip
            moves = request.may_move and failure.elsewhere
            if moves or attempt >= self._limits.attempts or not worth_retrying(failure):
                return attempt, failure

    def _rewarded(self, progress: _Progress, task: TaskInstance) -> tuple[RewardResult | None, bool]:
        """The verdict with the number that is trained on, and whether it is quarantined."""
        if progress.verdict is None or progress.trajectory is None:
            return progress.verdict, False
        effort = effort_of(progress.trajectory, self._agent)
        passing = len(task.tests.pass_to_pass)
        number = shaped(progress.verdict, self._shape, effort, pass_to_pass=passing)
        return replace(progress.verdict, reward=number or 0.0), number is None

    async def _attempt(self, request: RolloutRequest, progress: _Progress) -> Failure | None:
        bound = asyncio.timeout(self._limits.attempt_timeout_s)
        try:
            async with bound:
                if progress.trajectory is None:
                    progress.trajectory = await self._work(request, progress)
                progress.verdict = await self._verdict(request.task, progress.trajectory.patch, progress)
        except Exception as error:
            # One bad rollout never stops a step: what is no known fault becomes `internal`, see failures.
            stage = progress.clock.stage
            if isinstance(error, TimeoutError) and bound.expired():
                error = DeadlineError(f"{self._limits.attempt_timeout_s:g} s were over in stage {stage}")
            failure = classify(error, stage=stage)
            if failure.kind == "internal":
                logger.exception("rollout %s hit a programming error", request.trajectory_id)
            return failure
        return None

    async def _work(self, request: RolloutRequest, progress: _Progress) -> Trajectory:
        clock, timer = progress.clock, AgentClock(self._agent, progress.clock.now)
        clock.switch("env_prep")
        progress.env = env = await have_env(self._cache, request.task.env)
        async with self._sandbox(env, clock, "sandbox_start") as sandbox:
            try:
                trajectory = await run_agent(
                    sandbox,
                    for_rollout(self._policy, request.trajectory_id),
                    self._codec,
                    request.task,
                    self._agent,
                    sampling=Sampling(request.temperature, request.top_p, request.seed),
                    clock=clock,
                    timer=timer,
                )
            finally:
                progress.waits_s["model"] += timer.waited_s
            progress.usage = await sandbox.usage()
            return trajectory

    async def _verdict(self, task: TaskInstance, patch: str, progress: _Progress) -> RewardResult:
        progress.clock.switch("grade")
        env = await have_env(self._cache, task.env)
        case = Case(
            self._tests(task.tests),
            partial(self._grading_sandbox, env, progress),
            environment=env.digest,
            limits=repr(self._limits.sandbox),
        )
        return await self._grader.judge(case, patch, faults=progress.grading_faults)

    def _tests(self, tests: TestSpec) -> TestSpec:
        if self._limits.grading_timeout_s is not None:
            tests = replace(tests, timeout_s=self._limits.grading_timeout_s)
        if self._limits.test_timeout_s is not None and tests.runner != "log":
            tests = replace(tests, test_timeout_s=self._limits.test_timeout_s)
        return tests

    @asynccontextmanager
    async def _grading_sandbox(self, env: CachedEnv, progress: _Progress) -> AsyncIterator[Sandbox]:
        queued_s = progress.clock.now()
        async with self._grading_slots:
            progress.waits_s["grading_slot"] += progress.clock.now() - queued_s
            async with self._sandbox(env, progress.clock, "grade") as sandbox:
                yield sandbox

    @asynccontextmanager
    async def _sandbox(self, env: CachedEnv, clock: StageClock, opening: Stage) -> AsyncIterator[Sandbox]:
        """A fresh sandbox of the task, closed whatever happens; `opening` is the stage of its start."""
        clock.switch(opening)
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                sandbox = await self._backend.open(env.spec(self._limits.sandbox))
        except TimeoutError as error:
            raise SandboxStartError(f"did not open in {self._limits.start_timeout_s:g} s") from error
        try:
            yield sandbox
        finally:
            before = clock.switch("cleanup")
            try:
                await sandbox.close()
            except (SandboxError, OSError):
                if not _cancelled():
                    raise
                # Else its error would take the cancellation's place, and begin another attempt.
                logger.exception("the sandbox of a cancelled rollout cannot be closed")
            if before is not None:  # An error on its way out is classified by the stage that it came from.
                clock.switch(before)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def effort_of(trajectory: Trajectory, agent: AgentConfig) -> Effort:
    """What the attempt took, for reward shapes. Its tokens are limited by turns and by the context."""
    return Effort(
        turns=len(trajectory.turns),
        max_turns=agent.max_turns,
        tokens=sum(len(turn.response_ids) for turn in trajectory.turns),
        max_tokens=min(agent.max_turns * agent.max_response_tokens, agent.max_context_tokens),
        well_formed=sum(bool(turn.action) for turn in trajectory.turns),
    )


def render(rollout: Rollout, task: TaskInstance) -> str:
    """The whole rollout as text for a person, beginning with what the agent was asked."""
    return f"TASK\n{task.problem_statement.rstrip()}\n\n{rollout_text(rollout)}"
