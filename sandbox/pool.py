"""Sandboxes made ahead: everything but the root and the limits, which only a request decides.

The helper takes a member for a request and makes the next one later, when no request has come for a moment,
so that filling never competes with starting. An empty pool is no error: the helper then makes one at once.
"""

import os
import signal
import time
from collections.abc import Callable

from sandbox.nursery import Member

_REFILL_DELAY_S = 0.025
_LONGEST_DELAY_S = 0.25
_AFTER_FAILURE_S = 1.0


class Pool:
    """Members of one kind. Single-threaded: the helper's loop calls `refill` when `wait_ms` has passed."""

    def __init__(self, make: Callable[[], Member], size: int) -> None:
        self._make = make
        self._size = size
        self._members: list[Member] = []
        self._due = time.monotonic()
        self._emptied = self._due

    def take(self) -> Member:
        """A member made ahead, else one made now. Raises OSError when that fails."""
        if len(self._members) == self._size:
            self._emptied = time.monotonic()
        self.postpone()
        return self._members.pop() if self._members else self._make()

    def postpone(self) -> None:
        """Something else is going on: fill later, but not much later than the first member was taken."""
        self._due = min(time.monotonic() + _REFILL_DELAY_S, self._emptied + _LONGEST_DELAY_S)

    def wait_ms(self) -> int | None:
        """How long to wait before `refill`, or None while the pool is full."""
        if len(self._members) >= self._size:
            return None
        return max(0, int((self._due - time.monotonic()) * 1000) + 1)

    def refill(self) -> None:
        """Make one member, if it is time."""
        if len(self._members) >= self._size or time.monotonic() < self._due:
            return
        try:
            self._members.append(self._make())
            self._due = time.monotonic() + _REFILL_DELAY_S / 4
        except OSError:
            # No memory or no process to spare: requests make their own and report what is wrong.
            self._due = time.monotonic() + _AFTER_FAILURE_S

    def drop(self, pid: int) -> Member | None:
        """Forget a member that died; None when it is none of this pool."""
        for member in self._members:
            if member.pid == pid:
                self._members.remove(member)
                member.let_go()
                return member
        return None

    def empty(self) -> list[Member]:
        """Kill all members and hand them over to be reaped."""
        members, self._members, self._size = self._members, [], 0
        for member in members:
            os.kill(member.pid, signal.SIGKILL)
            member.let_go()
        return members
