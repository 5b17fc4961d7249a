"""Sandboxes that are open before they are asked for.

`ReadyBackend` stands between a runner and its backend. Sandboxes of one spec are interchangeable, so
`open` hands out one that `prepare` opened earlier when there is one, or waits for one that is just opening;
otherwise it opens as the backend would. Two uses: the agents' sandboxes of the next step open while the
policy is updated, and while a rollout is in work, a spare is opened for its grading, so that siblings that
end together do not wait for each other. Spares open a few at a time, and only while nobody waits for a
sandbox. It never holds more than `most` that nobody uses, and closes what will not be used. It knows neither
tasks nor steps; what a rollout still has to wait for is in its own `sandbox_start` or `grade`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sandbox.stock import Counts, Stock, spec_key
from sandbox.types import Backend, Sandbox, SandboxSpec

SPARES_AT_ONCE = 4
"""How many spares open at the same time: whoever comes meanwhile shares the machine with them."""


@dataclass(slots=True)
class _User:
    """One rollout; known by the spec that it opened first."""

    spec: SandboxSpec | None = None
    grades: bool = False
    """Whether it may still want a sandbox to be graded in."""


_user: ContextVar[_User | None] = ContextVar("user of ready sandboxes", default=None)


class ReadyBackend:
    """A backend with sandboxes in stock. Belongs to one event loop; enter it after the inner backend."""

    def __init__(
        self, backend: Backend, *, most: int, spares: bool = True, start_timeout_s: float = 120.0
    ) -> None:
        """`most` bounds what is open and unused; `spares`: open one for each rollout's grading.
        One that takes longer than `start_timeout_s` to open is given up."""
        self._backend = backend
        self._spares = spares
        self._most = most
        self._stock = Stock(backend, most=most, start_timeout_s=start_timeout_s)
        self._prepared: Counter[Hashable] = Counter()
        self._gradings: Counter[Hashable] = Counter()
        self._wanted: deque[SandboxSpec] = deque()
        self._opening: set[asyncio.Task[Sandbox]] = set()
        self._waiting = 0
        self._left = False

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
        user = _user.get()
        first = user is not None and user.spec is None
        if user is not None and user.grades and user.spec == spec:
            self._graded(user)
        self._waiting += 1
        try:
            sandbox = await self._stock.take(spec) or await self._backend.open(spec)
        finally:
            self._waiting -= 1
            self._open_spares()
        if first and user is not None:
            self._work_begins(user, spec)
        if self._gradings[spec_key(spec)]:
            self._wanted.append(spec)
            self._open_spares()
        return sandbox

    def prepare(self, specs: Iterable[SandboxSpec]) -> None:
        """Start opening one for each, with a shell, as far as `most` allows; returns at once."""
        for spec in specs:
            if not self._left and self._stock.add(spec, session=True):
                self._prepared[spec_key(spec)] += 1

    async def discard(self) -> None:
        """Close all that are unused, those still opening included."""
        self._prepared.clear()
        self._wanted.clear()
        await self._stock.empty()

    @asynccontextmanager
    async def user(self) -> AsyncIterator[None]:
        """Around one rollout: what it opens first is its agent's, what it opens next is for its grading."""
        user = _User()
        token = _user.set(user)
        try:
            yield
        finally:
            _user.reset(token)
            if user.grades and user.spec is not None:
                self._graded(user)
                key = spec_key(user.spec)
                self._stock.drop(user.spec, keep=self._prepared[key] + self._gradings[key])
                self._open_spares()

    def _work_begins(self, user: _User, spec: SandboxSpec) -> None:
        key = spec_key(spec)
        self._prepared -= Counter([key])  # one less, and never below none
        user.spec = spec
        if self._spares:
            user.grades = True
            self._gradings[key] += 1

    def _graded(self, user: _User) -> None:
        assert user.spec is not None
        user.grades = False
        self._gradings -= Counter([spec_key(user.spec)])

    def _open_spares(self) -> None:
        """Open what is wanted, as far as it may be; called whenever a reason not to may have ended."""
        while self._wanted and self._may_open_spares():
            spec = self._wanted.popleft()
            key = spec_key(spec)
            if self._stock.count(spec) >= self._prepared[key] + self._gradings[key]:
                continue  # it came, or nobody wants it any more
            opening = self._stock.add(spec)
            if opening is not None:
                self._opening.add(opening)
                opening.add_done_callback(self._opened)

    def _may_open_spares(self) -> bool:
        room = self.in_stock < self._most and len(self._opening) < SPARES_AT_ONCE
        return room and not self._waiting and not self._left

    def _opened(self, opening: asyncio.Task[Sandbox]) -> None:
        self._opening.discard(opening)
        self._open_spares()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        await self.discard()
