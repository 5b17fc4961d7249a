"""Locks of the node's cache: one builder or fetcher per layer, and marks of layers that are in use.

All are flock(2) on files of the node's own disk: the kernel drops them when their holder dies, however it
dies, so nothing is ever left locked. They mean nothing between nodes and are not used for that.

A layer is in use while somebody holds a shared lock on its `layer.json`, and for a while after it was last
asked for (the file's time stamp), which covers the moment between finding a layer and opening a sandbox over
it. Only `sandbox.cache_evict` takes that lock exclusively.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from sandbox.errors import SandboxStartError

LAYER_FILE = "layer.json"


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold an exclusive lock; waits in this thread. The file may be removed by whoever holds the lock."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if same_file(fd, path):
                yield
                return
        finally:
            os.close(fd)


def same_file(fd: int, path: str | Path) -> bool:
    """Whether `path` still names the open file: it may have been removed or replaced since it was opened."""
    try:
        there = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    here = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def touch(layer: Path) -> bool:
    """Note that a published layer is wanted now; False when there is none."""
    path = layer / LAYER_FILE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Shared: an eviction of this layer either sees the new time or is over when we go on.
        fcntl.flock(fd, fcntl.LOCK_SH)
        if not same_file(fd, path):
            return False
        os.utime(fd)
    except OSError as error:
        # A cache that this process may only read is not its to evict from either.
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS):
            raise
    finally:
        os.close(fd)
    return True


class Leases:
    """Layers that open sandboxes of this process use. One per backend; safe between threads."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int]] = {}
        """layer.json -> (descriptor that holds the lock, number of sandboxes)."""
        self._lock = threading.Lock()

    def take(self, layers: Iterable[Path]) -> tuple[str, ...]:
        """Mark layers as in use; what lies in no cache needs no mark. Returns what `release` takes back.

        Raises SandboxStartError when one is being removed."""
        taken: list[str] = []
        try:
            for layer in layers:
                path = str(layer.parent / LAYER_FILE)
                if self._take(path):
                    taken.append(path)
        except BaseException:
            self.release(taken)
            raise
        return tuple(taken)

    def _take(self, path: str) -> bool:
        with self._lock:
            if path in self._held:
                fd, count = self._held[path]
                self._held[path] = (fd, count + 1)
                return True
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return False
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)
                if not same_file(fd, path):
                    raise SandboxStartError(f"{os.path.dirname(path)} was evicted a moment ago")
            except BaseException:
                os.close(fd)
                raise
            self._held[path] = (fd, 1)
            return True

    def release(self, taken: Iterable[str]) -> None:
        """Undo one `take`."""
        with self._lock:
            for path in taken:
                fd, count = self._held.pop(path)
                if count > 1:
                    self._held[path] = (fd, count - 1)
                else:
                    os.close(fd)
