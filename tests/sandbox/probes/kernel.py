"""Probes of single system calls: mounts, privileges, namespaces, kernel objects. Data only."""

# ruff: noqa: E501 - scripts as data

from tests.sandbox.probes.model import Probe

_NO = ("EPERM", "ENOSYS")


def _call(identifier: str, kind: str, tries: str, script: str, refusal: tuple[str, ...] = _NO) -> Probe:
    return Probe(identifier, kind, tries, refusal, script)


_MOUNT_ATTR = "ctypes.byref((ctypes.c_uint64 * 4)(0, 1, 0, 0))"

MOUNTS = (
    _call("mount-tmpfs", "mounts", "mount a tmpfs", "attempt('mount', b't', b'/mnt', b'tmpfs', 0, None)"),
    _call(
        "mount-kinds",
        "mounts",
        "mount proc, sysfs, cgroup, cgroup2, overlay, debugfs, devtmpfs",
        "for k in (b'proc', b'sysfs', b'cgroup', b'cgroup2', b'overlay', b'debugfs', b'devtmpfs', b'mqueue'):\n"
        "    attempt('mount', b'x', b'/mnt', k, 0, b'memory' if k == b'cgroup' else None)",
    ),
    _call("bind-mount", "mounts", "bind / over /mnt", "attempt('mount', b'/', b'/mnt', None, 0x1000, None)"),
    _call(
        "remount-rw",
        "mounts",
        "remount /usr, /proc/sys, /dev and / for writing",
        "for t in (b'/usr', b'/proc/sys', b'/dev', b'/', b'/opt/python'):\n"
        "    attempt('mount', None, t, None, 0x20 | 0x1000, None)",
    ),
    _call(
        "umount-cover",
        "mounts",
        "unmount what covers /proc/sys, /proc/kcore, /usr, /tmp",
        "for t in (b'/proc/sys', b'/proc/kcore', b'/usr', b'/tmp', b'/proc', b'/dev'):\n"
        "    attempt('umount2', t, 2)",
    ),
    _call(
        "pivot-root",
        "mounts",
        "pivot_root back",
        "os.makedirs('/tmp/r/o', exist_ok=True); attempt('pivot_root', b'/tmp/r', b'/tmp/r/o')",
    ),
    _call(
        "propagation",
        "mounts",
        "make mounts shared, to have theirs flow in",
        "attempt('mount', None, b'/', None, 0x100000 | 0x4000, None)",
    ),
    _call(
        "open-tree",
        "mounts",
        "clone the mount tree detached",
        "attempt('open_tree', AT_FDCWD, b'/', 1 | 0x8000); attempt('open_tree_attr', AT_FDCWD, b'/', 1, "
        + _MOUNT_ATTR
        + ", 32)",
    ),
    _call(
        "new-mount-api",
        "mounts",
        "fsopen, fsconfig, fsmount, fspick of proc, sysfs, cgroup2, tmpfs",
        "for k in (b'proc', b'sysfs', b'cgroup2', b'tmpfs'):\n    attempt('fsopen', k, 0)\n"
        "attempt('fspick', AT_FDCWD, b'/', 0); attempt('fsmount', 0, 0, 0); attempt('fsconfig', 0, 0, 0, 0, 0)",
    ),
    _call(
        "move-mount",
        "mounts",
        "move /tmp over /usr",
        "attempt('move_mount', AT_FDCWD, b'/tmp', AT_FDCWD, b'/usr', 0)",
    ),
    _call(
        "mount-setattr",
        "mounts",
        "clear read-only from /usr and /proc/sys",
        f"for t in (b'/usr', b'/proc/sys', b'/'):\n    attempt('mount_setattr', AT_FDCWD, t, 0x8000, {_MOUNT_ATTR}, 32)",
    ),
    _call(
        "chroot-escape",
        "mounts",
        "chroot below and fchdir out",
        "attempt('chroot', b'/tmp')",
    ),
    _call(
        "statmount",
        "mounts",
        "read other namespaces' mounts with statmount and listmount",
        "r = ctypes.create_string_buffer(4096)\nattempt('listmount', r, r, 10, 0); attempt('statmount', r, r, 4096, 0)",
    ),
)

