"""Runners for measurements of the driver: rollouts of a realistic size, made up, at a set pace.

`open_made_up_runner` returns rollouts of the published size at once or after a sleep: what is measured is the
way from the worker into the training batch. `open_paced_runner` is the real `RolloutRunner` over fake
sandboxes that take a set time to open, with a policy and tests that sleep: what is measured is what overlaps.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from recipes.swe.chat import ChatCodec
from recipes.swe.overlap import ReadyBackend
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.rollout import RolloutLimits, RolloutRunner
from recipes.swe.types import Completion, Rollout, RolloutRequest, TaskInstance, Trajectory, Turn
from recipes.swe.worker import OverlappedRunner, Runner
from rewards.grader import Case
from rewards.types import RewardResult, TestSpec
from sandbox.types import EnvSpec, SandboxSpec
from tests.agent.conftest import make_tokenizer
from tests.agent.fakes import FakeBackend, FakeCache, FakeSandbox
from tests.agent.test_agent import DEMO, LS, SUBMIT


def make_tasks(count: int) -> list[TaskInstance]:
    """Tasks that need no environment."""
    tests = TestSpec(("python",), ("t::a",), ())
    return [
        TaskInstance(f"task-{i:04d}", "toy", "Fix it. " * 50, EnvSpec(f"task-{i:04d}"), tests)
        for i in range(count)
    ]


class MadeUpRunner:
    """Rollouts whose `turns` turns fill `tokens` tokens, two fifths of them sampled."""

    def __init__(self, *, turns: int, tokens: int, seconds: float) -> None:
        self._turns, self._tokens, self._seconds = turns, tokens, seconds

    async def run(self, request: RolloutRequest) -> Rollout:
        """See Runner."""
        await asyncio.sleep(self._seconds)
        chance = random.Random(request.trajectory_id)
        per_turn = self._tokens // (self._turns + 1)
        sampled, shown = per_turn * 2 // 5, per_turn * 3 // 5
        prompt = tuple(chance.randrange(150_000) for _ in range(per_turn))
        turns: list[Turn] = []
        for _ in range(self._turns):
            ids = tuple(chance.randrange(150_000) for _ in range(sampled))
            logprobs = tuple(-chance.random() for _ in range(sampled))
            turns.append(Turn(prompt, ids, logprobs, "stop", "word " * sampled, "call", "seen " * shown))
            prompt = (*prompt, *ids, *(chance.randrange(150_000) for _ in range(shown)))
        solved = chance.random() < 0.3
        reward = RewardResult(float(solved), solved, float(solved), 0)
        times = {"llm": self._seconds * 0.8, "env": self._seconds * 0.2}
        return Rollout(
            request.trajectory_id,
            request.task.instance_id,
            Trajectory(tuple(turns), "diff\n" * 40, "submitted"),
            reward,
            times,
        )


async def open_made_up_runner(config: Mapping[str, Any], stack: AsyncExitStack) -> Runner:
    """Factory for the fan-out."""
    return MadeUpRunner(**config["made_up"])


class SlowBackend(FakeBackend):
    """Fake sandboxes that take `opening_s` to open."""

    def __init__(self, opening_s: float) -> None:
        super().__init__(lambda: FakeSandbox({}))
        self._opening_s = opening_s

    async def open(self, spec: SandboxSpec) -> FakeSandbox:
        await asyncio.sleep(self._opening_s)
        return FakeSandbox({})


class SleepingPolicy(ScriptedPolicy):
    """Looks around, then submits: after any turn from the second on with a chance of a quarter, and after
    `turns` at the latest. A turn takes `turn_s`, give or take a third."""

    def __init__(self, codec: ChatCodec, *, turns: int, turn_s: float) -> None:
        super().__init__(codec, [])
        self._look, self._submit = codec.encode_response(LS), codec.encode_response(SUBMIT)
        self._turns, self._turn_s = turns, turn_s

    async def sample(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        """See Policy."""
        chance = random.Random(seed)
        await asyncio.sleep(self._turn_s * chance.uniform(0.67, 1.33))
        turn = prompt_ids.count(self._codec.end_id) // 2
        done = turn >= self._turns or (turn >= 2 and chance.random() < 0.25)
        ids = self._submit if done else self._look
        return Completion(ids, (-0.1,) * len(ids), "stop")


class SleepingGrader:
    """Tests that take `grade_s` in a fresh sandbox."""

    def __init__(self, grade_s: float) -> None:
        self._grade_s = grade_s

    async def judge(self, case: Case, patch: str, *, faults: Any = None) -> RewardResult:
        """See rewards.grader.Grader."""
        async with case.open_sandbox():
            await asyncio.sleep(self._grade_s)
        solved = random.random() < 0.3
        return RewardResult(float(solved), solved, float(solved), 0)


async def open_paced_runner(config: Mapping[str, Any], stack: AsyncExitStack) -> Runner:
    """Factory for the fan-out: keys `opening_s`, `turns`, `turn_s`, `grade_s`, `slots`, `overlap`."""
    pace = config["pace"]
    codec = ChatCodec(make_tokenizer())
    cache = FakeCache()
    slots = pace["slots"]
    ready = await stack.enter_async_context(
        ReadyBackend(
            SlowBackend(pace["opening_s"]), most=slots if pace["overlap"] else 0, spares=pace["overlap"]
        )
    )
    limits = RolloutLimits(max_concurrent=slots, max_grading=slots)
    agent = replace(DEMO, max_turns=pace["turns"] + 2, max_context_tokens=20_000)
    runner = RolloutRunner(
        ready,
        cache,
        SleepingPolicy(codec, turns=pace["turns"], turn_s=pace["turn_s"]),
        codec,
        agent,
        grader=SleepingGrader(pace["grade_s"]),  # type: ignore[arg-type]
        limits=limits,
    )
    return OverlappedRunner(runner, ready, cache, limits.sandbox)
