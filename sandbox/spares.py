"""Sandboxes opened ahead for an environment that is asked for again and again.

`Spares` wraps any backend: once the same spec was opened twice within a short while, the next one is opened
before it is asked for, so that asking costs only the look-up. Meant for tree search, retries and people at a
prompt. It helps no burst of many starts and costs one start when nobody asks again, so it is off unless used.
A spare has run nothing of anybody; it is never one that was used and cleaned.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sandbox.errors import SandboxError
from sandbox.types import Backend, Sandbox, SandboxSpec

_REFILL_DELAY_S = 0.025
_REMEMBERED = 16

type _State = tuple[tuple[int, int, int], ...]
"""Device, inode and time of change of each."""


@dataclass(frozen=True, slots=True)
class _Spare:
    spec: SandboxSpec
    state: _State | None
    """Of its layers and binds when it was opened."""
    sandbox: Sandbox
    expiry: asyncio.TimerHandle


class Spares:
    """Implements `sandbox.types.Backend` over another one, which it enters and leaves."""

    def __init__(
        self,
        backend: Backend,
        *,
        size: int = 2,
        idle_s: float = 10.0,
        usable: Callable[[Sandbox], bool] = lambda sandbox: True,
    ) -> None:
        """At most `size` spares, each closed after `idle_s` seconds in which nobody wanted it. `usable` tells
        whether a spare still lives; one that died unnoticed fails at its first command, as any other."""
        self._backend = backend
        self._size = size
        self._idle_s = idle_s
        self._usable = usable
        self._spares: list[_Spare] = []
        self._seen: list[tuple[SandboxSpec, float]] = []
        self._fills: dict[asyncio.Task[None], SandboxSpec] = {}
        self._closes: set[asyncio.Task[None]] = set()
        self._opening = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def name(self) -> str:
        """See `sandbox.types.Backend.name`."""
        return self._backend.name

    async def __aenter__(self) -> Self:
        await self._backend.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for task in self._fills:
                task.cancel()
            await asyncio.gather(*self._fills, return_exceptions=True)
            for spare in list(self._spares):
                self._drop(spare)
            await asyncio.gather(*self._closes)
        finally:
            await self._backend.__aexit__(kind, error, trace)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """See `sandbox.types.Backend.open`."""
        sandbox = self._take(spec)
        if sandbox is None:
            self._opening += 1
            self._quiet.clear()
            try:
                sandbox = await self._backend.open(spec)
            finally:
                self._opening -= 1
                if not self._opening:
                    self._quiet.set()
        self._expect(spec)
        return sandbox

    def _take(self, spec: SandboxSpec) -> Sandbox | None:
        for spare in [spare for spare in self._spares if spare.spec == spec]:
            if self._usable(spare.sandbox) and spare.state == _state(spec):
                self._spares.remove(spare)
                spare.expiry.cancel()
                return spare.sandbox
            self._drop(spare)
        return None

    def _expect(self, spec: SandboxSpec) -> None:
        """Fill soon when the spec was wanted before, lately. A life that is limited would begin too early."""
        now = time.monotonic()
        self._seen = [(known, at) for known, at in self._seen if now - at < self._idle_s][-_REMEMBERED:]
        again = any(known == spec for known, _ in self._seen)
        self._seen = [(known, at) for known, at in self._seen if known != spec] + [(spec, now)]
        waiting = spec in self._fills.values() or any(spare.spec == spec for spare in self._spares)
        if again and not waiting and spec.limits.wall_time_s is None and not spec.allowed_hosts:
            fill = asyncio.ensure_future(self._fill(spec))
            self._fills[fill] = spec
            fill.add_done_callback(self._fills.pop)

    async def _fill(self, spec: SandboxSpec) -> None:
        await asyncio.sleep(_REFILL_DELAY_S)
        await self._quiet.wait()  # never compete with a start that somebody waits for
        state = _state(spec)
        try:
            sandbox = await self._backend.open(spec)
        except SandboxError:
            return  # whoever asks opens one himself, and is told what is wrong
        expiry = asyncio.get_running_loop().call_later(self._idle_s, self._expire, sandbox)
        self._spares.append(_Spare(spec, state, sandbox, expiry))
        for spare in self._spares[: -self._size]:
            self._drop(spare)

    def _expire(self, sandbox: Sandbox) -> None:
        for spare in [spare for spare in self._spares if spare.sandbox is sandbox]:
            self._drop(spare)

    def _drop(self, spare: _Spare) -> None:
        self._spares.remove(spare)
        spare.expiry.cancel()
        closing = asyncio.ensure_future(spare.sandbox.close())
        self._closes.add(closing)
        closing.add_done_callback(self._closes.discard)


def _state(spec: SandboxSpec) -> _State | None:
    """Which files the layers and binds are at the moment; None when one is missing."""
    try:
        found = [os.stat(path) for path in (*spec.layers, *(bind.source for bind in spec.binds))]
    except OSError:
        return None
    return tuple((status.st_dev, status.st_ino, status.st_mtime_ns) for status in found)
