"""The system-call filter, as classic BPF assembled in Python.

A second wall behind the dropped capabilities: it takes away what an unprivileged process could still
use to widen the kernel's attack surface (new user namespaces, io_uring, keyrings, BPF, rare socket
protocols, ...), to take what the whole machine shares (asynchronous I/O contexts, message queues, leases on
host files), or to lame the sandbox's first process (its resource limits and scheduling). It denies a list
rather than allowing one, since test suites use anything; debuggers work. seccomp(2), bpf(4).
"""

import ctypes
import errno
import resource
import socket
import struct

from sandbox import syscalls

_DENIED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 443, 447, 457, 458, 467, 470)
"""io_uring_*, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr, quotactl_fd,
memfd_secret, statmount, listmount, open_tree_attr, listns."""

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
_ABSENT = {
    # io_setup and mq_open: their totals are the machine's (fs.aio-max-nr) or the user's, so one sandbox could
    # use them up for everybody, io_setup(2), mq_overview(7). modify_ldt: surface that only emulators need.
    "x86_64": (206, 240, 154),
    "aarch64": (0, 180),
}
# fmt: on
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_UNSHARE = {"x86_64": 272, "aarch64": 97}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_FCNTL = {"x86_64": 72, "aarch64": 25}
_SOCKET = {"x86_64": (41, 53), "aarch64": (198, 199)}
_SETRLIMIT = {"x86_64": 160, "aarch64": 164}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_SCHEDULING = {"x86_64": (142, 144, 203, 314), "aarch64": (118, 119, 122, 274)}
"""sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr: the pid comes first."""
_PRIORITY = {"x86_64": ((141, 0), (251, 1)), "aarch64": ((140, 0), (30, 1))}
"""setpriority and ioprio_set, each with its `which` that means a process."""
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
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x541D, 0x5423)
"""TIOCSTI and TIOCLINUX type into a terminal, TIOCCONS takes the console, TIOCSETD loads line disciplines."""
_F_SETLEASE = 1024
_PROTOCOLS = {
    # IPPROTO_IP, ICMP, TCP, UDP, ICMPV6, MPTCP. Others make the kernel load modules on demand.
    int(socket.AF_INET): (0, 1, 6, 17, 58, 262),
    int(socket.AF_INET6): (0, 1, 6, 17, 58, 262),
    # NETLINK_ROUTE, which getaddrinfo(3) uses, and NETLINK_KOBJECT_UEVENT.
    int(socket.AF_NETLINK): (0, 15),
}
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Others escape the network namespace (AF_VSOCK talks to the hypervisor) or only add kernel surface."""

_LD_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NR, _OFFSET_ARCH = 0, 4
_ARGUMENTS = (16, 24, 32)
"""Offsets of the low halves of the first three arguments; the kernel takes ints from there too."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

_Code = list[tuple[int, int, int, int]]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _deny(number: int) -> tuple[int, int, int, int]:
    """Return this error; 0 pretends success."""
    return (_RET, 0, 0, _ERRNO | number)


_PASS = (_RET, 0, 0, _ALLOW)


def _load(argument: int) -> tuple[int, int, int, int]:
    return (_LD_ABS, 0, 0, _ARGUMENTS[argument])


def _when(op: int, value: int, body: _Code) -> _Code:
    """`body` runs when the comparison with the loaded value holds, else is skipped."""
    return [(op, 0, len(body), value), *body]


def _one_of(argument: int, refused: tuple[int, ...], number: int) -> _Code:
    code = [_load(argument)]
    for value in refused:
        code += _when(_JEQ, value, [_deny(number)])
    return [*code, _PASS]


