"""Probes of things that can be named or opened: files, processes, devices, /proc, sockets, IPC. Data only."""

# ruff: noqa: E501 - scripts as data

from tests.sandbox.probes.model import Probe

_GONE = ("ENOENT", "ENOTDIR", "ESRCH")
_DENIED = ("EPERM", "EACCES", "ENOENT", "ENOTDIR", "EROFS", "ESRCH")

FILES = (
    Probe(
        "host-file", "files", "open a host file by its path, with .. and links", _GONE,
        "os.symlink(HOST_FILE, '/tmp/l1'); os.symlink('/..' * 30 + HOST_FILE, '/tmp/l2')\n"
        "for p in (HOST_FILE, '/..' * 30 + HOST_FILE, '/tmp/l1', '/tmp/l2', '/proc/self/root' + HOST_FILE,\n"
        "          '/proc/self/cwd/../../..' + HOST_FILE):\n    tried(p, read, p)",
    ),
    Probe(
        "proc-root", "files", "reach the host through /proc/*/root, cwd and exe", _DENIED,
        "for pid in [*pids(), HOST_PID, OWNER_PID]:\n"
        "    for via in ('root', 'cwd', 'cwd/..', 'cwd/../..', 'task/%d/root' % pid):\n"
        "        tried(via, read, f'/proc/{pid}/{via}{HOST_FILE}')",
    ),
    Probe(
        "proc-fd", "files", "reach the host through descriptors (/proc/*/fd, map_files, /dev/fd)", _DENIED,
        "for pid in pids():\n"
        "    for folder in ('fd', 'map_files'):\n"
        "        try: names = os.listdir(f'/proc/{pid}/{folder}')\n"
        "        except OSError as e: say('', errno.errorcode[e.errno]); continue\n"
        "        for n in names:\n"
        "            p = f'/proc/{pid}/{folder}/{n}'\n"
        "            tried(p, read, p + '/..' + HOST_FILE); tried(p, read, p + HOST_FILE)\n"
        "for n in os.listdir('/dev/fd'): tried(n, read, f'/dev/fd/{n}' + HOST_FILE)",
    ),
    Probe(
        "inherited-descriptors", "files", "find descriptors that were not meant to be inherited", ("only 0 1 2",),
        "mine = sorted(int(n) for n in os.listdir('/proc/self/fd'))\n"
        "extra = [(n, os.readlink(f'/proc/self/fd/{n}')) for n in mine if n > 2 and "
        "os.path.exists(f'/proc/self/fd/{n}')]\nsay(str(extra) if extra else '', 'only 0 1 2')",
    ),
    Probe(
        "write-shared", "files", "write to the host's /usr, the interpreter and device nodes", ("EROFS", "EPERM", "EACCES"),
        "for p in ('/usr/evil', '/usr/bin/evil', '/opt/python/evil', '/dev/evil'):\n"
        "    tried(p, lambda: os.open(p, os.O_CREAT | os.O_WRONLY))\n"
        "for p in ('/usr/bin/env', '/opt/python/bin', '/dev/null', '/dev/zero', '/dev/full'):\n"
        "    tried(p, lambda: os.chmod(p, 0o667) or 'chmod'); tried(p, lambda: os.utime(p, (1, 1)) or 'utime')\n"
        "    tried(p, lambda: os.utime(p) or 'touch'); tried(p, lambda: os.chown(p, 0, 0) or 'chown')\n"
        "    tried(p, lambda: os.setxattr(p, 'user.x', b'1') or 'xattr'); tried(p, lambda: os.unlink(p) or 'unlink')",
    ),
    Probe(
        "layer-write", "files", "change a shared layer: write, truncate, chmod, mmap, rename, link, unlink", ("layer kept",),
        "fd = os.open(LAYER_FILE, os.O_RDWR); m = mmap.mmap(fd, 6); m[:3] = b'MMA'; m.flush(); os.write(fd, b'w')\n"
        "os.chmod(LAYER_FILE, 0o777); os.link(LAYER_FILE, '/layer/hard'); open('/layer/hard', 'a').write('x')\n"
        "os.truncate(LAYER_FILE, 1); os.rename('/layer/sub/deep', '/layer/moved'); os.unlink(LAYER_FILE)\n"
        "os.utime('/layer', (5, 5)); say('', 'layer kept')",
    ),
    Probe(
        "cross-mount-link", "files", "hard links and renames from one mount to another", ("EXDEV", "EROFS", "EPERM"),
        "open('/tmp/t', 'w').close(); os.makedirs('/tmp/dir', exist_ok=True)\n"
        "for a, b in (('/usr/bin/env', '/tmp/h'), ('/tmp/t', '/layer/h'), ('/usr/bin/env', '/h')):\n"
        "    tried(a, lambda: os.link(a, b) or b)\n"
        "tried('rename', lambda: os.rename('/tmp/dir', '/dir') or 'renamed out of a bind')",
    ),
    Probe(
        "whiteout", "files", "make an overlay whiteout (device 0:0) in the merged tree", ("EPERM",),
        "attempt('mknodat', AT_FDCWD, b'/layer/w', 0o20000, 0); attempt('mknodat', AT_FDCWD, b'/w', 0o20000, 0)",
    ),
    Probe(
        "fd-paths", "files", "openat2 and O_PATH descriptors past the root", _GONE,
        "r = os.open('/', os.O_PATH)\n"
        "for p in ('..', '../..', '../../../' + HOST_FILE.lstrip('/')):\n"
        "    fd = None\n    try: fd = os.open(p, os.O_PATH, dir_fd=r)\n"
        "    except OSError as e: say('', errno.errorcode[e.errno]); continue\n"
        "    s, t = os.fstat(fd), os.stat('/')\n"
        "    say('' if (s.st_ino, s.st_dev) == (t.st_ino, t.st_dev) else p, 'ENOENT (the root itself)')",
    ),
    Probe(
        "lease", "files", "leases on shared files, which make the host wait", ("EPERM", "EACCES", "EINVAL", "EAGAIN"),
        "for p in ('/usr/bin/env', '/opt/python/bin/python3', '/dev/null'):\n"
        "    fd = os.open(p, os.O_RDONLY); tried(p, lambda: fcntl.fcntl(fd, 1024, fcntl.F_RDLCK))",
    ),
)  # fmt: skip

