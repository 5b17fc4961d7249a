"""User ids for the Landlock mode: one that nothing else on the machine has, for each sandbox of root's.

With it, file modes protect everything outside, limits count this sandbox's processes alone, and one call
kills exactly what it started. An abstract Unix socket is the lock of an id: it goes with its process, kill
or crash. An ordinary user, or root who may not change ids, gets none. credentials(7), kill(2).
"""

import errno
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from sandbox import syscalls

_FIRST, _COUNT = 60_200, 2_000
"""Below systemd's dynamic users and the 65,536 ids that most containers have."""
_LOCK_NAME = "\0minisandbox-id-{}"


@dataclass(frozen=True, slots=True)
class Lock:
    """An id that is ours while this process lives."""

    uid: int
    """User and group id."""
    socket: socket.socket
    """What holds it; a forked child closes its copy."""


def take() -> Lock | None:
    """Reserve an id; None where there is none to have. Whatever a dead sandbox left under it is killed."""
    if os.geteuid() != 0 or not _as_id(_FIRST, lambda: True):
        return None
    start = os.getpid()
    for step in range(_COUNT):
        uid = _FIRST + (start + step) % _COUNT
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(_LOCK_NAME.format(uid))
        except OSError as error:
            lock.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        kill_everything_of(uid)
        return Lock(uid, lock)
    raise OSError(errno.EAGAIN, f"all {_COUNT} ids for sandboxes are taken")


def _as_id(uid: int, action: Callable[[], bool]) -> bool:
    """Do something as `uid` in a child process; whether it became that and the action says yes."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            # Never with an id that was not given up: that would be everybody.
            if os.getresuid() == (uid, uid, uid) and uid >= _FIRST and action():
                code = 0
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def kill_everything_of(uid: int) -> None:
    """Kill every process of one of our ids, at once: kill(2) with -1 leaves no time to fork."""

    def kill() -> bool:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return True  # there was none
        return True

    _as_id(uid, kill)


def can_reach(uid: int, path: str) -> bool:
    """Whether an id may enter and list a directory, or read a file."""

    def look() -> bool:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        return os.access(path, os.X_OK) or not os.path.isdir(path)

    return _as_id(uid, look)


def processes_of(uid: int) -> int:
    """Processes and threads that a user has, which its process limit counts; as far as /proc shows them."""
    total = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                total += len(os.listdir(f"/proc/{name}/task"))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def narrow_privileges() -> None:
    """What exec may grant from now on: nothing. Before the ids change, since saying so takes a capability;
    where there is none, no_new_privs and the empty sets hold all the same."""
    for option, argument in (
        *((syscalls.PR_CAPBSET_DROP, capability) for capability in range(64)),
        (syscalls.PR_SET_SECUREBITS, 0x03),
    ):
        try:
            syscalls.prctl(option, argument)
        except OSError:
            continue  # no such capability, or not allowed


def drop_privileges() -> None:
    """No capability now, and none through set-user-id files."""
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.drop_all_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
