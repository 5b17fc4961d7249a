"""The system-call filter, as classic BPF assembled in Python.

A second wall behind the dropped capabilities: it takes away what an unprivileged process could still
use to widen the kernel's attack surface (new user namespaces, io_uring, keyrings, BPF, ...). It denies a
list rather than allowing one, since test suites use anything; debuggers work. seccomp(2), bpf(4).
"""

import ctypes
import errno
import socket
import struct

from sandbox import syscalls

_DENIED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 443, 457, 458)
"""io_uring_*, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr, quotactl_fd,
statmount, listmount."""

# fmt: off
_DENIED = {
    # mount umount2 pivot_root swapon swapoff reboot init_module delete_module finit_module kexec_load
    # kexec_file_load acct settimeofday clock_settime clock_adjtime quotactl add_key request_key keyctl bpf
    # userfaultfd perf_event_open setns open_by_handle_at iopl ioperm vhangup syslog lookup_dcookie uselib
    # nfsservctl fanotify_init
    "x86_64": (
        165, 166, 155, 167, 168, 169, 175, 176, 313, 246, 320, 163, 164, 227, 305, 179, 248, 249, 250, 321,
        323, 298, 308, 304, 172, 173, 153, 103, 212, 134, 180, 300,
    ),
    "aarch64": (
        40, 39, 41, 224, 225, 142, 105, 106, 273, 104, 294, 89, 170, 112, 266, 60, 217, 218, 219, 280,
        282, 241, 268, 265, 58, 116, 18, 42, 262,
    ),
}
# fmt: on
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_UNSHARE = {"x86_64": 272, "aarch64": 97}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_SOCKET = {"x86_64": (41, 53), "aarch64": (198, 199)}
_CLONE3 = 435
_X32_BIT = 0x40000000

_NAMESPACE_FLAGS = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWCGROUP
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | 0x80  # CLONE_NEWTIME
)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Others escape the network namespace (AF_VSOCK talks to the hypervisor) or only add kernel surface."""

_LD_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARG0, _OFFSET_ARG1 = 0, 4, 16, 24
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def build(machine: str) -> bytes:
    """The filter for one architecture."""
    code: list[tuple[int, int, int, int]] = []

    def when(op: int, value: int, body: list[tuple[int, int, int, int]]) -> None:
        """`body` runs when the comparison holds, else is skipped."""
        code.append((op, 0, len(body), value))
        code.extend(body)

    def deny(number: int) -> tuple[int, int, int, int]:
        return (_RET, 0, 0, _ERRNO | number)

    allow = (_RET, 0, 0, _ALLOW)
    code.append((_LD_ABS, 0, 0, _OFFSET_ARCH))
    code.append((_JEQ, 1, 0, _AUDIT_ARCH[machine]))
    code.append(deny(errno.ENOSYS))
    code.append((_LD_ABS, 0, 0, _OFFSET_NR))
    if machine == "x86_64":
        when(_JGE, _X32_BIT, [deny(errno.ENOSYS)])
    # clone3 hides its flags behind a pointer that a filter cannot read: ENOSYS makes libc fall back to clone.
    when(_JEQ, _CLONE3, [deny(errno.ENOSYS)])
    flags_check = [
        (_LD_ABS, 0, 0, _OFFSET_ARG0),
        (_JSET, 0, 1, _NAMESPACE_FLAGS),
        deny(errno.EPERM),
        allow,
    ]
    # clone's low byte is the exit signal, not CLONE_NEWTIME.
    clone_check = [
        (_LD_ABS, 0, 0, _OFFSET_ARG0),
        (_JSET, 0, 1, _NAMESPACE_FLAGS & ~0xFF),
        deny(errno.EPERM),
        allow,
    ]
    when(_JEQ, _CLONE[machine], clone_check)
    when(_JEQ, _UNSHARE[machine], flags_check)
    ioctl_check = [
        (_LD_ABS, 0, 0, _OFFSET_ARG1),
        (_JEQ, 0, 1, _TIOCSTI),
        deny(errno.EPERM),
        (_JEQ, 0, 1, _TIOCLINUX),
        deny(errno.EPERM),
        allow,
    ]
    when(_JEQ, _IOCTL[machine], ioctl_check)
    families = list(_FAMILIES)
    family_check = [(_LD_ABS, 0, 0, _OFFSET_ARG0)]
    family_check += [(_JEQ, len(families) - index, 0, int(family)) for index, family in enumerate(families)]
    family_check += [deny(errno.EAFNOSUPPORT), allow]
    for number in _SOCKET[machine]:
        when(_JEQ, number, family_check)
    for number in _DENIED[machine] + _DENIED_EVERYWHERE:
        when(_JEQ, number, [deny(errno.EPERM if number < 425 else errno.ENOSYS)])
    code.append(allow)
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Filter this process and its descendants for good. no_new_privs must be set first: without it an
    unprivileged process may not install filters, seccomp(2)."""
    header = _Program(len(program) // 8, program)
    syscalls.prctl_pointer(syscalls.PR_SET_SECCOMP, 2, ctypes.byref(header))
