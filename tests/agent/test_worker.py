"""A worker that is closed stays closed, whatever call comes late."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from recipes.swe.types import Rollout, RolloutRequest
from recipes.swe.worker import RolloutWorker
from sandbox.types import EnvSpec
from tests.agent.fakes import task

FACTORY = "tests.agent.test_worker:open_counted"


class CountedRunner:
    """Says what is open."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    async def run(self, request: RolloutRequest) -> Rollout:
        return Rollout(request.trajectory_id, request.task.instance_id, None, None)

    async def prepare(self, envs: Sequence[EnvSpec]) -> None:
        self._log.append("prepared")
        await asyncio.sleep(60)

    async def discard(self) -> None:
        self._log.append("discarded")


async def open_counted(config: Mapping[str, Any], stack: AsyncExitStack) -> CountedRunner:
    """Factory: takes a while, and notes opening and closing."""
    await asyncio.sleep(0.05)
    config["log"].append("opened")
    stack.callback(config["log"].append, "closed")
    return CountedRunner(config["log"])


async def test_what_comes_after_closing_opens_nothing() -> None:
    log: list[str] = []
    worker = RolloutWorker(FACTORY, {"log": log})
    await worker.prepare([EnvSpec("a")])
    await asyncio.sleep(0)
    await worker.close()
    assert log == ["opened", "prepared", "closed"]
    await worker.prepare([EnvSpec("a")])
    await worker.discard()
    with pytest.raises(RuntimeError, match="was closed"):
        await worker.rollout(RolloutRequest("t/0", task()))
    assert log == ["opened", "prepared", "closed"]


async def test_what_is_being_built_when_it_is_closed_is_closed_too() -> None:
    log: list[str] = []
    worker = RolloutWorker(FACTORY, {"log": log})
    calls = [asyncio.create_task(worker.rollout(RolloutRequest(f"t/{i}", task()))) for i in range(2)]
    await asyncio.sleep(0)
    await worker.close()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(error) for error in ended] == ["the rollout worker was closed"] * 2
    assert log == ["opened", "closed"]
