"""Sandboxes opened ahead: only for what is asked for again, fresh, bounded, and gone in the end."""

import asyncio
import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from sandbox.errors import SandboxStartError
from sandbox.instance import MiniSandbox
from sandbox.mini import MiniBackend
from sandbox.spares import Spares
from sandbox.types import MIB, Limits, Sandbox, SandboxSpec

pytestmark = pytest.mark.usefixtures("usable")
_T = 60.0
_SPEC = SandboxSpec(limits=Limits(memory_bytes=128 * MIB))


class Counting:
    """Counts what the real backend opened; can be told to fail."""

    def __init__(self, inner: MiniBackend) -> None:
        self.inner = inner
        self.opened: list[MiniSandbox] = []
        self.failing = False

    @property
    def name(self) -> str:
        return self.inner.name

    async def open(self, spec: SandboxSpec) -> Sandbox:
        if self.failing:
            raise SandboxStartError("told to")
        sandbox = await self.inner.open(spec)
        self.opened.append(sandbox)
        return sandbox

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)

    async def until(self, count: int) -> None:
        deadline = time.monotonic() + 20
        while len(self.opened) < count:
            assert time.monotonic() < deadline, f"{len(self.opened)} opened, not {count}"
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)


def _spares(state_dir: Path, **options: float) -> tuple[Counting, Spares]:
    counting = Counting(MiniBackend(state_dir=state_dir, pool_size=0))
    return counting, Spares(counting, **options)  # type: ignore[arg-type]


async def _use(backend: Spares, spec: SandboxSpec = _SPEC) -> str:
    async with await backend.open(spec) as sandbox:
        found = await sandbox.exec(["sh", "-c", "cat /tmp/mark; echo used > /tmp/mark"], timeout_s=_T)
        assert "used" not in found.text, "never one that was used"
        return sandbox.id


async def test_second_use_brings_a_spare_and_the_third_takes_it(state_dir: Path) -> None:
    counting, spares = _spares(state_dir)
    async with spares as backend:
        await _use(backend)
        await asyncio.sleep(0.2)
        assert len(counting.opened) == 1, "nothing for what was asked for once"
        await _use(backend)
        await counting.until(3)
        assert await _use(backend) == counting.opened[2].id
        await counting.until(4)
    assert not any(sandbox.alive for sandbox in counting.opened)


async def test_other_limits_are_another_environment(state_dir: Path) -> None:
    counting, spares = _spares(state_dir)
    async with spares as backend:
        await _use(backend)
        await _use(backend)
        await counting.until(3)
        other = SandboxSpec(limits=Limits(memory_bytes=64 * MIB))
        assert await _use(backend, other) == counting.opened[3].id
        limited = SandboxSpec(limits=Limits(memory_bytes=64 * MIB, wall_time_s=30))
        for _ in range(3):
            await _use(backend, limited)
        await asyncio.sleep(0.2)
        assert len(counting.opened) == 7, "a life that is limited does not begin early"


async def test_dead_and_stale_spares_are_not_given_out(state_dir: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "data").mkdir(parents=True)
    spec = SandboxSpec(layers=(layer,), limits=Limits(memory_bytes=128 * MIB))
    counting, spares = _spares(state_dir)
    async with spares as backend:
        await _use(backend, spec)
        await _use(backend, spec)
        await counting.until(3)
        layer.rename(tmp_path / "old")
        (layer / "fresh").mkdir(parents=True)
        async with await backend.open(spec) as sandbox:
            assert sandbox.id != counting.opened[2].id
            assert (await sandbox.exec(["ls", "-d", "/fresh"], timeout_s=_T)).exit_status == 0
        await counting.until(5)
        os.kill(counting.inner.helper_pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
        assert await _use(backend, spec) == counting.opened[5].id


async def test_bounded_and_closed_when_nobody_asks(state_dir: Path) -> None:
    counting, spares = _spares(state_dir, size=1, idle_s=1.0)
    async with spares as backend:
        specs = [SandboxSpec(limits=Limits(memory_bytes=size * MIB)) for size in (64, 65)]
        for spec in specs:
            await _use(backend, spec)
            await _use(backend, spec)
        await counting.until(5)
        await asyncio.sleep(0.2)
        assert len(counting.opened) == 5, "one spare at most"
        assert sum(sandbox.alive for sandbox in counting.opened) == 1
        await asyncio.sleep(1.2)
        assert not any(sandbox.alive for sandbox in counting.opened)


async def test_a_failed_spare_is_nobodys_problem(state_dir: Path) -> None:
    counting, spares = _spares(state_dir)
    async with spares as backend:
        await _use(backend)
        async with await backend.open(_SPEC):
            counting.failing = True
            await asyncio.sleep(0.3)
        with pytest.raises(SandboxStartError, match="told to"):
            await backend.open(_SPEC)
        counting.failing = False
        await _use(backend)
