"""Thin wrappers over the system calls that Python's standard library lacks.

Everything goes through the C library that is already loaded: no compiler, no package. Each wrapper
raises `OSError` with the call's name. Policy (which mounts, which flags) is not here.
"""

import ctypes
import os
import signal

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_CLONE_INTO_CGROUP = 0x200000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_REC, MS_SLAVE = 0x20, 0x4000, 0x80000
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_IDMAP = 0x100000

AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 4
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

# Numbers above 423 are the same on every architecture; these two are the ones that differ and that we call.
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_CLONE3 = 435
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)
# Keeps the interpreter lock over the call: a fork must not return into a lock another thread holds.
_libc_locked = ctypes.PyDLL(None, use_errno=True)


# Types given once: forty calls that each wrap their arguments took half a millisecond of a start.
_prctl = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, use_errno=True
)(("prctl", _libc))


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def machine() -> str:
    """Architecture as the kernel names it; raises OSError for one whose numbers are not known here."""
    name = os.uname().machine
    if name not in _SYS_CLONE:
        raise OSError(f"architecture {name} is not supported (known: {', '.join(_SYS_CLONE)})")
    return name


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def clone(flags: int) -> int:
    """fork(2) into new namespaces: 0 in the child, the child's pid in the parent.

    `os.fork` followed by `unshare` would cost one more process for the pid namespace."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _libc_locked.syscall(
        ctypes.c_long(_SYS_CLONE[machine()]), ctypes.c_ulong(flags | signal.SIGCHLD), None, None, None, None
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _check(pid, "clone")


def clone_into(flags: int, cgroup: int) -> int:
    """`clone` whose child starts in the v2 cgroup that the descriptor names, clone(2) CLONE_INTO_CGROUP.

    Raises OSError (ENOSYS) also where a filter around us denies clone3."""
    # With CLONE_PARENT the exit signal is the caller's own, and clone3 wants none named.
    number = 0 if flags & CLONE_PARENT else signal.SIGCHLD
    arguments = (ctypes.c_uint64 * 11)(flags | _CLONE_INTO_CGROUP, 0, 0, 0, number)
    arguments[10] = cgroup
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _libc_locked.syscall(
        ctypes.c_long(_SYS_CLONE3), ctypes.byref(arguments), ctypes.c_size_t(ctypes.sizeof(arguments))
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _check(pid, "clone3")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace of a /proc/PID/ns descriptor, setns(2)."""
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        os.fsencode(data),
    )
    _check(result, f"mount {kind or 'change'} on {target}")


def umount_detach(target: str) -> None:
    """Detach a mount with all below it, umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    number = _SYS_PIVOT_ROOT[machine()]
    _check(_libc.syscall(ctypes.c_long(number), os.fsencode(new_root), os.fsencode(put_old)), "pivot_root")


def open_tree(path: str) -> int:
    """A detached copy of the mounts at `path` and below, as a descriptor, open_tree(2)."""
    result = _libc.syscall(
        ctypes.c_long(_SYS_OPEN_TREE),
        ctypes.c_int(-100),
        os.fsencode(path),
        ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | AT_RECURSIVE),
    )
    return _check(result, f"open_tree {path}")


def move_mount(tree: int, target: str) -> None:
    """Attach a detached mount, move_mount(2)."""
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOVE_MOUNT),
        ctypes.c_int(tree),
        b"",
        ctypes.c_int(-100),
        os.fsencode(target),
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
    )
    _check(result, f"move_mount to {target}")


def mount_setattr(tree: int, attributes: int, userns: int = 0) -> None:
    """Set attributes on a detached tree, recursively, mount_setattr(2)."""
    attr = _MountAttr(attributes, 0, 0, userns)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(tree),
        b"",
        ctypes.c_uint(AT_EMPTY_PATH | AT_RECURSIVE),
        ctypes.byref(attr),
        ctypes.c_size_t(ctypes.sizeof(attr)),
    )
    _check(result, "mount_setattr")


def openat2(directory: int, path: str, flags: int, *, mode: int = 0, resolve: int = 0) -> int:
    """Open with control over how the path resolves, openat2(2)."""
    if "\0" in path:
        raise ValueError("a path holds no NUL")
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    result = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(directory),
        os.fsencode(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def prctl(option: int, arg2: int = 0, arg3: int = 0) -> int:
    """prctl(2) with integer arguments."""
    result = _prctl(option, arg2, arg3, 0, 0)
    return result if result >= 0 else _check(result, f"prctl {option}")


def prctl_pointer(option: int, arg2: int, pointer: object) -> None:
    """prctl(2) whose third argument is a pointer made with `ctypes.byref`."""
    result = _libc.prctl(
        ctypes.c_int(option), ctypes.c_ulong(arg2), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)
    )
    _check(result, f"prctl {option}")


def set_name(name: bytes) -> None:
    """Name this process as /proc/PID/comm shows it, 15 bytes at most, prctl(2)."""
    buffer = ctypes.create_string_buffer(name)
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


def drop_all_capabilities() -> None:
    """Empty the permitted, effective and inheritable sets of this thread, capset(2)."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    empty = (ctypes.c_uint32 * 6)()
    number = _SYS_CAPSET[machine()]
    _check(_libc.syscall(ctypes.c_long(number), ctypes.byref(header), ctypes.byref(empty)), "capset")


def overwrite_memory(address: int, length: int, data: bytes = b"") -> None:
    """Zero a range of this process's own memory (its argument and environment strings), then put `data`."""
    ctypes.memset(address, 0, length)
    ctypes.memmove(address, data, len(data))


def write_setting(path: str, text: str) -> None:
    """Write a file of /proc or a cgroup in one write(2), which is how the kernel takes a setting."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
