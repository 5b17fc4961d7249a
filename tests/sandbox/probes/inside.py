"""Copied into the sandbox under attack; its scripts begin with `from inside import *`.

Each attempt prints one line, `refused: ERRNO ...` or `succeeded: ...`; a script that prints neither is broken.
"""

# ruff: noqa: C408, E501, F401 - tables, and names for the scripts
import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
_X86_64 = dict(
    mount=165, umount2=166, pivot_root=155, chroot=161, swapon=167, swapoff=168, reboot=169, init_module=175,
    delete_module=176, finit_module=313, kexec_load=246, kexec_file_load=320, acct=163, settimeofday=164,
    clock_settime=227, clock_adjtime=305, adjtimex=159, quotactl=179, add_key=248, request_key=249, keyctl=250,
    bpf=321, userfaultfd=323, perf_event_open=298, setns=308, unshare=272, clone=56, open_by_handle_at=304,
    name_to_handle_at=303, iopl=172, ioperm=173, vhangup=153, syslog=103, lookup_dcookie=212, uselib=134,
    fanotify_init=300, sethostname=170, setdomainname=171, ptrace=101, process_vm_readv=310,
    process_vm_writev=311, kcmp=312, prlimit64=302, sched_setaffinity=203, sched_setscheduler=144,
    setpriority=141, ioprio_set=251, mknod=133, mknodat=259, io_setup=206, mq_open=240, modify_ldt=154,
    capset=126, setuid=105, setgid=106, setgroups=116, prctl=157, ioctl=16, tgkill=234, rt_sigqueueinfo=129,
    shmget=29, shmat=30, msgget=68, semget=64, personality=135, setrlimit=160, migrate_pages=256,
)  # fmt: skip
_AARCH64 = dict(
    mount=40, umount2=39, pivot_root=41, chroot=51, swapon=224, swapoff=225, reboot=142, init_module=105,
    delete_module=106, finit_module=273, kexec_load=104, kexec_file_load=294, acct=89, settimeofday=170,
    clock_settime=112, clock_adjtime=266, adjtimex=171, quotactl=60, add_key=217, request_key=218, keyctl=219,
    bpf=280, userfaultfd=282, perf_event_open=241, setns=268, unshare=97, clone=220, open_by_handle_at=265,
    name_to_handle_at=264, vhangup=58, syslog=116, lookup_dcookie=18, fanotify_init=262, sethostname=161,
    setdomainname=162, ptrace=117, process_vm_readv=270, process_vm_writev=271, kcmp=272, prlimit64=261,
    sched_setaffinity=122, sched_setscheduler=119, setpriority=140, ioprio_set=30, mknodat=33, io_setup=0,
    mq_open=180, capset=91, setuid=146, setgid=144, setgroups=159, prctl=167, ioctl=29, tgkill=131,
    rt_sigqueueinfo=138, shmget=194, shmat=196, msgget=186, semget=190, personality=92, setrlimit=164,
    migrate_pages=238,
)  # fmt: skip
_ALL = dict(
    pidfd_send_signal=424, io_uring_setup=425, io_uring_enter=426, io_uring_register=427, open_tree=428,
    move_mount=429, fsopen=430, fsconfig=431, fsmount=432, fspick=433, pidfd_open=434, clone3=435, openat2=437,
    pidfd_getfd=438, mount_setattr=442, quotactl_fd=443, memfd_secret=447, statmount=457, listmount=458,
    open_tree_attr=467,
)  # fmt: skip
NR = {**(_X86_64 if os.uname().machine == "x86_64" else _AARCH64), **_ALL}
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000


def call(name, *arguments):
    """One system call: (result, name of the error or '')."""
    ctypes.set_errno(0)
    numbers = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = LIBC.syscall(ctypes.c_long(NR[name]), *numbers)
    return result, errno.errorcode.get(ctypes.get_errno(), "0") if result < 0 else ""


def attempt(name, *arguments):
    """A system call that must fail."""
    result, error = call(name, *arguments)
    say(f"{name} returned {result}" if not error else "", error)
    return result