PRIVILEGES = (
    _call(
        "capset",
        "privileges",
        "raise capabilities",
        "h = (ctypes.c_uint32 * 2)(0x20080522, 0); d = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)\n"
        "attempt('capset', ctypes.byref(h), ctypes.byref(d))",
    ),
    _call(
        "ambient",
        "privileges",
        "raise an ambient capability, loosen securebits",
        "attempt('prctl', 47, 2, 21, 0, 0); attempt('prctl', 28, 0, 0, 0, 0)",
    ),
    _call(
        "change-ids",
        "privileges",
        "become another user or group",
        "attempt('setuid', 1); attempt('setgid', 1); attempt('setgroups', 1, ctypes.byref(ctypes.c_uint32(0)))",
        ("EPERM", "EINVAL"),
    ),
    _call(
        "setuid-program",
        "privileges",
        "gain from set-user-id programs and file capabilities",
        "os.system('cp /bin/cat /tmp/suid 2>/dev/null; chmod 6755 /tmp/suid')\n"
        "import subprocess\n"
        "for p in ('/tmp/suid', '/bin/su', '/usr/bin/su', '/bin/mount'):\n"
        "    if not os.path.exists(p): continue\n"
        "    n = subprocess.run(['/tmp/suid', '/proc/self/status'], capture_output=True, text=True).stdout\n"
        "    caps = [l for l in n.splitlines() if l.startswith(('CapEff', 'CapPrm', 'CapBnd'))]\n"
        "    bad = [l for l in caps if int(l.split()[1], 16)] or not caps\n"
        "    say(str(bad) if bad else '', 'no capability')",
        ("no capability",),
    ),
    _call(
        "file-capability",
        "privileges",
        "give a file capabilities (setxattr security.capability)",
        "open('/tmp/cap', 'w').close(); tried('cap', lambda: os.setxattr('/tmp/cap', 'security.capability', "
        "struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0xffffffff, 0)) or 'set')",
        ("EPERM", "EOPNOTSUPP"),
    ),
    _call(
        "trusted-xattr",
        "privileges",
        "set trusted.* and security.* attributes",
        "open('/x', 'w').close()\nfor n in ('trusted.overlay.opaque', 'security.probe'):\n"
        "    tried(n, lambda: os.setxattr('/x', n, b'y') or 'set')",
        ("EPERM", "EOPNOTSUPP"),
    ),
    _call(
        "seccomp-loosen",
        "privileges",
        "allow a denied call with a filter of one's own",
        "LIBC.prctl(38, 1, 0, 0, 0)\n"
        "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000), 8)\n"
        "class P(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('f', ctypes.c_void_p)]\n"
        "p = P(1, ctypes.addressof(code)); LIBC.prctl(22, 2, ctypes.byref(p), 0, 0)\n"
        "attempt('unshare', 0x10000000); attempt('setns', 0, 0)",
    ),
    _call(
        "seccomp-ptrace",
        "privileges",
        "change the number of a child's system call after the filter looked",
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    LIBC.ptrace(0, 0, None, None); os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    r, e = call('personality', 0xffffffff); os._exit(7 if r == 0 and not e else 3)\n"
        "LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]\n"
        "os.waitpid(pid, 0); seen = False\n"
        "while True:\n"
        "    LIBC.ptrace(24, pid, None, None); _, st = os.waitpid(pid, 0)\n"
        "    if os.WIFEXITED(st): break\n"
        "    seen = seen or swap_call(pid, NR['personality'], NR['unshare'], 0x10000000)\n"
        "assert seen; code = os.WEXITSTATUS(st); say('unshared' if code == 7 else '', f'EPERM, child {code}')",
    ),
    _call(
        "int80",
        "privileges",
        "32-bit system calls (int 0x80; on aarch64 a 32-bit program): mount, unshare",
        "if os.uname().machine != 'x86_64':\n"
        "    open('arm32', 'wb').write(arm32_program()); os.chmod('arm32', 0o755)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        try: os.execv('./arm32', ['arm32'])\n"
        "        except OSError: os._exit(errno.ENOEXEC)\n"
        "    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "    say('unshared' if code == 0 else '', 'ENOSYS' if code in (-signal.SIGILL, errno.ENOEXEC) else f'exit {code}')\n"
        "    sys.exit()\n"
        "def int80(nr, arg):\n"
        "    m = mmap.mmap(-1, 4096, prot=7)\n"
        "    m.write(b'\\x53\\xb8' + struct.pack('<I', nr) + b'\\xbb' + struct.pack('<I', arg) + "
        "b'\\x31\\xc9\\x31\\xd2\\xcd\\x80\\x5b\\xc3')\n"
        "    f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "    return f()\n"
        "for nr, arg in ((310, 0x10000000), (20, 0), (120, 0x10000011)):\n"
        "    r = int80(nr, arg)\n"
        "    if r == 0 and nr == 120: os._exit(0)\n"
        "    say(f'{nr} gave {r}' if r >= 0 else '', errno.errorcode.get(-r, str(r)))",
        ("ENOSYS", "EFAULT"),
    ),
    _call(
        "x32",
        "privileges",
        "x32 system calls",
        "if os.uname().machine != 'x86_64':\n    say('', 'ENOSYS (x86_64 only)'); sys.exit()\n"
        "for n in (39, 272, 165, 512 + 20):\n"
        "    NR['x'] = 0x40000000 + n; attempt('x', 0x10000000, 0, 0)",
    ),
)

