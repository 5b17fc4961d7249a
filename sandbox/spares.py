"""A backend that opens ahead what is asked for again and again.

`Spares` wraps any backend: once the same spec was opened twice within a short while, the next one is opened
before it is asked for, so that asking costs only the look-up. Meant for tree search, retries and people at a
prompt. It helps no burst of many starts and costs one start when nobody asks again, so it is off unless used.
A spare has run nothing of anybody; it is never one that was used and cleaned.
"""

import asyncio
import time
from collections.abc import Hashable
from types import TracebackType
from typing import Self

from sandbox.stock import Stock, spec_key
from sandbox.types import Backend, Sandbox, SandboxSpec

_REFILL_DELAY_S = 0.025


class Spares:
    """Implements `sandbox.types.Backend` over another one, which it enters and leaves."""

    def __init__(self, backend: Backend, *, size: int = 2, idle_s: float = 10.0) -> None:
        """At most `size` spares, each closed after `idle_s` seconds in which nobody wanted its kind."""
        self._backend = backend
        self._idle_s = idle_s
        self._stock = Stock(backend, most=size)
        self._seen: dict[Hashable, float] = {}
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._fills: set[asyncio.Task[None]] = set()
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
            for timer in self._timers.values():
                timer.cancel()
            for fill in self._fills:
                fill.cancel()
            await asyncio.gather(*self._fills, return_exceptions=True)
            await self._stock.empty()
        finally:
            await self._backend.__aexit__(kind, error, trace)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """See `sandbox.types.Backend.open`."""
        sandbox = await self._stock.take(spec)
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

    def _expect(self, spec: SandboxSpec) -> None:
        """Fill soon when the spec was wanted before, lately."""
        now, key = time.monotonic(), spec_key(spec)
        self._seen = {known: at for known, at in self._seen.items() if now - at < self._idle_s}
        again = key in self._seen
        self._seen[key] = now
        if again:
            fill = asyncio.create_task(self._fill(spec))
            self._fills.add(fill)
            fill.add_done_callback(self._fills.discard)

    async def _fill(self, spec: SandboxSpec) -> None:
        await asyncio.sleep(_REFILL_DELAY_S)
        await self._quiet.wait()  # never compete with a start that somebody waits for
        key = spec_key(spec)
        if not self._stock.count(spec):
            self._stock.add(spec)
        if key in self._timers:
            self._timers.pop(key).cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(self._idle_s, self._expire, spec)

    def _expire(self, spec: SandboxSpec) -> None:
        del self._timers[spec_key(spec)]
        self._stock.drop(spec)
