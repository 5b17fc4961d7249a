"""Starting peers and waiting for their first output, on the event loop, with little around it.

`Command` is one run of a program whose first line must be `ok`; `ForkServer` asks a process to fork. Both
raise `WrongResultError` when something else comes back: a wrong result is never timed.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox import wire

EXPECTED = b"ok\n"
_FIRST_OUTPUT_S = 300.0
_END_S = 120.0
_SERVER = Path(__file__).with_name("fork_server.py")
_REPOSITORY = _SERVER.parent.parent


class WrongResultError(Exception):
    """A system did not run the command, or something else came out."""


async def readable(fd: int, timeout_s: float) -> None:
    """Until `fd` (a pipe, a pidfd) can be read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    finally:
        loop.remove_reader(fd)


async def first_line(fd: int) -> bytes:
    """What a pipe gives up to the first newline or its end."""
    data = b""
    while not data.endswith(b"\n"):
        await readable(fd, _FIRST_OUTPUT_S)
        chunk = os.read(fd, 4096)
        if not chunk:
            break
        data += chunk
    return data


class Command:
    """One run of a program that prints `ok` and ends."""

    def __init__(self, process: subprocess.Popen[bytes], errors: int) -> None:
        self._process = process
        self._errors = errors

    @classmethod
    async def start(cls, argv: Sequence[str], *, pass_fds: tuple[int, ...] = ()) -> "Command":
        """Start it and wait for its line."""
        errors = os.memfd_create("stderr")
        process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own adds a watcher per child to what is timed
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=pass_fds,
            bufsize=0,
        )
        command = cls(process, errors)
        try:
            assert process.stdout
            line = await first_line(process.stdout.fileno())
            if line != EXPECTED:
                raise WrongResultError(f"{argv[0]}: {line!r} {command.said()}")
        except BaseException:
            await command._end(kill=True)
            raise
        return command

    def said(self) -> str:
        """The end of its standard error."""
        return os.pread(self._errors, 1 << 20, 0)[-2000:].decode("utf-8", "replace").strip()

    async def finish(self) -> None:
        """Until it has ended by itself, with everything it removes."""
        await self._end(kill=False)

    async def _end(self, *, kill: bool) -> None:
        if kill:
            self._process.kill()
        try:
            if self._process.poll() is None:
                pidfd = os.pidfd_open(self._process.pid)
                try:
                    await readable(pidfd, _END_S)
                finally:
                    os.close(pidfd)
            status = self._process.wait()
            if status and not kill:
                raise WrongResultError(f"{self._process.args!r} ended with {status}: {self.said()}")
        finally:
            if self._process.stdout:
                self._process.stdout.close()
            os.close(self._errors)


class ForkServer:
    """Owner's side of `fork_server.py`."""

    def __init__(self, flags: int) -> None:
        self._flags = flags
        self._ids = itertools.count(1)
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None

    async def __aenter__(self) -> "ForkServer":
        ours, theirs = wire.pair()
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with theirs:
            argv = [sys.executable, "-I", "-S", str(_SERVER), str(theirs.fileno()), str(self._flags)]
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [*argv, str(_REPOSITORY)], pass_fds=(theirs.fileno(),), cwd="/", env=environment
            )
        self._sock = ours
        await readable(ours.fileno(), _FIRST_OUTPUT_S)
        if wire.receive(ours) is None:
            raise WrongResultError("the fork server did not start")
        asyncio.get_running_loop().add_reader(ours, self._on_message)
        return self

    def _on_message(self) -> None:
        assert self._sock
        received = wire.receive(self._sock)
        if received is None:
            asyncio.get_running_loop().remove_reader(self._sock)
            for future in self._exits.values():
                future.set_exception(WrongResultError("the fork server ended"))
                future.exception()  # not every waiter is still there
            self._exits.clear()
            return
        self._exits.pop(received[0]["exit"]).set_result(received[0]["status"])

    async def start(self) -> "Forked":
        """One child, until its line is here."""
        assert self._sock
        number = next(self._ids)
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exits[number] = exited
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            wire.send(self._sock, {"id": number}, (write_end,))
            os.close(write_end)
            write_end = -1
            line = await first_line(read_end)
        finally:
            os.close(read_end)
            if write_end >= 0:
                os.close(write_end)
        if line != EXPECTED:
            raise WrongResultError(f"forked bash: {line!r}")
        return Forked(exited)

    async def __aexit__(self, *_exc: object) -> None:
        if self._sock:
            with contextlib.suppress(ValueError, OSError):
                asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
        if self._process:
            self._process.wait(timeout=_END_S)


class Forked:
    """A child of the fork server that has printed."""

    def __init__(self, exited: asyncio.Future[int]) -> None:
        self._exited = exited

    async def finish(self) -> None:
        """Until it is reaped."""
        if status := await self._exited:
            raise WrongResultError(f"forked bash ended with {status}")
