"""Reading what programs print: pipes on the event loop, and a cap that keeps head and tail."""

import array
import asyncio
import fcntl
import os
import termios
from collections.abc import Callable

_CHUNK = 1 << 18


class Collector:
    """Keeps the first and the last half of `limit` bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take more output."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._tail_limit + _CHUNK:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    def result(self) -> tuple[bytes, bool]:
        """(output, truncated); a line in the middle says how much is missing."""
        self._trim()
        if not self._dropped:
            return bytes(self._head + self._tail), False
        marker = b"\n[... %d bytes left out ...]\n" % self._dropped
        return bytes(self._head) + marker + bytes(self._tail), True


class PipeReader:
    """The read end of a pipe, feeding a sink while started."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._sink: Callable[[bytes], None] | None = None

    def start(self, sink: Callable[[bytes], None]) -> None:
        """Begin reading."""
        self._sink = sink
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        if data and self._sink:
            self._sink(data)
        else:
            self._loop.remove_reader(self._fd)

    def drain(self) -> None:
        """Take what is in the pipe at this moment, and not what a background job goes on writing."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, waiting)
        left = waiting[0]
        while left > 0:
            try:
                data = os.read(self._fd, left)
            except BlockingIOError:
                return
            if not data:
                return
            left -= len(data)
            if self._sink:
                self._sink(data)

    def stop(self) -> None:
        """Stop reading; what comes later stays in the pipe."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
        self._sink = None

    def close(self) -> None:
        """Stop and close."""
        self.stop()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