PROCESSES = (
    Probe(
        "signal-host", "processes", "signal processes of the host by number, and everybody with -1", ("ESRCH", "own"),
        "for p in (HOST_PID, OWNER_PID):\n"
        "    if p not in pids(): tried(p, lambda: os.kill(p, 9) or 'killed')\n"
        "pid = os.fork()\nif pid == 0: os.setsid(); os.kill(-1, 0); os._exit(0)\nos.wait(); say('', 'own')",
    ),
    Probe(
        "kill-all", "processes", "kill(-1), which must reach nobody outside nor the first process", ("own",),
        "say('', 'own'); signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(-1, 15)",
    ),
    Probe(
        "pidfd", "processes", "pidfd of host processes; steal descriptors of the first process", ("ESRCH", "EPERM", "EINVAL"),
        "for p in (HOST_PID, OWNER_PID):\n    if p not in pids(): attempt('pidfd_open', p, 0)\n"
        "fd, _ = call('pidfd_open', 1, 0)\nfor n in range(12): attempt('pidfd_getfd', fd, n, 0)",
    ),
    Probe(
        "ptrace-init", "processes", "attach to the first process", ("EPERM",),
        "attempt('ptrace', 16, 1, None, None); attempt('ptrace', 0x4206, 1, None, None)",
    ),
    Probe(
        "vm-init", "processes", "read and write the first process's memory", ("EPERM", "EACCES"),
        "b = ctypes.create_string_buffer(64); i = (ctypes.c_void_p * 2)(ctypes.addressof(b), 64)\n"
        "r = (ctypes.c_void_p * 2)(0x400000, 64)\nfor n in ('process_vm_readv', 'process_vm_writev'):\n"
        "    attempt(n, 1, i, 1, r, 1, 0)\ntried('mem', lambda: os.open('/proc/1/mem', os.O_RDWR))\n"
        "attempt('kcmp', 1, os.getpid(), 0, 0, 0)",
    ),
    Probe(
        "proc-init", "processes", "read what /proc shows of the first process", ("EACCES", "EPERM", "ENOENT", "empty"),
        "for n in ('environ', 'maps', 'smaps', 'auxv', 'stack', 'syscall', 'pagemap', 'mem', 'io', 'mountstats',\n"
        "          'personality', 'map_files'):\n"
        "    p = f'/proc/1/{n}'\n    try: found = os.listdir(p) if os.path.isdir(p) else read(p)\n"
        "    except OSError as e: say('', errno.errorcode[e.errno]); continue\n"
        "    say(f'{n} {found}' if found else '', 'empty')\n"
        "for n in ('exe', 'cwd', 'root', 'fd/0', 'fd/3'): tried(n, os.readlink, f'/proc/1/{n}')\n"
        "say('', 'empty')",
    ),
    Probe(
        "signal-init", "processes", "every signal to the first process, by kill, tgkill, sigqueue and pidfd", ("0", "EPERM", "EINVAL"),
        "fd, _ = call('pidfd_open', 1, 0); info = ctypes.create_string_buffer(128)\n"
        "for s in range(1, 65):\n"
        "    call('tgkill', 1, 1, s); call('pidfd_send_signal', fd, s, None, 0); LIBC.kill(1, s)\n"
        "    struct.pack_into('iii', info, 0, s, 0, -1); call('rt_sigqueueinfo', 1, s, info)\n"
        "say('', 'EPERM or ignored')",
    ),
    Probe(
        "limit-init", "processes", "change limits, affinity and scheduling of the first process", ("EPERM", "EACCES"),
        "z = (ctypes.c_uint64 * 2)(1, 1)\nfor r in (0, 1, 7): attempt('prlimit64', 1, r, z, None)\n"
        "attempt('sched_setaffinity', 1, 8, ctypes.byref(ctypes.c_ulong(1)))\n"
        "attempt('sched_setscheduler', 1, 5, ctypes.byref(ctypes.c_int(0)))\n"
        "attempt('setpriority', 0, 1, 19); attempt('ioprio_set', 1, 1, 0x6000)",
    ),
    Probe(
        "limit-host", "processes", "change limits and affinity of host processes", ("ESRCH",),
        "z = (ctypes.c_uint64 * 2)(1, 1)\nfor p in (HOST_PID, OWNER_PID):\n"
        "    if p in pids(): continue\n"
        "    attempt('prlimit64', p, 7, z, None); attempt('sched_setaffinity', p, 8, ctypes.byref(ctypes.c_ulong(1)))\n"
        "    attempt('setpriority', 0, p, 19)",
    ),
    Probe(
        "foreign-processes", "processes", "see processes of the host or of siblings", ("own only",),
        "s = [p for p in pids() if p != 1 and p not in (os.getpid(),)]\n"
        "names = [read(f'/proc/{p}/cmdline') for p in s]\n"
        "say(str(names) if any(b'sleep' in n or b'sibling' in n for n in names) else '', 'own only')",
    ),
    Probe(
        "owner-secrets", "processes", "find the owner's environment and arguments anywhere in /proc", ("nothing",),
        "for p in ['self', *pids()]:\n"
        "    for n in ('environ', 'cmdline', 'comm', 'stat', 'status', 'mountinfo', 'cgroup', 'task/%s/environ' % p):\n"
        "        with contextlib.suppress(OSError): sys.stdout.buffer.write(read(f'/proc/{p}/{n}'))\n"
        "print(); print(dict(os.environ)); say('', 'nothing')",
    ),
    Probe(
        "zombies", "processes", "leave 150 orphans to the first process", ("reaped",),
        "for _ in range(150):\n    if os.fork() == 0:\n        if os.fork() == 0: os._exit(0)\n        os._exit(0)\n"
        "for _ in range(150): os.wait()\n"
        "def zombies(): return [p for p in pids() if os.path.exists(f'/proc/{p}/stat') and "
        "b') Z' in read(f'/proc/{p}/stat')]\nsay('' if wait_until(lambda: not zombies()) else zombies(), 'reaped')",
    ),
)  # fmt: skip

