"""The process that sandboxes are forked from: small, and idle but for the forks.

Pages that parent or child writes to after a fork are no longer shared. The helper writes to many of its own
all the time, and every sandbox forked from it would soon own the old copies; so the helper forks this one
process early and asks it for children. They are made with CLONE_PARENT, clone(2): the helper is their parent,
reaps them, and its end is theirs, while this process keeps nothing of them.
"""

import errno
import os
import signal
import socket
from typing import NoReturn

from sandbox import start, syscalls, wire
from sandbox.cgroup import Doors

CLONE_FAILED = "clone"


class Template:
    """The helper's side. A template that died is replaced when the next child is asked for."""

    def __init__(self, directory: str, program: bytes) -> None:
        self._directory = directory
        self._program = program
        self._sock: socket.socket | None = None

    def clone(self, request: wire.Message, fds: tuple[int, ...]) -> int:
        """Process id of a new child that runs `start.run`. Raises OSError with the errno of clone(2).

        `request`: see `_child`; `fds`: its end of the park, its end of the release pipe, `tasks` files of its
        cgroups, and last a v2 cgroup directory where `request["into"]` says so."""
        for _ in range(2):
            if self._sock is None:
                self._sock = self._fork()
            try:
                wire.send(self._sock, request, fds)
                reply = wire.receive(self._sock)
            except OSError:
                reply = None
            if reply is not None:
                number: int = reply[0]["errno"]
                if number:
                    raise OSError(number, f"{CLONE_FAILED}: {os.strerror(number)}")
                return int(reply[0]["pid"])
            self._sock.close()
            self._sock = None
        raise OSError(errno.ESRCH, "the process that sandboxes are forked from died twice")

    def _fork(self) -> socket.socket:
        ours, theirs = wire.pair()
        # Its children are born in this directory, which is the staging area.
        os.chdir(self._directory)
        if os.fork() == 0:
            _serve(theirs, self._program)
        theirs.close()
        return ours


def _serve(sock: socket.socket, program: bytes) -> NoReturn:
    """Body of the template process: until end of file, or until the helper dies."""
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        start.keep_only((sock.fileno(),))
        while (received := wire.receive(sock)) is not None:
            request, fds = received
            wire.send(sock, _clone(request, fds, program))
            for fd in fds:
                os.close(fd)
    finally:
        os._exit(0)


def _clone(request: wire.Message, fds: list[int], program: bytes) -> wire.Message:
    base: int | None = request["base"]
    into = fds.pop() if request["into"] else -1
    try:
        # Whoever makes a user namespace is charged for what is used in it, user_namespaces(7), and that must
        # be neither root nor a neighbour: it is the user that the sandbox will be outside.
        if base is not None:
            os.seteuid(base)
        flags: int = request["flags"] | syscalls.CLONE_PARENT
        pid = syscalls.clone(flags) if into < 0 else syscalls.clone_into(flags, into)
        if pid == 0:
            _child(request, fds, program)
        return {"pid": pid, "errno": 0}
    except OSError as error:
        return {"pid": 0, "errno": error.errno or errno.EIO}
    finally:
        if into >= 0:
            os.close(into)
        if base is not None:
            os.seteuid(0)


def _child(request: wire.Message, fds: list[int], program: bytes) -> NoReturn:
    park, release, *tasks = fds
    start.run(
        start.Embryo(
            park=socket.socket(fileno=park),
            doors=Doors(tuple(tasks), -1),
            release=release,
            shifted=request["base"] is not None,
            host_root=request["host_root"],
            own_network=request["own_network"],
            filter=program,
        )
    )
