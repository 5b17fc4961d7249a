"""Sandboxes that are open and unused, kept by the spec they were opened for.

Sandboxes of one spec are interchangeable as long as nobody used them. `Stock` opens some ahead, hands out the
readiest one, and closes what was not wanted; it never holds more than `most`. Its users (`sandbox.spares`,
the recipes) say when to open which. It hands out none whose layers or binds were replaced meanwhile.
"""

import asyncio
import logging
import os
from collections.abc import Hashable
from dataclasses import dataclass

from sandbox.errors import SandboxError, SandboxStartError
from sandbox.types import Backend, Sandbox, SandboxSpec

logger = logging.getLogger(__name__)

type _State = tuple[tuple[int, int, int], ...] | None


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


@dataclass(frozen=True, slots=True)
class _Item:
    opening: asyncio.Task[Sandbox]
    state: _State
    """Of its layers and binds when it was opened."""


class Stock:
    """Belongs to one event loop. `await empty()` in the end, before the backend is left."""

    def __init__(self, backend: Backend, *, most: int, start_timeout_s: float = 120.0) -> None:
        """`most` bounds what is open, or opening, and unused. An opening that takes longer than
        `start_timeout_s` has failed: nobody may be there to give it up."""
        self._backend = backend
        self._start_timeout_s = start_timeout_s
        self._most = most
        self._items: dict[Hashable, list[_Item]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.counts = Counts()

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def count(self, spec: SandboxSpec) -> int:
        """How many of this kind are there or opening."""
        return len(self._items.get(spec_key(spec), ()))

    def add(self, spec: SandboxSpec, *, session: bool = False) -> asyncio.Task[Sandbox] | None:
        """Start opening one, and a `session` in it; returns at once, None when there are enough. A limited
        life would begin before it is used, so none is opened."""
        if len(self) >= self._most or spec.limits.wall_time_s is not None:
            return None
        self.counts.prepared += 1
        item = _Item(asyncio.create_task(self._opened(spec, session)), _state(spec))
        self._items.setdefault(spec_key(spec), []).append(item)
        return item.opening

    async def take(self, spec: SandboxSpec) -> Sandbox | None:
        """The readiest one of this kind, waiting for it when it is just opening; None when there is none that
        opens, lives, and has the layers that are there now."""
        key = spec_key(spec)
        while items := self._items.get(key):
            item = next((item for item in items if item.opening.done()), items[0])
            items.remove(item)
            if not items:
                del self._items[key]
            try:
                sandbox = await asyncio.shield(item.opening)
            except asyncio.CancelledError:  # of whoever waits
                self._close_soon(item)
                raise
            except (SandboxError, OSError) as error:
                self.counts.failed += 1
                logger.warning("a sandbox opened ahead failed, opening another: %s", error)
                continue
            if not getattr(sandbox, "alive", True) or item.state != _state(spec):
                self._close_soon(item)
                continue
            self.counts.used += 1
            return sandbox
        return None

    async def settled(self) -> None:
        """Wait until none is opening; what did not open is told to who takes it."""
        openings = [item.opening for items in self._items.values() for item in items]
        await asyncio.gather(*openings, return_exceptions=True)

    def drop(self, spec: SandboxSpec, *, keep: int = 0) -> None:
        """Close those of this kind but for the `keep` readiest; returns at once."""
        items = sorted(self._items.pop(spec_key(spec), ()), key=lambda item: not item.opening.done())
        if kept := items[:keep]:
            self._items[spec_key(spec)] = kept
        for item in items[keep:]:
            self._close_soon(item)

    async def empty(self) -> None:
        """Close all, those still opening included. Raises what is no fault of a sandbox, in the end."""
        for items in [self._items.pop(key) for key in list(self._items)]:
            for item in items:
                self._close_soon(item)
        errors: list[BaseException] = []
        while closing := tuple(self._closing):
            await asyncio.wait(closing)  # which, when it is cancelled, leaves them alone
            self._closing.difference_update(closing)
            errors += [error for one in closing if (error := one.exception()) is not None]
        if errors:
            raise errors[0]

    async def _opened(self, spec: SandboxSpec, session: bool) -> Sandbox:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                sandbox = await self._backend.open(spec)
                if session:
                    try:
                        await sandbox.prepare_session()
                    except BaseException:
                        await sandbox.close()
                        raise
                return sandbox
        except TimeoutError as error:
            raise SandboxStartError(f"did not open in {self._start_timeout_s:g} s") from error

    def _close_soon(self, item: _Item) -> None:
        self.counts.discarded += 1
        closing = asyncio.create_task(_close(item.opening))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _close(opening: asyncio.Task[Sandbox]) -> None:
    """Close what was opened; an opening is waited for, since cancelling it may leave parts behind."""
    try:
        sandbox = await opening
        await sandbox.close()
    except (SandboxError, OSError) as error:
        logger.warning("a sandbox that nobody used: %s", error)


def spec_key(spec: SandboxSpec) -> Hashable:
    """Equal for specs whose sandboxes are interchangeable."""
    return (spec.layers, spec.binds, tuple(sorted(spec.env.items())), spec.workdir, spec.limits, spec.network,
            spec.allowed_hosts, spec.upper)  # fmt: skip


def _state(spec: SandboxSpec) -> _State:
    """Which files the layers and binds are at the moment (device, inode, time of change); None when one is
    missing."""
    try:
        found = [os.stat(path) for path in (*spec.layers, *(bind.source for bind in spec.binds))]
    except OSError:
        return None
    return tuple((status.st_dev, status.st_ino, status.st_mtime_ns) for status in found)