MEMORY = (
    Probe(
        "physical-memory", "memory", "read physical memory: /dev/mem, kmem, port, /proc/kcore", (*_DENIED, "empty", "ENXIO"),
        "for p in ('/dev/mem', '/dev/kmem', '/dev/port', '/proc/vmcore'): tried(p, read, p)\n"
        "d = b''\nwith contextlib.suppress(OSError): d = read('/proc/kcore')\nsay(d[:8].hex(), 'empty')",
    ),
    Probe(
        "kernel-addresses", "memory", "learn kernel addresses: kallsyms, slabinfo, vmallocinfo, timer_list, kpage*", ("nothing",),
        "import re\n"
        "for n in ('kallsyms', 'slabinfo', 'vmallocinfo', 'timer_list', 'kpagecount', 'kpageflags', 'kpagecgroup',\n"
        "          'pagetypeinfo', 'iomem', 'modules', 'sched_debug', 'latency_stats'):\n"
        "    d = b''\n    with contextlib.suppress(OSError): d = read('/proc/' + n)\n"
        "    hidden = n in ('iomem', 'modules') and not re.search(rb'(?<![0-9a-f])[1-9a-f][0-9a-f]{7}', d)\n"
        "    say('' if not d or hidden else n, 'nothing')",
    ),
    Probe(
        "page-frames", "memory", "learn physical page numbers from pagemap", ("hidden",),
        "b = bytearray(4096); a = ctypes.addressof((ctypes.c_char * 4096).from_buffer(b)); b[0] = 1\n"
        "fd = os.open('/proc/self/pagemap', os.O_RDONLY); d = os.pread(fd, 8, a // 4096 * 8)\n"
        "say('frame' if struct.unpack('Q', d)[0] & ((1 << 55) - 1) else '', 'hidden')",
    ),
    Probe(
        "lock-memory", "memory", "lock much memory, huge pages", ("ENOMEM", "EPERM", "EAGAIN"),
        "m = mmap.mmap(-1, 64 << 20); a = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "r = LIBC.mlock(ctypes.c_void_p(a), ctypes.c_size_t(64 << 20)); e = ctypes.get_errno()\n"
        "say('64 MiB locked' if r == 0 else '', errno.errorcode.get(e, e))",
    ),
)  # fmt: skip

