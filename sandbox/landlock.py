"""Landlock: a process takes rights to files, TCP ports, signals and abstract sockets away from itself.

What a kernel knows is asked (`abi`), and only that is restricted; what it lacks is for the caller to weigh.
Landlock does not cover stat, chdir, chmod, chown, utime, extended attributes and locks, nor connecting to a
named Unix socket: whoever builds a sandbox on it needs other means for those. landlock(7).
"""

import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sandbox import syscalls

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_FIRST_ABI = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_NETWORK = 0b11
"""Bind and connect TCP."""
_SCOPES = 0b11
"""Abstract Unix sockets and signals."""
NETWORK_ABI, SCOPE_ABI = 4, 6

_libc = ctypes.CDLL(None, use_errno=True)

Right = Literal["read", "execute", "device", "write"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is allowed at a path and below it."""

    path: str
    """A directory or a file; one that does not exist is left out."""
    right: Right
    """`read`: files and listings. `execute`: that and running programs. `device`: read and write a device.
    `write`: everything but making and controlling devices."""


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("fd", ctypes.c_int32)]


def abi() -> int:
    """Version of Landlock that this kernel offers; 0 when it has none or it is switched off."""
    result: int = _libc.syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION_FLAG)
    )
    return max(0, result)


def _known(version: int) -> int:
    rights = _FIRST_ABI
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        rights |= right if version >= since else 0
    return rights


_READ = _READ_FILE | _READ_DIR
_RIGHTS: dict[Right, int] = {
    "read": _READ,
    "execute": _READ | _EXECUTE,
    "device": _READ_FILE | _WRITE_FILE | _TRUNCATE,
    "write": (_FIRST_ABI | _REFER | _TRUNCATE) & ~(_MAKE_CHAR | _MAKE_BLOCK),
}


def ruleset(rules: Sequence[Rule]) -> int:
    """A descriptor of the rules, for `enter`. Everything that this kernel knows and they do not allow is
    denied: other files, TCP, signals and abstract sockets outside. Raises OSError without Landlock."""
    version = abi()
    if version == 0:
        raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock, or it is not in its lsm= list")
    known = _known(version)
    attr = _RulesetAttr(
        known, _NETWORK if version >= NETWORK_ABI else 0, _SCOPES if version >= SCOPE_ABI else 0
    )
    fd = _call(_CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(ctypes.sizeof(attr)), ctypes.c_uint(0))
    try:
        for rule in rules:
            _add(fd, rule, known)
    except OSError:
        os.close(fd)
        raise
    return fd


def _add(ruleset_fd: int, rule: Rule, known: int) -> None:
    try:
        fd = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # nothing there, or nothing that this process could have reached
    try:
        access = _RIGHTS[rule.right] & known
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _FILE_RIGHTS
        _call(
            _ADD_RULE,
            ctypes.c_int(ruleset_fd),
            ctypes.c_int(_PATH_BENEATH),
            ctypes.byref(_PathBeneath(access, fd)),
            ctypes.c_uint(0),
        )
    finally:
        os.close(fd)


def enter(ruleset_fd: int) -> None:
    """Restrict this thread and what it will start, for good, on top of what restricts it already.

    Two processes that enter the same rules are still strangers to each other; their children are not."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset_fd), ctypes.c_uint(0))


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result
