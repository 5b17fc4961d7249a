"""Whose time it is: tools and an idle server's speed are the agent's, what a busy server adds is ours."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from recipes.swe.agent import run_agent
from recipes.swe.agent_clock import AgentClock
from recipes.swe.agent_config import AgentConfig
from recipes.swe.chat import ChatCodec
from recipes.swe.failures import DeadlineError, ProviderError
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.stages import StageClock
from recipes.swe.types import Completion, Trajectory
from tests.agent.fakes import FakeSandbox, task
from tests.agent.test_agent import DEMO, LS

OWN = replace(DEMO, model_call_s=1.0, model_token_s=0.1, time_limit_s=100, wait_limit_s=50, max_turns=8)


class Time:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Slow(ScriptedPolicy):
    """Takes `call_s` for each call."""

    def __init__(self, codec: ChatCodec, time: Time, call_s: float) -> None:
        super().__init__(codec, [LS] * 20)
        self._time = time
        self._call_s = call_s

    async def sample(self, prompt_ids: tuple[int, ...], **options: Any) -> Completion:
        self._time.now_s += self._call_s
        return await super().sample(prompt_ids, **options)


async def play(
    codec: ChatCodec, config: AgentConfig, *, call_s: float, tool_s: float
) -> tuple[Trajectory, AgentClock]:
    time = Time()

    def command(_: str) -> tuple[str, int]:
        time.now_s += tool_s
        return "", 0

    timer = AgentClock(config, time)
    clock, policy = StageClock(time), Slow(codec, time, call_s)
    trajectory = await run_agent(
        FakeSandbox({}, command), policy, codec, task(), config, clock=clock, timer=timer
    )
    return trajectory, timer


async def test_tool_time_is_the_agents(codec: ChatCodec) -> None:
    trajectory, timer = await play(codec, OWN, call_s=0, tool_s=40)
    assert (trajectory.end, len(trajectory.turns)) == ("time", 3)
    assert (timer.own_s, timer.waited_s) == (120, 0)


async def test_a_call_counts_as_long_as_an_idle_server_takes(codec: ChatCodec) -> None:
    tokens = len(codec.encode_response(LS))
    trajectory, timer = await play(codec, OWN, call_s=1 + tokens * 0.1, tool_s=0)
    assert timer.waited_s == pytest.approx(0)
    assert timer.own_s == pytest.approx(len(trajectory.turns) * (1 + tokens * 0.1))


async def test_a_busy_server_does_not_end_the_agent(codec: ChatCodec) -> None:
    """The same work, each call five seconds longer: the agent gets exactly as far."""
    tokens = len(codec.encode_response(LS))
    own = 1 + tokens * 0.1
    config = replace(OWN, time_limit_s=own * 4.5)
    idle, _ = await play(codec, config, call_s=own, tool_s=0)
    busy, timer = await play(codec, config, call_s=own + 5, tool_s=0)
    assert (idle.end, busy.end) == ("time", "time")
    assert len(idle.turns) == len(busy.turns) == 5
    assert timer.waited_s == pytest.approx(25)


async def test_waiting_beyond_its_limit_is_a_deadline_of_ours(codec: ChatCodec) -> None:
    with pytest.raises(DeadlineError, match=r"waited \d+ s for the model \(agent.wait_limit_s 50\)"):
        await play(codec, OWN, call_s=40, tool_s=0)


async def test_a_call_without_an_answer_is_the_providers(codec: ChatCodec) -> None:
    async def hang() -> Completion:
        await asyncio.sleep(60)
        raise AssertionError

    timer = AgentClock(replace(OWN, llm_timeout_s=0.02), Time())
    with pytest.raises(ProviderError, match=r"no answer to a model call in 0\.02 s"):
        await timer.model(hang())


async def test_a_timeout_within_the_call_is_not_mistaken_for_ours() -> None:
    async def fail() -> Completion:
        raise TimeoutError("socket")

    with pytest.raises(TimeoutError, match="socket"):
        await AgentClock(OWN, Time()).model(fail())


async def test_time_counts_when_a_tool_fails() -> None:
    time = Time()
    timer = AgentClock(OWN, time)
    with pytest.raises(ValueError, match="boom"), timer.tools():
        time.now_s += 7
        raise ValueError("boom")
    assert timer.left_s == 93