DEVICES = (
    Probe(
        "mknod", "devices", "make block and character devices", ("EPERM",),
        "for m, d in ((0o60600, os.makedev(8, 0)), (0o60600, os.makedev(254, 0)), (0o20600, os.makedev(1, 1)),\n"
        "             (0o20600, os.makedev(1, 11)), (0o20600, os.makedev(10, 237)), (0o20600, os.makedev(10, 229))):\n"
        "    for p in (b'/tmp/dev', b'/rootdev'): attempt('mknodat', AT_FDCWD, p, m, d)",
    ),
    Probe(
        "device-list", "devices", "find a device that should not be there", ("only harmless",),
        "ok = {'null', 'zero', 'full', 'random', 'urandom', 'tty', 'ptmx', 'pts', 'shm', 'fd', 'stdin', 'stdout', 'stderr'}\n"
        "more = set(os.listdir('/dev')) - ok\nsay(str(more) if more else '', 'only harmless')\n"
        "say(str(os.listdir('/dev/pts')) if set(os.listdir('/dev/pts')) - {'ptmx'} else '', 'only harmless')",
    ),
    Probe(
        "device-open", "devices", "open disks, loop, fuse, kvm, tun, console, kmsg", _DENIED,
        "for n in ('vda', 'sda', 'nvme0n1', 'loop0', 'loop-control', 'fuse', 'kvm', 'net/tun', 'console', 'kmsg', 'tty0',\n"
        "          'tty1', 'vhost-vsock', 'mapper/control', 'snapshot', 'uinput', 'input/event0', 'dri/card0'):\n"
        "    tried(n, read, '/dev/' + n)",
    ),
    Probe(
        "terminal-injection", "devices", "type into a terminal: TIOCSTI, TIOCLINUX, TIOCCONS, line disciplines", ("EPERM",),
        "m, s = os.openpty()\nfor q, a in ((0x5412, b'x'), (0x541C, b'\\x02' + b'\\0' * 15), (0x541D, b'\\0'), "
        "(0x5423, struct.pack('i', 21))):\n    tried(hex(q), lambda: fcntl.ioctl(s, q, a))",
    ),
    Probe(
        "controlling-terminal", "devices", "open the terminal of whoever started the owner (/dev/tty)", ("ENXIO", "ENOTTY"),
        "tried('tty', lambda: os.open('/dev/tty', os.O_RDWR))",
    ),
)  # fmt: skip

