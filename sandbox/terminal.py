"""Pseudo-terminals inside a sandbox: made by its first process, driven by the owner through the master end.

The slave lives in the sandbox's own devpts and the user's terminal is never given inside, so nothing typed
or queued on one can reach the other except through the owner's copying. Light: `sandbox.init` imports it.
"""

import fcntl
import os
import struct
import termios

from sandbox import syscalls

_TIOCGPTN, _TIOCSPTLCK = 0x80045430, 0x40045431


def open_master(root: int) -> int:
    """A new, unlocked terminal of the devpts below `root`; its master end."""
    resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
    fd = syscalls.openat2(root, "/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY, mode=0, resolve=resolve)
    try:
        fcntl.ioctl(fd, _TIOCSPTLCK, struct.pack("i", 0))
    except OSError:
        os.close(fd)
        raise
    return fd


def slave_path(master: int) -> str:
    """Where the other end is, inside."""
    (number,) = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))
    return f"/dev/pts/{number}"


def spawn_actions(path: str) -> list[tuple[int, int, str, int, int] | tuple[int, int, int]]:
    """For posix_spawn(3) with setsid: a session leader that opens a terminal gets it as its controlling one,
    open(2), so only the first descriptor is opened."""
    return [
        (os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]


def set_size(master: int, rows: int, columns: int) -> None:
    """Window size; programs inside get SIGWINCH."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
