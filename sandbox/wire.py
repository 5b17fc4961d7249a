"""Messages between the owner, its helper and the sandboxes: JSON dicts with descriptors attached.

One message is one packet of a SOCK_SEQPACKET socket, so no framing is needed; a body too big for
a packet travels in a sealed memfd. Used on both sides, therefore light on imports.
"""

import array
import errno
import json
import os
import socket
import time
from typing import Any, cast

Message = dict[str, Any]

_INLINE_BYTES = 60_000
_MAX_FDS = 16
_MAX_BODY_BYTES = 256 << 20
_IN_FLIGHT_WAIT_S = 0.05
_IN_FLIGHT_TRIES = 60


class BadMessageError(Exception):
    """The peer sent what this module does not write."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def memory_file(data: bytes) -> int:
    """A descriptor of a memory file holding `data`, positioned at its start."""
    fd = os.memfd_create("data")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def send(sock: socket.socket, message: Message, fds: tuple[int, ...] = (), *, patient: bool = True) -> None:
    """Send one message. Raises BlockingIOError when a non-blocking socket is full, and OSError (ETOOMANYREFS)
    when too many descriptors are in flight, at once or, if `patient`, after some seconds."""
    body = json.dumps(message).encode()
    if len(body) <= _INLINE_BYTES:
        _sendmsg(sock, b"J" + body, fds, patient)
        return
    fd = memory_file(body)
    try:
        _sendmsg(sock, b"F", (fd, *fds), patient)
    finally:
        os.close(fd)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """Receive one message; None at end of file. The descriptors belong to the caller.

    Raises BadMessageError: a peer inside a sandbox may be no longer ours."""
    body, fds = _recvmsg(sock)
    if not body:
        return None
    try:
        message = _decode(body, fds)
    except (ValueError, IndexError, RecursionError, OSError) as error:
        for fd in fds:
            os.close(fd)
        raise BadMessageError(str(error)) from error
    return message, fds


def _decode(body: bytes, fds: list[int]) -> Message:
    if body[:1] == b"F":
        fd = fds.pop(0)
        try:
            size = min(os.fstat(fd).st_size, _MAX_BODY_BYTES)
            body = b"F" + os.pread(fd, size, 0)
        finally:
            os.close(fd)
    message: object = json.loads(body[1:])
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return cast(Message, message)


def _sendmsg(sock: socket.socket, body: bytes, fds: tuple[int, ...], patient: bool) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    for tries_left in range(_IN_FLIGHT_TRIES, -1, -1):
        try:
            sock.sendmsg([body], ancillary)
            return
        except OSError as error:
            # So many descriptors of our user are on their way that no more may be sent, unix(7): for an
            # ordinary user that may be a neighbour's doing, and it passes. Only a blocking socket may wait.
            if error.errno != errno.ETOOMANYREFS:
                raise
            if not sock.getblocking():
                raise BlockingIOError(errno.EAGAIN, "too many descriptors in flight") from error
            if not patient or not tries_left:
                raise
            time.sleep(_IN_FLIGHT_WAIT_S)


def _recvmsg(sock: socket.socket) -> tuple[bytes, list[int]]:
    size = _INLINE_BYTES + 1024
    space = socket.CMSG_LEN(_MAX_FDS * 4)
    body, ancillary, flags, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        # The kernel closes what this process has no room for, and says only this, unix(7).
        for fd in fds:
            os.close(fd)
        raise BadMessageError("a message lost its file descriptors: this process may open no more")
    return body, list(fds)