PROC = (
    Probe(
        "kernel-settings", "proc", "write kernel settings", ("EROFS", "EACCES", "EPERM", "ENOENT"),
        "for n in ('kernel/core_pattern', 'kernel/modprobe', 'kernel/hostname', 'kernel/domainname', 'kernel/panic',\n"
        "          'kernel/sysrq', 'kernel/ns_last_pid', 'kernel/shmmax', 'kernel/msgmax', 'kernel/yama/ptrace_scope',\n"
        "          'vm/drop_caches', 'vm/swappiness', 'vm/overcommit_memory', 'vm/panic_on_oom', 'net/ipv4/ip_forward',\n"
        "          'net/core/somaxconn', 'user/max_user_namespaces', 'fs/suid_dumpable', 'fs/binfmt_misc/register',\n"
        "          'fs/mqueue/queues_max'):\n    tried(n, write, '/proc/sys/' + n)",
    ),
    Probe(
        "proc-triggers", "proc", "sysrq, acpi, mtrr, scsi, irq, bus, dynamic debug", ("EROFS", "EISDIR", "EACCES", "EPERM", "ENOENT", "EIO"),
        "for n in ('sysrq-trigger', 'acpi/wakeup', 'mtrr', 'scsi/scsi', 'irq/default_smp_affinity', 'irq/0/smp_affinity',\n"
        "          'dynamic_debug/control', 'driver/nvram', 'fs/ext4', 'tty/drivers', 'asound/cards'):\n"
        "    tried(n, lambda: os.open('/proc/' + n, os.O_WRONLY))\n"
        "for base in ('/proc/acpi', '/proc/bus', '/proc/scsi', '/proc/driver', '/proc/irq', '/proc/fs', '/proc/asound'):\n"
        "    for d, _, fs in os.walk(base):\n"
        "        for f in fs: tried(f, lambda: os.open(os.path.join(d, f), os.O_WRONLY))",
    ),
    Probe(
        "oom-score", "proc", "make itself unkillable for memory, or the first process a victim", ("EACCES", "EPERM", "EROFS"),
        "tried('lower', write, '/proc/self/oom_score_adj', b'-500')\n"
        "tried('legacy', write, '/proc/self/oom_adj', b'-17')\n"
        "tried('init', write, '/proc/1/oom_score_adj', b'1000')",
    ),
    Probe(
        "sysfs", "proc", "read or write /sys, find cgroup files and a release agent", ("ENOENT", "empty"),
        "for p in ('/sys/kernel', '/sys/fs/cgroup', '/sys/fs/cgroup/release_agent', '/sys/class/net', "
        "'/sys/kernel/security', '/cgroup', '/run/systemd', '/var/run/docker.sock', '/run/containerd'):\n"
        "    tried(p, os.listdir, p)\n"
        "say('host cgroup path' if 'minisandbox' in read('/proc/1/cgroup').decode() else '', 'empty')",
    ),
    Probe(
        "host-paths", "proc", "find host paths of secrets in the mount table", ("nothing",),
        "t = read('/proc/self/mountinfo', 1 << 20) + read('/proc/self/mounts', 1 << 20)\n"
        "say('host directory of secrets' if HOST_FILE.encode() in t else '', 'nothing')",
    ),
)  # fmt: skip