def say(success, refusal):
    """Report: what succeeded, or why it did not."""
    print(f"succeeded: {success}" if success else f"refused: {refusal}", flush=True)


def tried(what, function, *arguments):
    """A Python call that must raise OSError."""
    try:
        result = function(*arguments)
    except OSError as error:
        say("", errno.errorcode.get(error.errno, str(error)))
        return None
    say(f"{what}: {result!r}"[:200], "")
    return result


def read(path, limit=1 << 16):
    """The start of a file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def write(path, data=b"1"):
    """Write without creating."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def pids():
    """Processes seen in /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def socket_of(family, kind=socket.SOCK_RAW, protocol=0):
    """A socket of a family that must not exist here."""
    tried(f"socket {family}", lambda: socket.socket(family, kind, protocol).fileno())


def wait_until(condition, seconds=10.0):
    """Whether the condition came true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _registers(request, pid, kind, values):
    """PTRACE_GETREGSET or PTRACE_SETREGSET, ptrace(2)."""
    vector = _Vector(ctypes.addressof(values), ctypes.sizeof(values))
    LIBC.ptrace(request, pid, kind, ctypes.addressof(vector))


def swap_call(pid, old, new, argument):
    """In a traced process that stopped at its call `old`: make that another call. Whether it was there."""
    if os.uname().machine == "x86_64":
        registers = (ctypes.c_ulong * 27)()
        LIBC.ptrace(12, pid, None, ctypes.addressof(registers))
        if registers[15] != old:
            return False
        registers[15], registers[14] = new, argument
        LIBC.ptrace(13, pid, None, ctypes.addressof(registers))
        return True
    # NT_PRSTATUS holds x0 to x30, sp, pc and pstate; NT_ARM_SYSTEM_CALL is the only way to change the number.
    registers, number = (ctypes.c_ulong * 34)(), ctypes.c_int(new)
    _registers(0x4204, pid, 1, registers)
    if registers[8] != old:
        return False
    registers[0] = argument
    _registers(0x4205, pid, 1, registers)
    _registers(0x4205, pid, 0x404, number)
    return True


def arm32_program():
    """A 32-bit program for aarch64: unshare(CLONE_NEWUSER), exit with its error, and a trap where that fails."""
    code = struct.pack(
        "<7I", 0xE3007151, 0xE3A00201, 0xEF000000, 0xE2600000, 0xE3A07001, 0xEF000000, 0xE7F000F0
    )
    size = 84 + len(code)
    header = struct.pack("<HHIIIIIHHHHHH", 2, 40, 1, 0x10054, 52, 0, 0x5000200, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<8I", 1, 0, 0x10000, 0x10000, size, size, 5, 0x1000)
    return b"\x7fELF\1\1\1" + bytes(9) + header + segment + code


def run_batch(scripts):
    """Each script in a forked child of its own; prints one JSON object: name -> output."""
    import json

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    outputs = {}
    for name, script, timeout_s in scripts:
        start, end = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            for target in (1, 2):
                os.dup2(end, target)
            os.close(start)
            os.close(end)
            try:
                exec(compile(script, name, "exec"), dict(globals()))  # noqa: S102 - that is the attack
            except BaseException as error:  # noqa: BLE001 - shown to the judge
                print(f"{type(error).__name__}: {error}", flush=True)
            sys.stdout.flush()
            os._exit(0)
        os.close(end)
        outputs[name] = _collect(start, child, timeout_s).decode("latin1")
    print(json.dumps(outputs))


def _collect(fd, child, timeout_s):
    """Output of a child until it ends or its time is over; daemons that hold the pipe do not delay."""
    os.set_blocking(fd, False)
    data = b""
    deadline = time.monotonic() + timeout_s
    ended = False
    while not ended and time.monotonic() < deadline:
        ended = os.waitpid(child, os.WNOHANG)[0] == child
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(fd, 1 << 16):
                data += chunk
        if not ended:
            time.sleep(0.002)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        data += b"\nkilled after its time"
    os.close(fd)
    return data
