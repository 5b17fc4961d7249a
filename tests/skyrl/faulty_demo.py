"""A real training command with real faults: `python -m tests.skyrl.faulty_demo +recipe=cpu_demo [key=value]`.

`FAULT_SHARE` of the rollouts (environment variable, 0.05 by default), spread evenly over `KINDS`, meet a
fault in every attempt. All else is the command as typed: real policy, vLLM, sandboxes and tests. Servers and
workers can be killed by hand meanwhile.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from launch import train
from launch.config_validate import load_config
from launch.entry import run_command
from recipes.swe.policy import VllmPolicy
from recipes.swe.rollout import RolloutRunner
from recipes.swe.types import Completion, Policy
from recipes.swe.worker import OverlappedRunner, open_runner
from sandbox.mini import MiniBackend
from tests.skyrl.real_faults import (
    BrokenBackend,
    BrokenCache,
    BrokenGrader,
    BrokenPolicy,
    BrokenRunner,
    current_fault,
    fill,
    small_disk,
)

KINDS = ("refused", "late", "unopened", "killed", "full", "damaged", "ungraded")
WAIT_LIMIT_S = 20.0


class BrokenServer(BrokenPolicy):
    """A server that nobody reaches for some, and that is late for others."""

    def __init__(self, inner: Policy, absent: VllmPolicy) -> None:
        super().__init__(inner)
        self._absent = absent

    def for_rollout(self, rollout_id: str) -> "BrokenServer":
        """See Routed."""
        assert isinstance(self._inner, VllmPolicy)
        return BrokenServer(self._inner.for_rollout(rollout_id), self._absent)

    async def sample(self, prompt_ids: tuple[int, ...], **options: Any) -> Completion:
        """See Policy."""
        if current_fault() == "refused":
            return await self._absent.sample(prompt_ids, **options)
        if current_fault() == "late":
            await asyncio.sleep(WAIT_LIMIT_S + 4)  # of each call, a little is the agent's own
        return await super().sample(prompt_ids, **options)


async def open_faulty_runner(config: Mapping[str, Any], stack: AsyncExitStack) -> BrokenRunner:
    """Factory for the fan-out: the real runner with its parts broken."""
    overlapped = await open_runner(config, stack)
    assert isinstance(overlapped, OverlappedRunner)
    runner = overlapped._runner
    assert isinstance(runner, RolloutRunner)
    absent = VllmPolicy("http://127.0.0.1:1", "policy", reconnect_s=1)
    stack.push_async_callback(absent.close)
    disk = stack.enter_context(small_disk(Path(tempfile.mkdtemp(prefix="full-", dir="/tmp")) / "disk"))
    full = await stack.enter_async_context(MiniBackend(state_dir=disk, pool_size=0))
    fill(disk)
    parts: dict[str, Any] = {
        "_backend": BrokenBackend(runner._backend, full),
        "_cache": BrokenCache(runner._cache),
        "_policy": BrokenServer(runner._policy, absent),
        "_grader": BrokenGrader(runner._grader),
    }
    for name, part in parts.items():
        setattr(runner, name, part)
    share = float(os.environ.get("FAULT_SHARE", "0.05"))
    return BrokenRunner(overlapped, dict.fromkeys(KINDS, share / len(KINDS)))


def load_faulty(overrides: list[str], **options: Any) -> dict[str, Any]:
    """The configuration with the runner above in place of the real one."""
    config = load_config([*overrides, f"agent.wait_limit_s={WAIT_LIMIT_S}"], **options)
    return {**config, "runner_factory": "tests.skyrl.faulty_demo:open_faulty_runner"}


if __name__ == "__main__":
    train.load_config = load_faulty  # type: ignore[assignment]
    run_command(train.main, wait_for_threads=False)
