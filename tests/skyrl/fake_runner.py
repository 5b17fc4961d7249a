"""A runner that needs neither sandbox nor policy, for tests of the fan-out and of the driver."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import ray

from recipes.swe.types import Failure, Rollout, RolloutRequest, TaskInstance, Trajectory, Turn
from rewards.types import RewardResult, TestSpec
from sandbox.types import EnvSpec


def make_task(name: str) -> TaskInstance:
    return TaskInstance(name, "toy", f"Fix {name}.", EnvSpec(name), TestSpec((), ("t::a",), ()))


def make_request(task: str, number: int = 0, **fields: Any) -> RolloutRequest:
    return RolloutRequest(f"step0001/{task}/{number}", make_task(task), **fields)


def make_trajectory(turns: int = 2, tokens: int = 3) -> Trajectory:
    made: list[Turn] = []
    prompt: tuple[int, ...] = tuple(range(1000, 1000 + tokens))
    for number in range(turns):
        response = tuple(range(2000 + number, 2000 + number + tokens))
        made.append(Turn(prompt, response, (-0.5,) * tokens, "stop", "text", "call", "seen"))
        prompt = (*prompt, *response, 7, 8)
    return Trajectory(tuple(made), "diff", "submitted")


class FakeRunner:
    """Does what the task's name says; writes a line to `log` for each rollout that it begins."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.running = 0
        self.prepared: list[str] = []

    async def run(self, request: RolloutRequest) -> Rollout:
        what, node = request.task.instance_id.split("-")[0], ray.get_runtime_context().get_node_id()
        self.running += 1
        prepared = request.task.env.key in self.prepared
        with self._log.open("a") as log:
            print(request.trajectory_id, node, self.running, request.may_move, prepared, file=log)
        try:
            return await self._run(what, request)
        finally:
            self.running -= 1

    async def _run(self, what: str, request: RolloutRequest) -> Rollout:
        first = not self._log.with_suffix(".died").exists()
        match what:
            case "dies" if first:
                self._log.with_suffix(".died").touch()
                await asyncio.sleep(0.3)  # others are under way
                os._exit(1)
            case "kills":
                os._exit(1)
            case "raises":
                raise RuntimeError("a programming error")
            case "fullnode" if request.may_move:
                return Rollout(
                    request.trajectory_id, request.task.instance_id, make_trajectory(), None, {"llm": 1.0},
                    failure=Failure("sandbox", "no space left", elsewhere=True), attempts=1,
                )  # fmt: skip
            case "fullnode":
                assert request.done is not None, "the agent's work went with the move"
            case "long":
                await asyncio.sleep(60)
            case _:
                await asyncio.sleep(0.2)
        return Rollout(
            request.trajectory_id,
            request.task.instance_id,
            make_trajectory(),
            RewardResult(1.0, True, 1.0, 0),
            {"llm": 1.0},
        )

    async def prepare(self, envs: Sequence[EnvSpec]) -> None:
        self.prepared += [env.key for env in envs]

    async def discard(self) -> None:
        self.prepared.clear()


async def open_fake_runner(config: Mapping[str, Any], stack: AsyncExitStack) -> FakeRunner:
    """Factory for the fan-out."""
    return FakeRunner(Path(config["log"]))
