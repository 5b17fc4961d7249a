"""Evaluates a policy on tasks: the same agent, sandboxes and grader as in training, without a trainer.

The policy is served by a server that is up already, or by one started here. Rollouts run in this process,
on this machine; each is on disk as soon as it has ended, so that an interrupted evaluation can still be read.
What came out is `recipes.report.evaluation`'s to say.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.cpu.server import ServerSettings, VllmServer
from recipes.report.recorder import RolloutRecorder
from recipes.swe.seeds import rollout_seed
from recipes.swe.types import Rollout, RolloutRequest, TaskInstance
from recipes.swe.worker import Runner, open_runner

RECORD_EVERY = 16
"""Rollouts written at once."""
RECONNECT_S = 30.0


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What is run."""

    tasks: Sequence[TaskInstance]
    """The tasks."""
    rollouts_per_task: int
    """Attempts at each."""
    temperature: float
    """Sampling temperature."""
    top_p: float
    """Nucleus bound."""
    seed: int
    """Of the sampling."""

    def requests(self) -> list[RolloutRequest]:
        """All rollouts: each task once, then each again, so that an interrupted run knows of every task."""
        return [
            RolloutRequest(
                trajectory_id=f"eval/{task.instance_id}/{repetition}",
                task=task,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=rollout_seed(self.seed, 0, task.instance_id, repetition),
            )
            for repetition in range(self.rollouts_per_task)
            for task in self.tasks
        ]


class GpuServer(VllmServer):
    """The same server module on GPUs, with vLLM's own worker and defaults."""

    def command(self) -> list[str]:
        """Without what only a CPU needs."""
        drop_with_value, drop = ("--worker-cls",), ("--enforce-eager", "--no-enable-chunked-prefill")
        kept: list[str] = []
        words = iter(super().command())
        for word in words:
            if word in drop_with_value:
                next(words)
            elif word not in drop:
                kept.append(word)
        return kept

    def environment(self) -> dict[str, str]:
        """Without the settings of vLLM's CPU backend."""
        special = ("VLLM_CPU_", "OMP_", "TORCHDYNAMO_", "VLLM_ENABLE_V1_MULTIPROCESSING")
        return {name: value for name, value in super().environment().items() if not name.startswith(special)}


@contextlib.contextmanager
def served(settings: Mapping[str, Any], model: str) -> Iterator[tuple[str, str]]:
    """(URL, served name) of the policy: as configured, or a server of our own for as long as it is needed."""
    serve = settings["serve"]
    if serve["url"] is not None:
        yield serve["url"], serve["model_name"]
        return
    policy = settings["policy"]
    extra = [str(word) for word in serve["extra_args"]]
    if serve["gpus"]:
        extra += ["--tensor-parallel-size", str(serve["tensor_parallel"])]
        extra += ["--data-parallel-size", str(serve["gpus"] // serve["tensor_parallel"])]
    config = ServerSettings(
        model=model,
        served_model_name=serve["model_name"],
        max_model_len=policy["context_tokens"],
        max_num_batched_tokens=max(8192, policy["context_tokens"]),
        max_num_seqs=max(1, settings["sandbox"]["max_concurrent"]),
        dtype=policy["dtype"],
        seed=settings["seed"],
        start_timeout_s=serve["start_timeout_s"],
        extra_args=tuple(extra),
    )
    log = Path(settings["paths"]["run_dir"]) / "logs" / "vllm.log"
    server = GpuServer(config, log_path=log) if serve["gpus"] else VllmServer(config, log_path=log)
    with server:
        server.wait_healthy()
        yield server.url, serve["model_name"]


async def evaluate(
    settings: Mapping[str, Any],
    plan: EvalPlan,
    recorder: RolloutRecorder,
    *,
    url: str,
    model_name: str,
    model: str,
    progress: Callable[[Rollout, int, int], None],
) -> list[Rollout]:
    """Run all rollouts; `progress` is told of each as it ends, with how many have and how many there are."""
    config = {
        **{name: settings[name] for name in ("agent", "sandbox", "reward", "paths")},
        "policy": {**settings["policy"], "path": model},
        "server_url": url,
        "served_model_name": model_name,
        "reconnect_s": RECONNECT_S,
    }
    async with _runner(config) as runner:
        requests = plan.requests()
        running = [asyncio.create_task(runner.run(request)) for request in requests]
        try:
            return await _gathered(running, recorder, progress)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


@asynccontextmanager
async def _runner(config: Mapping[str, Any]) -> AsyncIterator[Runner]:
    async with AsyncExitStack() as stack:
        yield await open_runner(config, stack)


async def _gathered(
    running: Sequence[asyncio.Task[Rollout]],
    recorder: RolloutRecorder,
    progress: Callable[[Rollout, int, int], None],
) -> list[Rollout]:
    done: list[Rollout] = []
    waiting: list[Rollout] = []
    try:
        for ended in asyncio.as_completed(running):
            rollout = await ended
            done.append(rollout)
            waiting.append(rollout)
            progress(rollout, len(done), len(running))
            if len(waiting) >= RECORD_EVERY:
                await recorder.observe("eval", 0, waiting)
                waiting = []
    finally:
        if waiting:
            await asyncio.shield(recorder.observe("eval", 0, waiting))
    return done
