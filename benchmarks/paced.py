"""Runners for measurements of the driver: rollouts of a realistic size, made up, at a set pace.

`open_made_up_runner` returns rollouts of the published size at once or after a sleep: what is measured is the
way from the worker into the training batch. `open_paced_runner` is the real `RolloutRunner` over fake
sandboxes that take a set time to open, with a policy and tests that sleep: what is measured is what overlaps.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from recipes.swe.chat import ChatCodec
from recipes.swe.history import elided_count
from recipes.swe.overlap import ReadyBackend
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.rollout import RolloutLimits, RolloutRunner
from recipes.swe.types import Completion, Rollout, RolloutRequest, TaskInstance, Trajectory, Turn
from recipes.swe.worker import OverlappedRunner, Runner
from rewards.grader import Case
from rewards.types import RewardResult, TestSpec
from sandbox.types import CachedEnv, EnvSpec, SandboxSpec
from tests.agent.conftest import make_tokenizer
from tests.agent.fakes import FakeBackend, FakeCache, FakeSandbox
from tests.agent.test_agent import DEMO, LS, SUBMIT

Ids = tuple[int, ...]
NOTE_TOKENS = 12
"""Of the note that stands in place of an elided observation."""


def make_tasks(count: int) -> list[TaskInstance]:
    """Tasks that need no environment."""
    tests = TestSpec(("python",), ("t::a",), ())
    return [
        TaskInstance(f"task-{i:04d}", "toy", "Fix it. " * 50, EnvSpec(f"task-{i:04d}"), tests)
        for i in range(count)
    ]


class MadeUpRunner:
    """Rollouts whose `turns` turns fill `tokens` tokens, two fifths of them sampled. With `keep_last` older
    observations are elided, as the published recipe does it, so that hardly a prompt extends another."""

    def __init__(self, *, turns: int, tokens: int, seconds: float, keep_last: int | None = None) -> None:
        self._turns, self._tokens, self._seconds, self._keep_last = turns, tokens, seconds, keep_last

    async def run(self, request: RolloutRequest) -> Rollout:
        """See Runner."""
        await asyncio.sleep(self._seconds)
        chance = random.Random(request.trajectory_id)
        solved = chance.random() < 0.3
        reward = RewardResult(float(solved), solved, float(solved), 0)
        times = {"llm": self._seconds * 0.8, "env": self._seconds * 0.2}
        return Rollout(
            request.trajectory_id,
            request.task.instance_id,
            Trajectory(tuple(self._made_up(chance)), "diff\n" * 40, "submitted"),
            reward,
            times,
        )

    def _made_up(self, chance: random.Random) -> Iterator[Turn]:
        per_turn = self._tokens // (self._turns + 1)
        sampled, shown = per_turn * 2 // 5, per_turn * 3 // 5
        first, exchanges = _ids(chance, per_turn), list[tuple[Ids, Ids, Ids]]()
        for number in range(self._turns):
            elided = elided_count(number, self._keep_last)
            pieces = [(ids, note if at < elided else seen) for at, (ids, seen, note) in enumerate(exchanges)]
            prompt = tuple(chain(first, *chain(*pieces)))
            ids = _ids(chance, sampled)
            logprobs = tuple(-chance.random() for _ in ids)
            yield Turn(prompt, ids, logprobs, "stop", "word " * sampled, "call", "seen " * shown)
            exchanges.append((ids, _ids(chance, shown), _ids(chance, NOTE_TOKENS)))


def _ids(chance: random.Random, count: int) -> Ids:
    return tuple(chance.randrange(150_000) for _ in range(count))


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


class PacedCache(FakeCache):
    """Every environment exists, and each is another one."""

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        return replace(super().ensure(spec), layers=(Path(spec.key),))


class SleepingPolicy(ScriptedPolicy):
    """Looks around, then submits after `turns` turns of `turn_s` each. With `spread` it submits after any
    turn from the second on with a chance of a quarter, and a turn takes a third more or less."""

    def __init__(self, codec: ChatCodec, *, turns: int, turn_s: float, spread: bool) -> None:
        super().__init__(codec, [])
        self._look, self._submit = codec.encode_response(LS), codec.encode_response(SUBMIT)
        self._turns, self._turn_s, self._spread = turns, turn_s, spread

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
        await asyncio.sleep(self._turn_s * (chance.uniform(0.67, 1.33) if self._spread else 1))
        turn = prompt_ids.count(self._codec.end_id) // 2
        done = turn >= self._turns or (self._spread and turn >= 2 and chance.random() < 0.25)
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
    """Factory for the fan-out: keys `opening_s`, `turns`, `turn_s`, `spread`, `grade_s`, `slots`,
    `overlap`."""
    pace = config["pace"]
    codec = ChatCodec(make_tokenizer())
    cache = PacedCache()
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
        SleepingPolicy(codec, turns=pace["turns"], turn_s=pace["turn_s"], spread=pace["spread"]),
        codec,
        agent,
        grader=SleepingGrader(pace["grade_s"]),  # type: ignore[arg-type]
        limits=limits,
    )
    return OverlappedRunner(runner, ready, cache, limits.sandbox)