def _namespaces(machine: str) -> _Code:
    # clone3 hides its flags behind a pointer that a filter cannot read: ENOSYS makes libc fall back to clone.
    code = _when(_JEQ, _CLONE3, [_deny(errno.ENOSYS)])
    # clone's low byte is the exit signal, not CLONE_NEWTIME.
    for call, flags in ((_CLONE, _NAMESPACE_FLAGS & ~0xFF), (_UNSHARE, _NAMESPACE_FLAGS)):
        body = [_load(0), *_when(_JSET, flags, [_deny(errno.EPERM)]), _PASS]
        code += _when(_JEQ, call[machine], body)
    return code


def _sockets(machine: str) -> _Code:
    code: _Code = [_load(0)]
    for family, protocols in _PROTOCOLS.items():
        allowed: _Code = [_load(2)]
        for protocol in protocols:
            allowed += _when(_JEQ, protocol, [_PASS])
        code += _when(_JEQ, family, [*allowed, _deny(errno.EPROTONOSUPPORT)])
    for family in _FAMILIES:
        code += _when(_JEQ, int(family), [_PASS])
    code.append(_deny(errno.EAFNOSUPPORT))
    return [line for number in _SOCKET[machine] for line in _when(_JEQ, number, code)]


def _first_process(machine: str) -> _Code:
    """Its limits and scheduling are not for the programs inside, which have its user id."""
    set_something: _Code = [
        _load(0), *_when(_JEQ, 1, [_deny(errno.EPERM)]),
        _load(1), *_when(_JEQ, resource.RLIMIT_CORE, [_deny(0)]), _PASS,
    ]  # fmt: skip
    low, high = _ARGUMENTS[2], _ARGUMENTS[2] + 4
    # No new limit (a null pointer): only asks.
    asks: _Code = [(_LD_ABS, 0, 0, low), (_JEQ, 0, 3, 0), (_LD_ABS, 0, 0, high), *_when(_JEQ, 0, [_PASS])]
    code = _when(_JEQ, _PRLIMIT[machine], [*asks, *set_something])
    # Core dumps stay off. A limit of 0 would switch a host's core-dump *program* on again, core(5).
    core: _Code = [_load(0), *_when(_JEQ, resource.RLIMIT_CORE, [_deny(0)]), _PASS]
    code += _when(_JEQ, _SETRLIMIT[machine], core)
    for number in _SCHEDULING[machine]:
        code += _when(_JEQ, number, _one_of(0, (1,), errno.EPERM))
    for number, which in _PRIORITY[machine]:
        body = [_load(0), *_when(_JEQ, which, _one_of(1, (1,), errno.EPERM)), _PASS]
        code += _when(_JEQ, number, body)
    return code


def build(machine: str) -> bytes:
    """The filter for one architecture."""
    code: _Code = [(_LD_ABS, 0, 0, _OFFSET_ARCH), (_JEQ, 1, 0, _AUDIT_ARCH[machine]), _deny(errno.ENOSYS)]
    code.append((_LD_ABS, 0, 0, _OFFSET_NR))
    if machine == "x86_64":
        code += _when(_JGE, _X32_BIT, [_deny(errno.ENOSYS)])
    code += _namespaces(machine)
    code += _when(_JEQ, _IOCTL[machine], _one_of(1, _TERMINAL_REQUESTS, errno.EPERM))
    code += _when(_JEQ, _FCNTL[machine], _one_of(1, (_F_SETLEASE,), errno.EPERM))
    code += _sockets(machine)
    code += _first_process(machine)
    for number in _DENIED[machine] + _DENIED_EVERYWHERE:
        code += _when(_JEQ, number, [_deny(errno.EPERM if number < 425 else errno.ENOSYS)])
    for number in _ABSENT[machine]:
        code += _when(_JEQ, number, [_deny(errno.ENOSYS)])
    code.append(_PASS)
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Filter this process and its descendants for good. no_new_privs must be set first: without it an
    unprivileged process may not install filters, seccomp(2)."""
    header = _Program(len(program) // 8, program)
    syscalls.prctl_pointer(syscalls.PR_SET_SECCOMP, 2, ctypes.byref(header))
