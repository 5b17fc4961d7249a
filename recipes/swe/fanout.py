"""Spreads rollouts over Ray actors: one call out, one `Rollout` back.

A `RolloutWorker` hosts one `RolloutRunner` (with its own sandbox backend) in a process of its own; each
node gets one. What the runner is made of comes from a factory named in the config, so that this module
knows nothing of tools, tests or prompts. A dead worker costs its rollouts one retry on a restarted worker
and then a failure of kind `node`; a programming error in a rollout is raised, not hidden. Ray is imported
only here and in recipes/cpu.
"""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError

from recipes.swe.types import Failure, Rollout, RolloutRequest

RUNNER_FACTORY = "recipes.swe.fanout:open_runner"
"""Default of the factory: the real runner."""


class Runner(Protocol):
    """What a worker hosts; `recipes.swe.rollout.RolloutRunner` satisfies it."""

    async def run(self, request: RolloutRequest) -> Rollout:
        """Raises for programming errors only."""
        ...


async def open_runner(config: Mapping[str, Any], stack: AsyncExitStack) -> Runner:
    """The real runner: MiniSandboxes over the cache, vLLM as policy, the task's tests as reward."""
    from transformers import AutoTokenizer

    from recipes.swe.agent_config import AgentConfig
    from recipes.swe.chat import ChatCodec
    from recipes.swe.grading import open_grader
    from recipes.swe.policy import VllmPolicy
    from recipes.swe.rollout import RolloutLimits, RolloutRunner
    from rewards.shapes import SHAPE_KEYS, shape_config
    from sandbox.cache import EnvCache
    from sandbox.mini import MiniBackend
    from sandbox.types import MIB, Limits

    sandbox, reward, paths = config["sandbox"], config["reward"], config["paths"]
    codec = ChatCodec(AutoTokenizer.from_pretrained(config["policy"]["path"]))
    policy = VllmPolicy(config["server_url"], config["served_model_name"], stop_token_ids=(codec.end_id,))
    stack.push_async_callback(policy.close)
    backend = await stack.enter_async_context(MiniBackend(state_dir=Path(paths["temp_dir"]) / "sandboxes"))
    limits = RolloutLimits(
        sandbox=Limits(
            memory_bytes=sandbox["memory_mib"] * MIB,
            pids=sandbox["pids"],
            disk_bytes=sandbox["disk_mib"] * MIB,
            open_files=sandbox["open_files"],
            output_bytes=sandbox["output_kib"] * 1024,
        ),
        max_concurrent=sandbox["max_concurrent"],
        grading_timeout_s=reward["timeout_s"],
        test_timeout_s=reward["test_timeout_s"],
    )
    return RolloutRunner(
        backend,
        EnvCache(Path(paths["cache_dir"])),
        policy,
        codec,
        AgentConfig.from_mapping(config["agent"]),
        grader=open_grader(
            Path(paths["cache_dir"]) if reward["store"] else None,
            attempts=reward["attempts"],
            cached=reward["cache"],
        ),
        shape=shape_config({name: reward[name] for name in SHAPE_KEYS}),
        limits=limits,
    )


class RolloutWorker:
    """Ray actor. Builds its runner on the first call, so that a restarted worker comes up the same way."""

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        self._factory = factory
        self._config = config
        self._stack = AsyncExitStack()
        self._runner: Runner | None = None
        self._opening = asyncio.Lock()

    async def ready(self) -> None:
        """Return when the runner is built; raises what building it raised."""
        await self._open()

    async def rollout(self, request: RolloutRequest) -> Rollout:
        """Run one rollout."""
        return await (await self._open()).run(request)

    async def close(self) -> None:
        """Close the runner's backend and everything open in it."""
        self._runner = None
        await self._stack.aclose()

    async def _open(self) -> Runner:
        async with self._opening:
            if self._runner is None:
                module, name = self._factory.split(":")
                factory = getattr(importlib.import_module(module), name)
                self._runner = await factory(self._config, self._stack)
            return self._runner


class Fanout:
    """The driver's side: workers, and one call per rollout. Order is the caller's."""

    def __init__(self, factory: str, config: Mapping[str, Any], *, workers: int = 1) -> None:
        """Starts `workers` actors; Ray must be up. They use no CPU slot: rollouts mostly wait."""
        actor = ray.remote(num_cpus=0, num_gpus=0, max_concurrency=4096, max_restarts=-1, max_task_retries=1)(
            RolloutWorker
        )
        self._workers = [actor.remote(factory, dict(config)) for _ in range(workers)]
        self._readiness = [worker.ready.remote() for worker in self._workers]

    def wait_ready(self) -> None:
        """Block until each worker can run rollouts; raises what went wrong in one."""
        ray.get(self._readiness)

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """All rollouts at once; results in the order of `requests`."""
        return await asyncio.gather(*(self._one(i, request) for i, request in enumerate(requests)))

    async def close(self) -> None:
        """Close every worker's sandboxes, then end the workers."""
        results = await asyncio.gather(
            *(worker.close.remote() for worker in self._workers), return_exceptions=True
        )
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, RayActorError):
                raise result

    async def _one(self, index: int, request: RolloutRequest) -> Rollout:
        worker = self._workers[index % len(self._workers)]
        try:
            return await worker.rollout.remote(request)
        except RayActorError as error:
            return Rollout(
                trajectory_id=request.trajectory_id,
                instance_id=request.task.instance_id,
                trajectory=None,
                reward=None,
                failure=Failure("node", f"its worker died: {' '.join(str(error).split())[:300]}"),
                attempts=2,
            )
