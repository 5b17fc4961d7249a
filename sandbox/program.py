"""Runs a program of this machine and waits for it, from any event loop.

Not asyncio's own subprocesses, for two reasons. They are done when their pipes end, and the monitor that a
container engine leaves behind may hold those for as long as the container lives. And under uvloop, the loop
of Ray's asynchronous actors, a child inherits whatever descriptors are open, so that monitor also holds pipes
of programs that were started at the same moment. Here output goes to memory files, the end is told by a pidfd
(pidfd_open(2)), and `subprocess` closes all other descriptors. Not for what runs inside a sandbox.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended."""

    status: int
    """Exit status; minus the signal that killed it."""
    output: bytes
    """What it wrote to standard output until it ended."""
    problem: bytes
    """The same for standard error."""


async def run_program(
    words: Sequence[str], *, feed: Callable[[BinaryIO], None] | None = None, timeout_s: float | None = None
) -> Finished:
    """Runs `words` in a session of its own, out of the reach of Ctrl-C, which is for the owner to act on.

    `feed` writes its standard input, in a thread; a program that stops reading is no error here. Raises
    OSError when it cannot be started, TimeoutError after `timeout_s`, and what `feed` raises; in all cases,
    and when cancelled, the program has ended when this returns."""
    with _memory_file() as output, _memory_file() as problem:
        read_end, write_end = os.pipe2(os.O_CLOEXEC) if feed else (subprocess.DEVNULL, -1)
        try:
            running = subprocess.Popen(  # noqa: ASYNC220
                words, stdin=read_end, stdout=output, stderr=problem, start_new_session=True
            )
        except OSError:
            if feed:
                os.close(write_end)
            raise
        finally:
            if feed:
                os.close(read_end)
        feeding = asyncio.ensure_future(asyncio.to_thread(_write, feed, write_end)) if feed else None
        try:
            async with asyncio.timeout(timeout_s):
                await _ended(running.pid)
        except BaseException:
            running.kill()
            raise
        finally:
            running.wait()  # it has ended, or was killed
            if feeding is not None:
                await asyncio.wait((feeding,))
        if feeding is not None and running.returncode == 0:
            feeding.result()
        return Finished(running.returncode, _content(output), _content(problem))


@contextmanager
def _memory_file() -> Generator[int]:
    fd = os.memfd_create("output")
    try:
        yield fd
    finally:
        os.close(fd)


def _write(feed: Callable[[BinaryIO], None], fd: int) -> None:
    try:
        with open(fd, "wb") as file:
            feed(file)
    except BrokenPipeError:
        return  # the program says why it stopped reading


async def _ended(pid: int) -> None:
    """Returns when the process, a child of this one that nobody has waited for, has ended."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    fd = os.pidfd_open(pid)
    try:
        loop.add_reader(fd, lambda: ended.done() or ended.set_result(None))
        await ended
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