_NAMESPACE_NAMES = "dict(mnt=0x20000, cgroup=0x2000000, uts=0x4000000, ipc=0x8000000, user=0x10000000, "
_NAMESPACE_NAMES += "pid=0x20000000, net=0x40000000)"
NAMESPACES = (
    _call(
        "unshare",
        "namespaces",
        "a nested namespace of each kind (unshare)",
        f"for n, f in {_NAMESPACE_NAMES}.items():\n    attempt('unshare', f); attempt('unshare', f | 0x10000000)\n"
        "attempt('unshare', 0x80)",
    ),
    _call(
        "clone",
        "namespaces",
        "a nested namespace of each kind (clone)",
        f"for n, f in {_NAMESPACE_NAMES}.items():\n    r = attempt('clone', f | 0x10000000 | 17, 0, 0, 0, 0)\n"
        "    if r == 0: os._exit(0)",
    ),
    _call(
        "clone3",
        "namespaces",
        "a nested user namespace (clone3, whose flags no filter can read)",
        "a = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\nr = attempt('clone3', ctypes.byref(a), 88)\n"
        "if r == 0: os._exit(0)",
    ),
    _call(
        "setns",
        "namespaces",
        "enter namespaces by path and by pidfd",
        "for n in os.listdir('/proc/self/ns'):\n    fd = os.open('/proc/self/ns/' + n, os.O_RDONLY)\n"
        "    attempt('setns', fd, 0)\npid, e = call('pidfd_open', 1, 0)\nif not e: attempt('setns', pid, 0x10000000)",
    ),
    _call(
        "init-namespaces",
        "namespaces",
        "open the namespaces of the first process",
        "for n in os.listdir('/proc/self/ns'):\n    tried(n, lambda: os.open('/proc/1/ns/' + n, os.O_RDONLY))",
        ("EACCES", "EPERM"),
    ),
    _call(
        "ns-parent",
        "namespaces",
        "walk to the parent user and pid namespaces (NS_GET_PARENT, NS_GET_USERNS)",
        "for n in ('user', 'pid'):\n    fd = os.open('/proc/self/ns/' + n, os.O_RDONLY)\n"
        "    tried(n, lambda: fcntl.ioctl(fd, 0xb702))\n"
        "fd = fcntl.ioctl(os.open('/proc/self/ns/user', os.O_RDONLY), 0xb701) if False else None\n"
        "u = fcntl.ioctl(os.open('/proc/self/ns/net', os.O_RDONLY), 0xb701)\n"
        "say('' if os.fstat(u).st_ino == os.stat('/proc/self/ns/user').st_ino else 'foreign user namespace', 'EPERM own')",
    ),
    _call(
        "uid-map",
        "namespaces",
        "rewrite the id maps, allow setgroups",
        "for f, d in (('uid_map', b'0 0 4294967295'), ('gid_map', b'0 0 4294967295'), ('setgroups', b'allow')):\n    tried(f, write, '/proc/self/' + f, d)",
        ("EPERM", "EACCES", "EINVAL"),
    ),
    _call(
        "time-offsets",
        "namespaces",
        "shift the clocks",
        "tried('offsets', write, '/proc/self/timens_offsets', b'monotonic 1000 0')",
        ("EPERM", "EACCES", "ENOENT"),
    ),
)

