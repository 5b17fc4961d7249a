"""Real faults under the real runner: a full disk, a missing or vanished layer, a killed sandbox helper."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipes.swe.chat import ChatCodec
from recipes.swe.overlap import ReadyBackend
from recipes.swe.rollout import RolloutLimits, RolloutRunner
from recipes.swe.types import Rollout, RolloutRequest
from recipes.swe.worker import OverlappedRunner
from rewards.grader import Grader
from sandbox.cache import EnvCache
from sandbox.mini import MiniBackend
from sandbox.types import Backend, EnvSpec
from tests.agent.fakes import task
from tests.agent.test_agent import DEMO, FIX, SUBMIT
from tests.agent.test_real_sandbox import LIMITS, ToyCache, cache, grade
from tests.agent.test_rollout import Looping

__all__ = ["cache"]


def make_runner(backend: Backend, environments: object, codec: ChatCodec) -> RolloutRunner:
    policy = Looping(codec, [FIX, SUBMIT])
    grader = Grader(once=grade)
    limits = RolloutLimits(sandbox=LIMITS, max_concurrent=4)
    return RolloutRunner(backend, environments, policy, codec, DEMO, grader=grader, limits=limits)  # type: ignore[arg-type]


def failed_as(rollout: Rollout) -> tuple[str, bool]:
    assert rollout.failure is not None
    return rollout.failure.kind, rollout.failure.elsewhere


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file system of its own")
async def test_a_full_disk_is_the_nodes_fault_and_passes(
    small_disk: Path, cache: ToyCache, codec: ChatCodec
) -> None:
    async with MiniBackend(state_dir=small_disk, pool_size=0) as backend:
        runner = make_runner(backend, cache, codec)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        for number in range(300):  # inodes, too: a folder costs no block of a tmpfs
            try:
                (small_disk / f"more{number}").touch()
            except OSError:
                break
        rollout = await runner.run(RolloutRequest("r/1", task(), may_move=True))
        assert rollout.attempts == 1
        kind, elsewhere = failed_as(rollout)
        assert kind in ("sandbox", "node") and elsewhere, "another node may have room"
        for file in small_disk.glob("more*"):
            file.unlink()
        filler.unlink()
        assert (await runner.run(RolloutRequest("r/2", task()))).failure is None


async def test_a_missing_environment_is_a_cache_fault(tmp_path: Path, codec: ChatCodec) -> None:
    async with MiniBackend() as backend:
        runner = make_runner(backend, EnvCache(tmp_path), codec)
        rollout = await runner.run(RolloutRequest("r/1", task(), may_move=True))
    assert failed_as(rollout) == ("cache", True)


async def test_a_layer_that_vanished_fails_one_rollout_not_the_runner(
    tmp_path: Path, cache: ToyCache, codec: ChatCodec
) -> None:
    class Vanished(ToyCache):
        def ensure(self, spec: EnvSpec) -> object:  # type: ignore[override]
            return cache.ensure(spec) if spec.key != "gone" else ToyCache(tmp_path / "nowhere").ensure(spec)

    async with MiniBackend() as backend:
        runner = make_runner(backend, Vanished(tmp_path), codec)
        bad = await runner.run(RolloutRequest("r/1", task(instance_id="gone")))
        good = await runner.run(RolloutRequest("r/2", task()))
    assert failed_as(bad)[0] == "sandbox"
    assert good.failure is None


async def test_a_killed_helper_costs_no_rollout_what_was_opened_ahead(
    cache: ToyCache, codec: ChatCodec
) -> None:
    """Sandboxes opened ahead die with the helper; the rollout that finds a dead one gets another."""
    async with MiniBackend() as inner, ReadyBackend(inner, most=2) as ready:
        runner = OverlappedRunner(make_runner(ready, cache, codec), ready, cache, LIMITS)  # type: ignore[arg-type]
        await runner.prepare([EnvSpec("toy__1"), EnvSpec("toy__1")])
        await asyncio.sleep(1)  # both are open
        os.kill(inner.helper_pid, signal.SIGKILL)
        rollout = await runner.run(RolloutRequest("r/1", task()))
        assert rollout.failure is None
        rollout = await runner.run(RolloutRequest("r/2", task()))
        assert rollout.failure is None and rollout.attempts == 1
