"""Sandboxes that are open before they are asked for.

`ReadyBackend` stands between a runner and its backend. Sandboxes of one spec are interchangeable, so
`open` hands out one that `prepare` opened earlier when there is one, or waits for one that is just opening;
otherwise it opens as the backend would. Two uses: the agents' sandboxes of the next step open while the
policy is updated, and while rollouts of a task run, one spare of that task is kept for its grading. It never
holds more than `most` that nobody uses, and closes what was not used. It knows neither tasks nor steps; what
a rollout still has to wait for is in its own `sandbox_start`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sandbox.errors import SandboxError
from sandbox.types import Backend, Sandbox, SandboxSpec

logger = logging.getLogger(__name__)

SPARES_AT_ONCE = 2
"""How many spares open at the same time: they must not compete with sandboxes that are waited for."""


def spec_key(spec: SandboxSpec) -> Hashable:
    """Equal for specs whose sandboxes are interchangeable."""
    return (spec.layers, spec.binds, tuple(sorted(spec.env.items())), spec.workdir, spec.limits, spec.network,
            spec.allowed_hosts, spec.upper)  # fmt: skip


@dataclass(slots=True)
class _User:
    """One rollout that may want a grading sandbox later; known by the spec that it opened first."""

    spec: SandboxSpec | None = None


_user: ContextVar[_User | None] = ContextVar("user of ready sandboxes", default=None)


@dataclass(slots=True)
class Counts:
    """What became of sandboxes that were opened ahead."""

    prepared: int = 0
    """Opened, or tried to."""
    used: int = 0
    """Handed out."""
    discarded: int = 0
    """Closed without use."""
    failed: int = 0
    """Did not open; whoever needed one opened it again."""


class ReadyBackend:
    """A backend with sandboxes in stock. Belongs to one event loop; enter it after the inner backend."""

    def __init__(self, backend: Backend, *, most: int, spares: bool = True) -> None:
        """`most` bounds what is open and unused; `spares`: keep one for grading per task in work."""
        self._backend = backend
        self._most = most
        self._spares = spares
        self._stock: dict[Hashable, list[asyncio.Task[Sandbox]]] = {}
        self._in_work: Counter[Hashable] = Counter()
        self._spare_slots = asyncio.Semaphore(SPARES_AT_ONCE)
        self._closing: set[asyncio.Task[None]] = set()
        self.counts = Counts()

    @property
    def name(self) -> str:
        """Of the inner backend."""
        return self._backend.name

    @property
    def in_stock(self) -> int:
        """Open or opening, and unused."""
        return sum(map(len, self._stock.values()))

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """One from stock, else a new one. Raises as the inner backend does."""
        key = spec_key(spec)
        user = _user.get()
        sandbox = await self._from_stock(key) or await self._backend.open(spec)
        if user is not None and user.spec is None:
            user.spec = spec
            self._in_work[key] += 1
        if self._spares and self._in_work[key] and not self._stock.get(key):
            self._add(spec, self._spare_slots)
        return sandbox

    def prepare(self, specs: Iterable[SandboxSpec]) -> None:
        """Start opening one for each, as far as `most` allows; returns at once."""
        for spec in specs:
            self._add(spec, None)

    async def discard(self) -> None:
        """Close all that are unused, those still opening included."""
        for key in list(self._stock):
            self._drop(key)
        while self._closing:
            await asyncio.gather(*self._closing)

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
                        self._drop(key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.discard()

    def _add(self, spec: SandboxSpec, slots: asyncio.Semaphore | None) -> None:
        if self.in_stock >= self._most or spec.limits.wall_time_s is not None:  # its time would begin now
            return
        self.counts.prepared += 1
        self._stock.setdefault(spec_key(spec), []).append(asyncio.create_task(self._opened(spec, slots)))

    async def _opened(self, spec: SandboxSpec, slots: asyncio.Semaphore | None) -> Sandbox:
        if slots is None:
            return await self._backend.open(spec)
        async with slots:
            return await self._backend.open(spec)

    async def _from_stock(self, key: Hashable) -> Sandbox | None:
        """The readiest one of this kind; None when there is none that opens."""
        while tasks := self._stock.get(key):
            task = next((task for task in tasks if task.done()), tasks[0])
            tasks.remove(task)
            if not tasks:
                del self._stock[key]
            try:
                sandbox = await asyncio.shield(task)
            except asyncio.CancelledError:  # of the rollout that waits
                self._close_soon(task)
                raise
            except (SandboxError, OSError) as error:
                self.counts.failed += 1
                logger.warning("a sandbox opened ahead failed, opening another: %s", error)
                continue
            if not getattr(sandbox, "alive", True):  # its helper died while it waited
                self._close_soon(task)
                continue
            self.counts.used += 1
            return sandbox
        return None

    def _drop(self, key: Hashable) -> None:
        for task in self._stock.pop(key, ()):
            self._close_soon(task)

    def _close_soon(self, task: asyncio.Task[Sandbox]) -> None:
        self.counts.discarded += 1
        closing = asyncio.create_task(_close(task))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _close(task: asyncio.Task[Sandbox]) -> None:
    """Close what `task` opened; an opening is waited for, since cancelling it may leave parts behind."""
    try:
        sandbox = await task
        await sandbox.close()
    except (SandboxError, OSError) as error:
        logger.warning("a sandbox that nobody used: %s", error)
