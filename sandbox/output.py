"""Reading what programs print: pipes on the event loop, a cap that keeps head and tail, the result.

A copy of everything may go to a file outside, written in a thread so that a slow disk stops only the program
that prints, through its full pipe, and not the event loop.
"""

import array
import asyncio
import fcntl
import os
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.types import ExecResult

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


def exec_result(collector: Collector, *, status: int | None, started: float, note: str = "") -> ExecResult:
    """What a command did: `status` None means that it timed out; `note` is a last line of ours."""
    output, truncated = collector.result()
    return ExecResult(
        output=output + note.encode(),
        exit_status=status,
        timed_out=status is None,
        truncated=truncated,
        duration_s=time.monotonic() - started,
    )


class OutputFile:
    """A file outside that takes a copy of the output. The first error is kept, and ends the copying only."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be opened."""
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._error: OSError | None = None
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append. Blocks: call it in a thread."""
        view = memoryview(data)
        # Cancellation closes the file while a thread may still be writing to it.
        with self._lock:
            try:
                while view and self._error is None and self._fd >= 0:
                    view = view[os.write(self._fd, view) :]
            except OSError as error:
                self._error = error

    def close(self) -> None:
        """Close it. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def check(self, status: int | None) -> None:
        """Raise SandboxError when not everything could be written."""
        if self._error:
            ending = "timed out" if status is None else f"ended with status {status}"
            raise SandboxError(f"{self._path}: {self._error.strerror}; the command {ending}") from self._error


class PipeReader:
    """The read end of a pipe, feeding a sink while started."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._sink: Callable[[bytes], None] | None = None
        self._file: OutputFile | None = None
        self._writing: asyncio.Future[None] | None = None

    def start(self, sink: Callable[[bytes], None], file: OutputFile | None = None) -> None:
        """Begin reading."""
        self._sink = sink
        self._file = file
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        if data and self._sink:
            self._sink(data)
            if self._file:
                self._write_on(self._file, data)
        else:
            self._loop.remove_reader(self._fd)

    def _write_on(self, file: OutputFile, data: bytes) -> None:
        """Read no more until this is written."""
        self._loop.remove_reader(self._fd)
        self._writing = self._loop.run_in_executor(None, file.write, data)
        self._writing.add_done_callback(lambda _: self._written(file))

    def _written(self, file: OutputFile) -> None:
        self._writing = None
        if self._file is file and self._fd >= 0:
            self._loop.add_reader(self._fd, self._readable)

    async def finish(self) -> None:
        """`drain`, and write it to the file as well."""
        file, self._file = self._file, None
        if not file:
            self.drain()
            return
        if self._writing:
            await self._writing
        sink, last = self._sink, bytearray()
        if sink:
            self._sink = lambda data: (sink(data), last.extend(data))[1]
            self.drain()
            self._sink = sink
        await self._loop.run_in_executor(None, file.write, bytes(last))

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

    def discard(self) -> None:
        """Drop what is in the pipe at this moment and what comes while it is being read."""
        self._sink = _drop
        self._file = None
        self.drain()

    def stop(self) -> None:
        """Stop reading; what comes later stays in the pipe."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
        self._sink = None
        self._file = None

    def close(self) -> None:
        """Stop and close."""
        self.stop()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _drop(_data: bytes) -> None:
    """A sink for what nobody may see."""
