"""The I/O gate: how much a node fetches and unpacks at once.

A node has a number of units of some megabytes each (the paper: 40 of 50 MB). Unpacking a layer takes as many
as its size needs, at most all there are, for as long as it lasts and no longer. `LocalGate` works among all
processes of a node without any service; a cluster's gate is in `recipes.swe.io_gate`.
"""

import fcntl
import math
import os
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from sandbox.cache_lease import locked

UNITS = 40
UNIT_BYTES = 50_000_000
_LOOK_AGAIN_S = 0.003


class Gate(Protocol):
    """What a fetch asks before it unpacks."""

    def hold(self, size_bytes: int) -> AbstractContextManager[float]:
        """Wait in this thread until so much may be unpacked; gives the seconds waited. Never nested."""
        ...


class NoGate:
    """Everything at once."""

    @contextmanager
    def hold(self, size_bytes: int) -> Generator[float]:
        """See `Gate.hold`."""
        yield 0.0


def units_of(size_bytes: int, *, capacity: int, unit_bytes: int = UNIT_BYTES) -> int:
    """How many units a size takes: one at least, and never more than there are, or it would wait for ever."""
    return max(1, min(capacity, math.ceil(size_bytes / unit_bytes)))


class LocalGate:
    """A semaphore among the processes and threads of a node: each unit is a file that its holder locks.

    A killed holder's locks go with it. Whoever waits stands in a queue (one more lock), so a large request is
    not overtaken for ever by small ones, and only one process at a time collects units: no deadlock."""

    def __init__(self, folder: Path, *, units: int = UNITS, unit_bytes: int = UNIT_BYTES) -> None:
        """`folder` lies on this node's own disk; all that share it should name the same number of units."""
        if units < 1 or unit_bytes < 1:
            raise ValueError("a gate has one unit of one byte at least")
        self._folder = folder
        self._units = units
        self._unit_bytes = unit_bytes

    @contextmanager
    def hold(self, size_bytes: int) -> Generator[float]:
        """See `Gate.hold`."""
        wanted = units_of(size_bytes, capacity=self._units, unit_bytes=self._unit_bytes)
        started = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            with locked(self._folder / "turn"):
                count = 0
                while True:
                    count += self._collect(held, wanted - count)
                    if count == wanted:
                        break
                    time.sleep(_LOOK_AGAIN_S)
            yield time.monotonic() - started

    def _collect(self, held: ExitStack, wanted: int) -> int:
        """Lock up to so many free units; how many it were."""
        count = 0
        for number in range(self._units):
            if count == wanted:
                break
            fd = os.open(self._folder / f"unit-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            held.callback(os.close, fd)
            count += 1
        return count
