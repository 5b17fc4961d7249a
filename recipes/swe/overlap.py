"""Sandboxes that are open before they are asked for.

`ReadyBackend` stands between a runner and its backend. Sandboxes of one spec are interchangeable, so
`open` hands out one that `prepare` opened earlier when there is one, or waits for one that is just opening;
otherwise it opens as the backend would. Two uses: the agents' sandboxes of the next step open while the
policy is updated, and while rollouts of a task run, one spare of that task is kept for its grading. It never
holds more than `most` that nobody uses, and closes what was not used. It knows neither tasks nor steps; what
a rollout still has to wait for is in its own `sandbox_start`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sandbox.stock import Counts, Stock, spec_key
from sandbox.types import Backend, Sandbox, SandboxSpec

SPARES_AT_ONCE = 2
"""How many spares open at the same time: they must not compete with sandboxes that are waited for."""


@dataclass(slots=True)
class _User:
    """One rollout that may want a grading sandbox later; known by the spec that it opened first."""

    spec: SandboxSpec | None = None


_user: ContextVar[_User | None] = ContextVar("user of ready sandboxes", default=None)


class ReadyBackend:
    """A backend with sandboxes in stock. Belongs to one event loop; enter it after the inner backend."""

    def __init__(self, backend: Backend, *, most: int, spares: bool = True) -> None:
        """`most` bounds what is open and unused; `spares`: keep one for grading per task in work."""
        self._backend = backend
        self._spares = spares
        self._stock = Stock(backend, most=most)
        self._in_work: Counter[Hashable] = Counter()
        self._spare_slots = asyncio.Semaphore(SPARES_AT_ONCE)

    @property
    def counts(self) -> Counts:
        """What became of those opened ahead."""
        return self._stock.counts

    @property
    def name(self) -> str:
        """Of the inner backend."""
        return self._backend.name

    @property
    def in_stock(self) -> int:
        """Open or opening, and unused."""
        return len(self._stock)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """One from stock, else a new one. Raises as the inner backend does."""
        key = spec_key(spec)
        user = _user.get()
        sandbox = await self._stock.take(spec) or await self._backend.open(spec)
        if user is not None and user.spec is None:
            user.spec = spec
            self._in_work[key] += 1
        if self._spares and self._in_work[key] and not self._stock.has(spec):
            self._stock.add(spec, self._spare_slots)
        return sandbox

    def prepare(self, specs: Iterable[SandboxSpec]) -> None:
        """Start opening one for each, as far as `most` allows; returns at once."""
        for spec in specs:
            self._stock.add(spec, session=True)

    async def discard(self) -> None:
        """Close all that are unused, those still opening included."""
        await self._stock.empty()

    @asynccontextmanager
    async def user(self) -> AsyncIterator[None]:
        """Around one rollout: while it is in work, a spare of its task is kept."""
        user = _User()
        token = _user.set(user)
        try:
            yield
        finally:
            _user.reset(token)
            if user.spec is not None:
                key = spec_key(user.spec)
                self._in_work[key] -= 1
                if self._in_work[key] <= 0:
                    del self._in_work[key]
                    if self._spares:
                        self._stock.drop(user.spec)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.discard()