SOCKETS = (
    Probe(
        "abstract-sockets", "sockets", "connect to abstract unix sockets of host and sibling", ("ECONNREFUSED",),
        "for n in (HOST_ABSTRACT, SIBLING_ABSTRACT):\n"
        "    s = socket.socket(socket.AF_UNIX); tried(n, lambda: s.connect(chr(0) + n) or s.recv(99))",
    ),
    Probe(
        "host-loopback", "sockets", "connect to services of host and sibling on 127.0.0.1", ("ECONNREFUSED", "ENETUNREACH"),
        "for a in ('127.0.0.1', '::1', '0.0.0.0'):\n"
        "    for p in (HOST_PORT, SIBLING_PORT):\n"
        "        tried(a, lambda: socket.create_connection((a, p), 2).recv(99))",
    ),
    Probe(
        "outside", "sockets", "reach any other address, by TCP, UDP and raw", ("ENETUNREACH", "EPERM", "EADDRNOTAVAIL", "EACCES"),
        "for a in ('192.0.2.1', '169.254.169.254', '10.0.0.1', '172.17.0.1'):\n"
        "    tried(a, lambda: socket.create_connection((a, 80), 2).fileno())\n"
        "    tried(a, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (a, 53)))\n"
        "tried('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno())\n"
        "tried('bcast', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('255.255.255.255', 9)))",
    ),
    Probe(
        "families", "sockets", "vsock, AF_ALG, packet, bluetooth, xdp, key, can, tipc, rds, smc, kcm, nfc, ...", ("EAFNOSUPPORT",),
        "for f in (40, 38, 17, 31, 44, 15, 29, 30, 21, 43, 41, 39, 3, 9, 5, 23, 36, 45): socket_of(f)\n"
        "for f in (40, 21, 31): socket_of(f, socket.SOCK_SEQPACKET); socket_of(f, socket.SOCK_STREAM)",
    ),
    Probe(
        "protocols", "sockets", "load protocol modules: SCTP, DCCP, UDPLITE, L2TP; netlink audit, netfilter, xfrm, diag",
        ("EPROTONOSUPPORT", "ESOCKTNOSUPPORT"),
        "for k, p in ((1, 132), (5, 132), (6, 33), (2, 136), (2, 115), (3, 255), (1, 263)):\n"
        "    socket_of(2, k, p); socket_of(10, k, p)\nfor p in (2, 4, 5, 6, 9, 10, 11, 12, 16, 18, 20, 21): socket_of(16, 3, p)",
    ),
    Probe(
        "netlink", "sockets", "change the network: add a link, an address, a route", ("EPERM",),
        "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); s.settimeout(5)\n"
        "def ask(kind, body):\n"
        "    s.send(struct.pack('IHHII', 16 + len(body), kind, 0x605, 1, 0) + body)\n"
        "    d = s.recv(8192); code = -struct.unpack_from('i', d, 16)[0]\n"
        "    say('' if code else f'request {kind}', errno.errorcode.get(code, code))\n"
        "ask(16, struct.pack('BxHiII', 0, 0, 0, 0, 0) + struct.pack('HH', 8, 3) + b'evl\\0')\n"
        "ask(20, struct.pack('BBBBI', 2, 24, 0, 0, 1) + struct.pack('HH4s', 8, 2, bytes((10, 9, 8, 7))))\n"
        "ask(24, struct.pack('BBBBBBBBI', 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack('HHi', 8, 4, 1))",
    ),
    Probe(
        "interface-ioctl", "sockets", "configure interfaces by ioctl, bind privileged things", ("EPERM", "ENOPROTOOPT"),
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "tried('flags', lambda: fcntl.ioctl(s, 0x8914, struct.pack('16sH14x', b'lo', 0)))\n"
        "tried('addr', lambda: fcntl.ioctl(s, 0x8916, struct.pack('16sHH4s8x', b'lo', 2, 0, bytes((10, 0, 0, 1)))))\n"
        "tried('mark', lambda: s.setsockopt(1, 36, 1) or 'set'); tried('force', lambda: s.setsockopt(1, 33, 1 << 30) or 'set')",
    ),
    Probe(
        "control-socket", "sockets", "find the first process's control socket and talk to it", ("EACCES", "ENXIO", "ENOENT", "none"),
        "for pid in pids():\n"
        "    try: names = os.listdir(f'/proc/{pid}/fd')\n"
        "    except OSError as e: say('', errno.errorcode[e.errno]); continue\n"
        "    for n in names:\n"
        "        link = ''\n"
        "        with contextlib.suppress(OSError): link = os.readlink(f'/proc/{pid}/fd/{n}')\n"
        "        if link.startswith('socket:'): tried(link, lambda: os.open(f'/proc/{pid}/fd/{n}', os.O_RDWR)); say(link, '')\n"
        "rows = [l for l in open('/proc/net/unix').read().splitlines()[1:]]\n"
        "say(str(rows) if rows else '', 'none')",
    ),
)  # fmt: skip

IPC = (
    Probe(
        "sysv-shm", "ipc", "attach System V shared memory of host and sibling by key and by id", ("ENOENT", "EINVAL", "EIDRM", "EACCES"),
        "attempt('shmget', SHM_KEY, 4096, 0)\n"
        "LIBC.shmat.restype = ctypes.c_void_p\n"
        "for i in (SHM_ID, 0, 1, 2, 3):\n"
        "    ctypes.set_errno(0); a = LIBC.shmat(i, None, 0)\n"
        "    ok = a not in (None, ctypes.c_void_p(-1).value)\n"
        "    say(ctypes.string_at(a, 64).decode('latin1') if ok else '', errno.errorcode.get(ctypes.get_errno(), '?'))\n"
        "attempt('msgget', SHM_KEY, 0); attempt('semget', SHM_KEY, 0, 0)",
    ),
    Probe(
        "posix-shm", "ipc", "see /dev/shm and /tmp of host and sibling", ("own",),
        "seen = [f'{d}/{n}' for d in ('/dev/shm', '/tmp', '/var/tmp', '/run') for n in os.listdir(d)]\n"
        "say(str(seen) if any('secret' in n or 'sandbox-' in n for n in seen) else '', 'own')",
    ),
    Probe(
        "sysvipc-list", "ipc", "list IPC objects of others", ("own",),
        "rows = [l for n in ('shm', 'msg', 'sem') for l in open(f'/proc/sysvipc/{n}').read().splitlines()[1:]]\n"
        "say(str(rows) if rows else '', 'own')",
    ),
)  # fmt: skip

PROBES = FILES + PROCESSES + MEMORY + DEVICES + PROC + SOCKETS + IPC
