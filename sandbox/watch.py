"""Limits that no kernel facility holds for us, watched by the owner: life time and the size of a disk upper.

A watched limit is noticed a moment after it is passed, and then ends the sandbox. The size of a tmpfs upper
and all other limits are the kernel's to hold.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.types import Limits

_LOOK_EVERY_S = 0.1
_SHARE = 20
"""Looking takes at most one part in so many of the time."""


def used_bytes(directory: str | Path) -> int:
    """Blocks that the files below take on disk, in bytes; a file with several names counts once."""
    total, seen = 0, set[int]()
    stack = [os.fspath(directory)]
    while stack:
        try:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if status.st_ino not in seen:
                        seen.add(status.st_ino)
                        total += status.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
        except OSError:
            continue  # removed while we look, or closed to us by its mode
    return total


class Watch:
    """Calls `end(reason)` once, when a limit is passed. Belongs to one event loop."""

    def __init__(self, end: Callable[[str], None]) -> None:
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, limits: Limits, disk: Path | None) -> None:
        """Begin; `disk` is the directory of a disk upper."""
        if limits.wall_time_s is not None:
            reason = f"the sandbox reached its limit of {limits.wall_time_s:g} s of wall time"
            self._timer = asyncio.get_running_loop().call_later(limits.wall_time_s, self._end, reason)
        if disk is not None:
            self._task = asyncio.create_task(self._look(disk, limits.disk_bytes))

    async def _look(self, disk: Path, limit_bytes: int) -> None:
        pause_s = _LOOK_EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            started = time.monotonic()
            used = await asyncio.to_thread(used_bytes, disk)
            pause_s = max(_LOOK_EVERY_S, _SHARE * (time.monotonic() - started))
            if used > limit_bytes:
                self._end(f"the sandbox wrote {used} bytes to disk, over its limit of {limit_bytes}")
                return

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        if self._timer:
            self._timer.cancel()
        if self._task:
            self._task.cancel()
