"""Namespaces, identity maps and privileges of a sandbox's first process.

Knows user_namespaces(7), capabilities(7) and the loopback device; not mounts.
"""

import fcntl
import os
import resource
import socket
import struct

from sandbox import syscalls

_QUEUED_SIGNALS = 4096
SHIFT_RANGE = 65_536
SHIFT_BASE = 0x1000 * SHIFT_RANGE
"""As root, ids 0..65535 inside are others from here on outside: root inside is nobody outside."""
_SHIFTS = 0xE000

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def flags(*, own_network: bool) -> int:
    """Clone flags of a sandbox. Its cgroup namespace comes later: the root of one is the cgroup that its
    maker was in, cgroup_namespaces(7), and the new process has yet to enter its own."""
    base = (
        syscalls.CLONE_NEWUSER
        | syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWUTS
    )
    return base | syscalls.CLONE_NEWNET if own_network else base


def shift(number: int) -> int:
    """First outside id of one sandbox. The kernel counts much per user (inotify instances, descriptors in
    flight, queued signals), so two sandboxes with the same ids could starve each other."""
    return SHIFT_BASE + number % _SHIFTS * SHIFT_RANGE


def write_maps(pid: int | str, *, base: int | None, outside_uid: int = 0, outside_gid: int = 0) -> None:
    """Map ids of the user namespace of `pid`, seen from its parent namespace: shifted to `base`, or the one
    id 0 to the given ones."""
    if base is not None:
        line = f"0 {base} {SHIFT_RANGE}\n"
        syscalls.write_setting(f"/proc/{pid}/uid_map", line)
        syscalls.write_setting(f"/proc/{pid}/gid_map", line)
        return
    # Without privilege in the parent namespace setgroups must be denied before gid_map may be written.
    syscalls.write_setting(f"/proc/{pid}/setgroups", "deny")
    syscalls.write_setting(f"/proc/{pid}/uid_map", f"0 {outside_uid} 1\n")
    syscalls.write_setting(f"/proc/{pid}/gid_map", f"0 {outside_gid} 1\n")


def idmap_userns() -> int:
    """A descriptor of a user namespace with the shifted map, for idmapped mounts; no process stays in it."""
    wait_read, wait_write = os.pipe()
    pid = syscalls.clone(syscalls.CLONE_NEWUSER)
    if pid == 0:
        os.close(wait_write)
        os.read(wait_read, 1)
        os._exit(0)
    try:
        write_maps(pid, base=SHIFT_BASE)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(wait_read)
        os.close(wait_write)
        os.waitpid(pid, 0)


def become_root_inside(*, shifted: bool) -> None:
    """Take id 0 of the new user namespace."""
    if shifted:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # Changing ids clears the parent-death signal, prctl(2): arm it after, not before.
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)


def bring_up_loopback() -> None:
    """A new network namespace has `lo` down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        (current,) = struct.unpack_from("H", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", current | _IFF_UP))


def listen_on_loopback(port: int) -> int:
    """A listening socket for the owner. It stays in this namespace whoever holds it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", port))
        sock.listen(64)
        return sock.detach()


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def set_limits(
    *, open_files: int, pids: int | None, memory_bytes: int | None, file_bytes: int | None = None
) -> None:
    """Resource limits, inherited by all inside. `pids` and `memory_bytes` only where no cgroup does it,
    `file_bytes` only where no file system does."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    # 1, not 0: the only value at which the kernel starts no core-dump program of the host either, core(5).
    _lower(resource.RLIMIT_CORE, 1)
    # Queued signals are counted for the user, who outside the shifted mode is the host's, getrlimit(2).
    _lower(resource.RLIMIT_SIGPENDING, _QUEUED_SIGNALS)
    if pids is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (pids, pids))
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def narrow_privileges() -> None:
    """What exec may grant from now on: nothing. Takes no capability away yet, so mounts still can be made."""
    # The bounding set and securebits need CAP_SETPCAP, so they go before the capabilities, capabilities(7).
    for capability in range(64):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
        except OSError:
            break
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.prctl(syscalls.PR_SET_SECUREBITS, 0x03)  # NOROOT and its lock: exec as uid 0 grants nothing


def drop_privileges() -> None:
    """No capability now, none through set-user-id files. `narrow_privileges` comes before."""
    syscalls.drop_all_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    # Others inside have the same id: a dumpable init would give them its memory and descriptors, ptrace(2).
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)


def scrub_process_strings(title: bytes) -> None:
    """Replace command line and environment as /proc shows them by `title`; proc_pid_stat(5) fields 48-51.

    Forked processes inherit the result, at the same addresses."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    arg_start, arg_end, env_start, env_end = (int(field) for field in fields[45:49])
    for start, end in ((arg_start, arg_end), (env_start, env_end)):
        if start and end > start:
            syscalls.overwrite_memory(start, end - start)
    if arg_end - arg_start > len(title):
        syscalls.overwrite_memory(arg_start, len(title), title)
