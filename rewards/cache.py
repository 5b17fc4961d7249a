"""Verdicts by task and patch, so that equal patches are graded once, also when they come at once.

In memory, for one event loop, in front of a `VerdictStore` on disk where one is given. Errors and verdicts
that hung on a limit of the machine are never kept.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from rewards.store import VerdictStore, lasting
from rewards.types import RewardResult


class GradeCache:
    """Keeps the most recent verdicts. Use one instance per process."""

    def __init__(self, capacity: int = 10_000, *, store: VerdictStore | None = None) -> None:
        """`capacity` is the number of verdicts kept in memory. With a `store`, `task_id` must be a digest of
        the whole task (`rewards.store.task_digest`), since it outlives the run."""
        self._store = store
        self._capacity = capacity
        self._kept: OrderedDict[tuple[str, str], RewardResult] = OrderedDict()
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}
        self.hits = 0
        self.misses = 0

    async def get(
        self, task_id: str, patch: str, grade: Callable[[], Awaitable[RewardResult]]
    ) -> RewardResult:
        """The kept verdict, or that of `grade()`. Of concurrent equal calls one grades and the rest
        wait for it; when it fails or is cancelled the next one grades."""
        key = (task_id, hashlib.sha256(patch.encode("utf-8", "surrogateescape")).hexdigest())
        lock, waiting = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, waiting + 1)
        try:
            async with lock:
                return await self._get_locked(key, patch, grade)
        finally:
            lock, waiting = self._locks[key]
            if waiting == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, waiting - 1)

    async def _get_locked(
        self, key: tuple[str, str], patch: str, grade: Callable[[], Awaitable[RewardResult]]
    ) -> RewardResult:
        kept = self._kept.get(key)
        if kept is not None:
            self.hits += 1
            self._kept.move_to_end(key)
            return kept
        stored = await asyncio.to_thread(self._store.load, key[0], patch) if self._store else None
        if stored is not None:
            self.hits += 1
            self._keep(key, stored)
            return stored
        self.misses += 1
        result = await grade()
        if lasting(result):
            if self._store is not None:
                result = await asyncio.to_thread(self._store.save, key[0], patch, result)
            self._keep(key, result)
        return result

    def _keep(self, key: tuple[str, str], result: RewardResult) -> None:
        self._kept[key] = result
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
