"""File calls, the owner's side: what `sandbox.files_inside` reads, writes and streams for us.

The first process resolves every path; here only descriptors and bytes arrive. What a download makes
outside is made by us, name by name, in a directory that did not exist before. All of it blocks, so it runs in
threads.
"""

import asyncio
import errno
import os
import shutil
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandbox import diff, tree, wire
from sandbox.errors import SandboxLostError

Ask = Callable[[wire.Message, tuple[int, ...]], Awaitable[int | None]]
"""Sends a message to the first process; the descriptor in its reply, or OSError with its errno."""

_STALL_S = 120.0


async def read(ask: Ask, path: str, limit_bytes: int) -> bytes:
    """See `sandbox.types.Sandbox.read_file`."""
    try:
        fd = await _asked(ask, {"op": "read", "path": path}, (), path)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        return await _read_stream(ask, path, limit_bytes)
    if fd is None:
        raise SandboxLostError("no descriptor came back")
    return await asyncio.to_thread(diff.read_regular, fd, path, limit_bytes)


async def _read_stream(ask: Ask, path: str, limit_bytes: int) -> bytes:
    """`read` without a descriptor from inside."""
    chunks: list[bytes] = []

    def work(stream: socket.socket) -> None:
        left = limit_bytes + 1
        while left > 0 and (chunk := stream.recv(min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
        if left == 0:
            raise ValueError(f"{path} is larger than {limit_bytes} bytes")

    try:
        await _copy(ask, {"op": "stream", "path": path}, work, path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ValueError(f"{path} is not a regular file") from error
        raise
    return b"".join(chunks)


async def write(ask: Ask, path: str, data: bytes, mode: int) -> None:
    """See `sandbox.types.Sandbox.write_file`."""
    fd = wire.memory_file(data)
    try:
        await _asked(ask, {"op": "write", "path": path, "mode": mode}, (fd,), path)
    finally:
        os.close(fd)


async def upload(ask: Ask, source: Path, path: str) -> None:
    """See `sandbox.types.Sandbox.upload`. A link given as `source` is followed; those below are copied. What
    exists inside is replaced, and directories are filled up."""

    def work(stream: socket.socket) -> None:
        top = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            with tree.writer(stream) as out:
                tree.Packer(out).pack(top)
            stream.shutdown(socket.SHUT_WR)
        finally:
            os.close(top)

    await _copy(ask, {"op": "unpack", "path": path}, work, path)


async def download(ask: Ask, path: str, target: Path, limit_bytes: int) -> None:
    """See `sandbox.types.Sandbox.download`. `limit_bytes` counts what is really copied: holes are kept."""

    def work(stream: socket.socket) -> None:
        parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with tree.reader(stream) as source:
                unpacker = tree.Unpacker(source, parent, os.fsencode(target.name), limit_bytes=limit_bytes)
                try:
                    unpacker.unpack()
                except BaseException:
                    if unpacker.made_top:
                        _remove(target)
                    raise
        finally:
            os.close(parent)

    await _copy(ask, {"op": "pack", "path": path}, work, path)


async def _asked(ask: Ask, message: wire.Message, fds: tuple[int, ...], path: str) -> int | None:
    try:
        return await ask(message, fds)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None


async def _copy(ask: Ask, message: wire.Message, work: Callable[[socket.socket], None], path: str) -> None:
    """Run our end of a stream in a thread while the first process runs the other."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_STALL_S)
        reply = asyncio.ensure_future(_asked(ask, message, (theirs.fileno(),), path))
        # Whoever fails first ends the other's wait.
        reply.add_done_callback(lambda done: (done.cancelled() or done.exception()) and _shut(ours))
        thread = asyncio.ensure_future(asyncio.to_thread(_run, work, ours))
        both = asyncio.gather(thread, reply, return_exceptions=True)
        try:
            here, there = await asyncio.shield(both)
        except asyncio.CancelledError:
            _shut(ours)
            await asyncio.wait({thread})
            reply.cancel()
            raise
    # A broken stream is only the consequence of what the other side says.
    broken = isinstance(here, ConnectionError | EOFError)
    if isinstance(here, BaseException) and not broken:
        raise here
    if isinstance(there, BaseException):
        raise there
    if isinstance(here, BaseException):
        raise SandboxLostError(f"copying {path}: the stream broke") from here


def _run(work: Callable[[socket.socket], None], stream: socket.socket) -> None:
    try:
        work(stream)
    except BaseException:
        _shut(stream)
        raise


def _shut(stream: socket.socket) -> None:
    try:
        stream.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is over already


def _remove(target: Path) -> None:
    """Remove what a failed download left; directories may have been made without rights for us."""
    if stat.S_ISDIR(target.lstat().st_mode):
        shutil.rmtree(target, onexc=_make_writable)
    else:
        target.unlink()


def _make_writable(function: Callable[[str], object], path: str, _error: BaseException) -> None:
    parent = os.path.dirname(path)
    os.chmod(parent, 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        shutil.rmtree(path)
    else:
        function(path)