KERNEL = (
    _call(
        "io-uring",
        "kernel",
        "io_uring",
        "p = ctypes.create_string_buffer(120)\nattempt('io_uring_setup', 4, p)",
    ),
    _call(
        "bpf", "kernel", "load a BPF map", "a = ctypes.create_string_buffer(128)\nattempt('bpf', 0, a, 128)"
    ),
    _call("userfaultfd", "kernel", "userfaultfd", "attempt('userfaultfd', 1); attempt('userfaultfd', 0)"),
    _call(
        "perf",
        "kernel",
        "perf events of itself and of everything",
        "a = ctypes.create_string_buffer(128); a[4] = 112\n"
        "attempt('perf_event_open', a, 0, -1, -1, 0); attempt('perf_event_open', a, -1, 0, -1, 0)",
    ),
    _call(
        "keyrings",
        "kernel",
        "add, request, list and join keys",
        "attempt('add_key', b'user', b'x', b'y', 1, -4); attempt('request_key', b'user', b'x', None, 0)\n"
        "for o in (0, 1, 6, 11): attempt('keyctl', o, -3, 0, 0, 0)\n"
        "try: say(read('/proc/keys').decode().strip(), 'EPERM empty')\nexcept OSError as e: say('', 'EPERM')",
    ),
    _call(
        "modules",
        "kernel",
        "load and unload modules, kexec",
        "attempt('init_module', b'', 0, b''); attempt('finit_module', 0, b'', 0); attempt('delete_module', b'x', 0)\n"
        "attempt('kexec_load', 0, 0, None, 0); attempt('kexec_file_load', 0, 0, 0, None, 0)",
    ),
    _call(
        "reboot",
        "kernel",
        "reboot, also only this pid namespace",
        "for c in (0, 0x89abcdef):\n    attempt('reboot', 0xfee1dead, 672274793, c, None)",
    ),
    _call(
        "clock",
        "kernel",
        "set the time",
        "t = (ctypes.c_long * 30)(1, 1); attempt('settimeofday', t, None); attempt('clock_settime', 0, t)\n"
        "t[0] = 1; attempt('adjtimex', t); attempt('clock_adjtime', 0, t)",
    ),
    _call(
        "hostname",
        "kernel",
        "set host and domain name",
        "attempt('sethostname', b'evil', 4); attempt('setdomainname', b'evil', 4)",
    ),
    _call(
        "swap-quota-acct",
        "kernel",
        "swapon, quotactl, process accounting, vhangup",
        "attempt('swapon', b'/tmp/x', 0); attempt('swapoff', b'/x'); attempt('quotactl', 0x80000100, None, 0, None)\n"
        "attempt('quotactl_fd', 0, 0x80000100, 0, None); attempt('acct', b'/tmp/a'); attempt('vhangup')",
    ),
    _call(
        "syslog",
        "kernel",
        "read and clear the kernel's log",
        "b = ctypes.create_string_buffer(4096)\nfor a in (3, 4, 5, 10): attempt('syslog', a, b, 4096)\n"
        "tried('kmsg', read, '/proc/kmsg'); tried('devkmsg', read, '/dev/kmsg')",
        ("EPERM", "ENOENT", "EACCES"),
    ),
    _call(
        "ports",
        "kernel",
        "I/O ports",
        "if 'iopl' not in NR:\n    say('', 'ENOSYS'); sys.exit()\nattempt('iopl', 3); attempt('ioperm', 0x80, 1, 1)",
    ),
    _call("fanotify", "kernel", "watch whole file systems (fanotify)", "attempt('fanotify_init', 0, 0)"),
    _call(
        "file-handles",
        "kernel",
        "open files by handle (open_by_handle_at), as in the shocker attack",
        "h = ctypes.create_string_buffer(struct.pack('Ii', 8, 1) + struct.pack('II', 2, 0), 64)\n"
        "for d in (b'/', b'/usr', b'/tmp', b'/opt/python'):\n"
        "    fd = os.open(d, os.O_RDONLY); attempt('open_by_handle_at', fd, h, os.O_RDONLY)\n"
        "    m = ctypes.c_int(); g = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 256)\n"
        "    call('name_to_handle_at', AT_FDCWD, d, g, ctypes.byref(m), 0)\n"
        "    attempt('open_by_handle_at', fd, g, os.O_RDONLY)",
    ),
    _call(
        "machine-wide-limits",
        "kernel",
        "take all AIO contexts and POSIX message queues of the machine",
        "x = ctypes.c_ulong(0); attempt('io_setup', 32768, ctypes.byref(x))\n"
        "attempt('mq_open', b'q', os.O_CREAT | os.O_RDWR, 0o600, None)",
    ),
    _call(
        "memory-secret",
        "kernel",
        "memfd_secret, modify_ldt",
        "attempt('memfd_secret', 0)\nif 'modify_ldt' in NR: attempt('modify_ldt', 0, None, 0)",
    ),
    _call(
        "core-dump-program",
        "kernel",
        "switch core dumps on, which may run a program of the host",
        "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "pid = os.fork()\nif pid == 0: os.abort()\n_, s = os.waitpid(pid, 0)\n"
        "say('dumped' if os.WCOREDUMP(s) else '', 'EPERM no core')",
    ),
    _call(
        "scheduling",
        "kernel",
        "real-time, deadline and negative-nice scheduling",
        "import resource\n"
        "tried('fifo', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) or 'set')\n"
        "tried('nice', lambda: os.setpriority(os.PRIO_PROCESS, 0, -5) or 'set')\n"
        "attempt('ioprio_set', 1, 0, 0x2000)",
        ("EPERM", "EACCES"),
    ),
)

PROBES = MOUNTS + PRIVILEGES + NAMESPACES + KERNEL
