"""The second system-call filter of the Landlock mode: for what namespaces would have kept apart.

Stacked on `sandbox.seccomp`'s. Without namespaces a process shares sockets, System V and POSIX IPC, and
the schedule and limits of other processes with everybody of its user, and Landlock knows of none of these:
so no sockets but pairs, no IPC by name, and calls that take a process take only the caller. seccomp(2).
"""

import errno
import socket
import struct

from sandbox import seccomp

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARGUMENT_AT = 0, 16

# fmt: off
_DENIED: dict[str, tuple[int, ...]] = {
    # socket ptrace process_vm_readv process_vm_writev kcmp shmget shmat shmctl semget semop semctl semtimedop
    # msgget msgsnd msgrcv msgctl mq_open inotify_init inotify_init1 migrate_pages move_pages
    # pidfd_getfd process_madvise
    "x86_64": (
        41, 101, 310, 311, 312, 29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71, 240, 253, 294, 256, 279, 438,
        440,
    ),
    "aarch64": (
        198, 117, 270, 271, 272, 194, 196, 195, 190, 193, 191, 192, 186, 189, 188, 187, 180, 26, 238, 239,
        438, 440,
    ),
}
# Only about the caller: argument 0 must be 0 for prlimit64 sched_setparam sched_setscheduler
# sched_setaffinity sched_setattr, argument 1 for setpriority ioprio_set.
_OWN_FIRST: dict[str, tuple[int, ...]] = {
    "x86_64": (302, 142, 144, 203, 314), "aarch64": (261, 118, 119, 122, 274),
}
_OWN_SECOND: dict[str, tuple[int, ...]] = {"x86_64": (141, 251), "aarch64": (140, 30)}
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_IOCTL = {"x86_64": 16, "aarch64": 29}
# Modes, owners, times and attributes, where the files of others belong to the same user:
# chmod fchmod fchmodat chown fchown lchown fchownat utime utimes futimesat utimensat
# setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr; fchmodat2 setxattrat removexattrat
# file_setattr
_CHANGING_MODES: dict[str, tuple[int, ...]] = {
    "x86_64": (90, 91, 268, 452),
    "aarch64": (52, 53, 452),
}
_CHANGING: dict[str, tuple[int, ...]] = {
    "x86_64": (92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199, 463, 466, 469),
    "aarch64": (54, 55, 88, 5, 6, 7, 14, 15, 16, 463, 466, 469),
}
# fmt: on
_SET_FLAGS = (0x40086602, 0x401C5820)
"""ioctl FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR."""
_PAIRS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
"""Not datagrams: a datagram socket of a pair may still send to any name, unix(7)."""
_TYPE_MASK = 0xF
_AND = 0x54

_Code = list[tuple[int, int, int, int]]


def build(machine: str, *, private_id: bool) -> bytes:
    """The program. Without a `private_id` it also keeps modes, owners and times of files as they are."""
    code: _Code = [(_LOAD, 0, 0, _NUMBER_AT)]
    for number in _DENIED[machine]:
        _when(code, number, [_deny(errno.EPERM)])
    for numbers, argument in ((_OWN_FIRST[machine], 0), (_OWN_SECOND[machine], 1)):
        for number in numbers:
            _when(code, number, [*_argument(argument), (_EQUAL, 1, 0, 0), _deny(errno.EPERM), _allow()])
    _when(code, _SOCKETPAIR[machine], _pair_check())
    if not private_id:
        for number in _CHANGING_MODES[machine] + _CHANGING[machine]:
            _when(code, number, [_deny(errno.EPERM)])
        check = [*_argument(1)]
        for request in _SET_FLAGS:
            check += [(_EQUAL, 0, 1, request), _deny(errno.EPERM)]
        _when(code, _IOCTL[machine], [*check, _allow()])
    code.append(_allow())
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def install(machine: str, *, private_id: bool) -> None:
    """Filter this process and its descendants; `sandbox.seccomp`'s filter checks the architecture."""
    seccomp.install(build(machine, private_id=private_id))


def _pair_check() -> _Code:
    check = [*_argument(0), (_EQUAL, 1, 0, int(socket.AF_UNIX)), _deny(errno.EAFNOSUPPORT)]
    check += [*_argument(1), (_AND, 0, 0, _TYPE_MASK)]
    for kind in _PAIRS:
        check += [(_EQUAL, 0, 1, int(kind)), _allow()]
    return [*check, _deny(errno.EPERM)]


def _argument(index: int) -> _Code:
    """Load the low half: these arguments are ints, of which the kernel reads no more."""
    return [(_LOAD, 0, 0, _ARGUMENT_AT + 8 * index)]


def _when(code: _Code, number: int, body: _Code) -> None:
    code.append((_EQUAL, 0, len(body), number))
    code.extend(body)


def _deny(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | number)


def _allow() -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ALLOW)
