"""What a node does for rollouts: one `RolloutWorker` in a process of its own, with one runner.

What the runner is made of comes from a factory named in the config, so that the worker knows nothing of
tools, tests or prompts. `open_runner` makes the real one. Ray hosts the worker (`recipes.swe.fanout`);
nothing here imports it.
"""

import asyncio
import importlib
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from recipes.swe.overlap import ReadyBackend
from recipes.swe.rollout import Environments, RolloutLimits, RolloutRunner
from recipes.swe.types import Rollout, RolloutRequest
from recipes.swe.wire import PackedRollout, pack
from sandbox.errors import CacheError
from sandbox.types import MIB, EnvSpec, Limits

logger = logging.getLogger(__name__)

RUNNER_FACTORY = "recipes.swe.worker:open_runner"
"""Default of the factory: the real runner."""


class Runner(Protocol):
    """What a worker hosts; `recipes.swe.rollout.RolloutRunner` satisfies it."""

    async def run(self, request: RolloutRequest) -> Rollout:
        """Raises for programming errors only."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A runner that can get ready for rollouts that come later."""

    async def prepare(self, envs: Sequence[EnvSpec]) -> None:
        """Start getting ready for one rollout of each environment."""
        ...

    async def discard(self) -> None:
        """Let go of what was prepared and not used."""
        ...


class OverlappedRunner:
    """A runner over a `ReadyBackend`: sandboxes of later rollouts open while something else goes on."""

    def __init__(self, runner: Runner, ready: ReadyBackend, cache: Environments, limits: Limits) -> None:
        """`runner` must open its sandboxes through `ready`, over environments of `cache` with `limits`."""
        self._runner = runner
        self._ready = ready
        self._cache = cache
        self._limits = limits
        self._pending: Counter[str] = Counter()
        """Sandboxes to open for rollouts to come, by environment."""
        self._opened: Counter[str] = Counter()
        """Those that were, for rollouts that have not begun."""

    async def run(self, request: RolloutRequest) -> Rollout:
        """See Runner."""
        key = request.task.env.key
        claimed = self._opened if self._opened[key] else self._pending
        claimed -= Counter([key])
        async with self._ready.user():
            return await self._runner.run(request)

    async def prepare(self, envs: Sequence[EnvSpec]) -> None:
        """See Prepares. What is not in the cache is left to its rollout, whose failure it then is; for a
        rollout that began meanwhile nothing is opened any more."""
        self._pending.update(env.key for env in envs)
        for env in envs:
            try:
                cached = await asyncio.to_thread(self._cache.ensure, env)
            except (CacheError, OSError) as error:
                logger.warning("nothing prepared for %s: %s", env.key, error)
                continue
            if self._pending[env.key]:
                self._pending[env.key] -= 1
                self._opened[env.key] += 1
                self._ready.prepare([cached.spec(self._limits)])

    async def discard(self) -> None:
        """See Prepares."""
        self._pending.clear()
        self._opened.clear()
        await self._ready.discard()


async def open_runner(config: Mapping[str, Any], stack: AsyncExitStack) -> Runner:
    """The real runner: MiniSandboxes over the cache, vLLM as policy, the task's tests as reward."""
    from transformers import AutoTokenizer

    from recipes.swe.agent_config import AgentConfig
    from recipes.swe.backends import make_backend
    from recipes.swe.chat import ChatCodec
    from recipes.swe.grading import open_grader
    from recipes.swe.io_gate import open_cache
    from recipes.swe.policy import VllmPolicy
    from rewards.shapes import SHAPE_KEYS, shape_config

    sandbox, reward, paths = config["sandbox"], config["reward"], config["paths"]
    agent = AgentConfig.from_mapping(config["agent"])
    codec = ChatCodec(AutoTokenizer.from_pretrained(config["policy"]["path"]))
    policy = VllmPolicy(
        config["server_url"],
        config["served_model_name"],
        timeout_s=agent.llm_timeout_s,
        stop_token_ids=(codec.end_id,),
        reconnect_s=config["reconnect_s"],
    )
    stack.push_async_callback(policy.close)
    inner = await stack.enter_async_context(make_backend(sandbox, Path(paths["temp_dir"]) / "sandboxes"))
    backend = await stack.enter_async_context(ReadyBackend(inner, most=sandbox["max_concurrent"]))
    verdicts = Path(paths["cache_dir"]) if reward["store"] else None
    grader = open_grader(verdicts, attempts=reward["attempts"], cached=reward["cache"])
    shape = shape_config({name: reward[name] for name in SHAPE_KEYS})
    limits, cache = _limits(sandbox, reward), open_cache(paths)
    runner = RolloutRunner(backend, cache, policy, codec, agent, grader=grader, shape=shape, limits=limits)
    return OverlappedRunner(runner, backend, cache, limits.sandbox)


def _limits(sandbox: Mapping[str, Any], reward: Mapping[str, Any]) -> RolloutLimits:
    """What rollouts on this node may use; as many gradings at once as there are processors."""
    return RolloutLimits(
        sandbox=Limits(
            memory_bytes=sandbox["memory_mib"] * MIB,
            pids=sandbox["pids"],
            disk_bytes=sandbox["disk_mib"] * MIB,
            open_files=sandbox["open_files"],
            output_bytes=sandbox["output_kib"] * 1024,
        ),
        max_concurrent=sandbox["max_concurrent"],
        max_grading=min(sandbox["max_concurrent"], max(2, len(os.sched_getaffinity(0)))),
        grading_timeout_s=reward["timeout_s"],
        test_timeout_s=reward["test_timeout_s"],
    )


class RolloutWorker:
    """Builds its runner on the first call, so that a new one in place of a dead one comes up the same way."""

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        self._factory = factory
        self._config = config
        self._stack = AsyncExitStack()
        self._runner: Runner | None = None
        self._opening = asyncio.Lock()
        self._preparing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def ready(self) -> None:
        """Return when the runner is built; raises what building it raised."""
        await self._open()

    async def rollout(self, request: RolloutRequest) -> PackedRollout:
        """Run one rollout."""
        return pack(await (await self._open()).run(request))

    async def prepare(self, envs: Sequence[EnvSpec]) -> None:
        """Start getting ready for rollouts that come later; returns at once. After `close` there are none."""
        if self._closed:
            return
        runner = await self._open()
        if isinstance(runner, Prepares):
            task = asyncio.create_task(runner.prepare(envs))
            self._preparing.add(task)
            task.add_done_callback(self._prepared)

    async def discard(self) -> None:
        """Let go of what was prepared and not used."""
        await self._stop_preparing()
        if isinstance(self._runner, Prepares):
            await self._runner.discard()

    async def close(self) -> None:
        """Close the runner's backend and everything open in it."""
        self._closed = True
        await self._stop_preparing()
        self._runner = None
        await self._stack.aclose()

    def _prepared(self, task: asyncio.Task[None]) -> None:
        self._preparing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("preparing sandboxes failed; they open when they are needed", exc_info=error)

    async def _stop_preparing(self) -> None:
        tasks = list(self._preparing)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _open(self) -> Runner:
        async with self._opening:
            if self._closed:
                raise RuntimeError("the rollout worker was closed")
            if self._runner is None:
                module, name = self._factory.split(":")
                factory = getattr(importlib.import_module(module), name)
                runner = await factory(self._config, self._stack)
                if self._closed:  # meanwhile
                    await self._stack.aclose()
                    raise RuntimeError("the rollout worker was closed")
                self._runner = runner
                return runner
            return self._runner
