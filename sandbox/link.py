"""The owner's end of one socket to a helper or a sandbox's init, on the event loop.

Turns packets into callbacks and packets out; nothing blocks. What messages mean is the caller's.
"""

import asyncio
import os
import socket
from collections.abc import Callable

from sandbox import wire
from sandbox.errors import SandboxLostError

_PER_WAKE = 32


class Link:
    """`on_message(message, fds)` for each packet (it owns the descriptors), `on_end()` once at the end."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[wire.Message, list[int]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self.closed = False
        self.problem = ""
        """Why the peer was given up, where it did not just end."""
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        for _ in range(_PER_WAKE):
            if self.closed:
                return
            try:
                received = wire.receive(self._sock)
            except BlockingIOError:
                return
            except ConnectionError:
                received = None
            except wire.BadMessageError as error:
                self.problem = str(error)
                received = None
            if received is None or not self._understood(*received):
                self.close()
                self._on_end()
                return

    def _understood(self, message: wire.Message, fds: list[int]) -> bool:
        """False for a message with parts of the wrong kind: a peer that was taken over is a lost one."""
        try:
            self._on_message(message, fds)
        except (KeyError, TypeError, ValueError, IndexError):
            return False
        return True

    async def send(self, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        """Send, waiting while the peer's queue is full. Raises SandboxLostError when it is gone."""
        while True:
            try:
                self.send_now(message, fds)
                return
            except BlockingIOError:
                await self._writable()
                # The peer's queue may be free and descriptors in flight be what is too many.
                await asyncio.sleep(0.001)

    def send_now(self, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        """Send or raise BlockingIOError."""
        if self.closed:
            raise SandboxLostError("the sandbox is closed")
        try:
            wire.send(self._sock, message, fds)
        except ConnectionError as error:
            raise SandboxLostError("the sandbox is gone") from error

    async def _writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        # A duplicate: waiting for writes must not disturb the reader registered for the same descriptor.
        fd = os.dup(self._sock.fileno())
        self._loop.add_writer(fd, lambda: ready.done() or ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_writer(fd)
            os.close(fd)

    def close(self) -> None:
        """Stop listening and close the socket. Idempotent."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._sock)
            self._sock.close()
