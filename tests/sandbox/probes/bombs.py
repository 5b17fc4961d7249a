"""Probes that take what is shared, judged by a neighbour and by the host: bombs of every kind."""

# ruff: noqa: E501 - scripts as data

import asyncio
import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandbox.errors import SandboxError, SandboxLostError
from sandbox.types import MIB, Limits, Sandbox
from tests.sandbox.probes.model import Probe, Verdict, refused, succeeded
from tests.sandbox.probes.world import World

_LIBC = ctypes.CDLL(None, use_errno=True)
_SMALL = Limits(memory_bytes=96 * MIB, disk_bytes=24 * MIB, pids=64)
_SLOW_S = 5.0
"""A neighbour's command takes milliseconds; under a bomb and on a busy machine never this long."""


def _host_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable")


async def _file_calls(sibling: Sandbox) -> str:
    """What is wrong with the owner's file calls there, or ''."""
    data = bytes(range(256)) * 2000
    await sibling.write_file("/tmp/calls", data)
    if await sibling.read_file("/tmp/calls") != data:
        return "the sibling's file holds something else"
    for path, error in (
        ("/tmp/none", FileNotFoundError),
        ("/tmp", IsADirectoryError),
        ("/dev/null", ValueError),
    ):
        with contextlib.suppress(error):
            await sibling.read_file(path)
            return f"reading {path} of the sibling raises no {error.__name__}"
    with contextlib.suppress(ValueError):
        await sibling.read_file("/tmp/calls", limit_bytes=1000)
        return "the limit of a read of the sibling does not hold"
    return ""


async def _neighbour(world: World) -> Verdict | None:
    """A success of the attack if the sibling no longer works as before."""
    started = time.monotonic()
    try:
        result = await world.sibling.exec(["sh", "-c", "echo x > /tmp/n && cat /tmp/n"], timeout_s=30)
        took = time.monotonic() - started
        if result.output != b"x\n" or took > _SLOW_S:
            return succeeded(f"the sibling: {result.output!r} after {took:.1f} s")
        if trouble := await _file_calls(world.sibling):
            return succeeded(trouble)
        async with asyncio.timeout(30):
            async with await world.open() as fresh:
                if (await fresh.exec(["echo", "on"], timeout_s=30)).output != b"on\n":
                    return succeeded("a new sandbox does not work")
    except SandboxError as error:
        return succeeded(f"the sibling, or a new sandbox: {error}")
    return None


def bomb(
    script: str, *, limits: Limits = _SMALL, host: Callable[[], str] | None = None, growth_bytes: int = 0
) -> Callable[[World], Awaitable[Verdict]]:
    """An attack that runs `script` in a sandbox of its own until it prints READY or dies.

    `host` says what no longer works outside, or ''. `growth_bytes` is how much memory the machine may lose
    at most beyond the sandbox's limit."""

    async def attack(world: World) -> Verdict:
        if "limits" in world.backend.lacks:
            raise RuntimeError("nothing here limits root's processes: a bomb would take the machine")
        before = _host_memory_bytes()
        async with await world.open(limits=limits) as sandbox:
            task = asyncio.ensure_future(
                world.run(script + "\nprint('READY', flush=True); time.sleep(60)", sandbox, timeout_s=4)
            )
            trouble: Verdict | None = None
            broken, lost = "", 0
            # The bomb needs time to grow: look again and again while it lives.
            while not task.done() and not trouble and not broken:
                await asyncio.sleep(0.3)
                trouble = await _neighbour(world)
                lost = max(lost, before - _host_memory_bytes())
                broken = host() if host else ""
            try:
                result = await task
            except SandboxLostError as error:
                # All of it ended rather than one process: no harm to others, if it is told why.
                told = "memory" in str(error) and not trouble and not broken
                return (
                    refused(f"ended: {error}") if told else succeeded(f"lost: {error}; {trouble}; {broken}")
                )
            if trouble:
                return trouble
            if broken:
                return succeeded(broken)
            if growth_bytes and lost > limits.memory_bytes + growth_bytes:
                return succeeded(
                    f"the machine lost {lost >> 20} MiB under a limit of {limits.memory_bytes >> 20}"
                )
            if (await sandbox.exec(["echo", "on"], timeout_s=30)).output != b"on\n":
                return succeeded("the sandbox does not work any more")
            end = "timeout" if result.timed_out else f"status {result.exit_status}"
            return refused(f"{end}, neighbour and host unharmed")

    return attack


def _inotify() -> str:
    fd = _LIBC.inotify_init()
    if fd < 0:
        return "the host has no inotify instance left"
    os.close(fd)
    return ""


def _timer() -> str:
    timer = ctypes.c_void_p()
    if _LIBC.timer_create(0, None, ctypes.byref(timer)) != 0:
        return "the host cannot make a timer"
    _LIBC.timer_delete(timer)
    return ""


def _queue() -> str:
    name = f"/probe{os.getpid()}".encode()
    fd = _LIBC.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)
    if fd < 0:
        return "the host cannot make a message queue"
    _LIBC.mq_unlink(name)
    os.close(fd)
    return ""


def _terminal() -> str:
    try:
        for fd in os.openpty():
            os.close(fd)
    except OSError as error:
        return f"the host cannot open a terminal: {error}"
    return ""


_FILL = "b = b'x' * (1 << 20)\nkeep = []\n"
_TAKE_ALL = "keep = []\ntry:\n    while True: keep.append({})\nexcept OSError as e: print(len(keep), e)\n"
_TCP = """
import resource
l = socket.create_server(('127.0.0.1', 0), backlog=4096)
b = b'x' * (1 << 20); keep = []; total = 0
for _ in range(400):
    s = socket.create_connection(l.getsockname()); c = l.accept()[0]
    for e in (s, c):
        e.setblocking(False); keep.append(e)
        with contextlib.suppress(BlockingIOError):
            while True: total += e.send(b)
print(total)
"""

# ruff: noqa: E501
_IN_FLIGHT = """
keep = []; n = 0; f = os.open('/dev/null', os.O_RDONLY)
try:
    while True:
        a, b = socket.socketpair(); keep.append((a, b))
        for _ in range(10):
            a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f] * 250))]); n += 250
except OSError as e: print(n, e)
"""


async def _disk_upper(world: World) -> Verdict:
    """Files without a name, or below paths too long to name, on a disk upper of 16 MiB."""
    limits = Limits(memory_bytes=256 * MIB, disk_bytes=16 * MIB)
    place = os.statvfs(world.directory)
    before = place.f_bavail * place.f_frsize
    script = """
import threading
os.mkdir('/deep'); os.chdir('/deep')
for _ in range(30):
    os.mkdir('d' * 200); os.chdir('d' * 200)
b = b'x' * (1 << 20); keep = []
for n in range(4):
    f = open(f'hidden{n}', 'wb', 0); keep.append(f)
    if n % 2: os.unlink(f'hidden{n}')
for _ in range(60):
    for f in keep:
        with contextlib.suppress(OSError): f.write(b)
    time.sleep(0.05)
time.sleep(2)
"""
    try:
        async with await world.open(limits=limits, upper="disk") as sandbox:
            await world.run(script, sandbox, timeout_s=20)
            place = os.statvfs(world.directory)
            lost = before - place.f_bavail * place.f_frsize
    except SandboxError as error:
        return refused(f"ended: {error}"[:100])
    if lost > 100 * MIB:
        return succeeded(f"{lost >> 20} MiB of the host's disk under a limit of 16")
    return refused("bounded")


async def _output_flood(world: World) -> Verdict:
    """Gigabytes to stdout from two sandboxes while a third works; the owner keeps only the cap."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with await world.open() as one, await world.open() as two:
        flood = ["sh", "-c", "yes & yes >&2 & cat /dev/zero & wait"]
        tasks = [asyncio.ensure_future(each.exec(flood, timeout_s=3)) for each in (one, two)]
        slowest = 0.0
        while not all(task.done() for task in tasks):
            started = time.monotonic()
            if (await world.sibling.exec(["echo", "x"], timeout_s=30)).output != b"x\n":
                return succeeded("wrong output of the sibling")
            slowest = max(slowest, time.monotonic() - started)
        results = await asyncio.gather(*tasks)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) >> 10
    if grown > 64 or slowest > _SLOW_S or any(len(r.output) > 2 * MIB for r in results):
        return succeeded(f"owner grew {grown} MiB, sibling waited {slowest:.2f} s")
    return refused(f"owner grew {grown} MiB, sibling's slowest echo {slowest * 1000:.0f} ms")


async def _report_flood(world: World) -> Verdict:
    """Programs of a session write for ever to the pipes on which its shell reports."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with await world.open() as sandbox:
        session = await sandbox.open_session()
        flood = "for f in /proc/$$/fd/*; do timeout 1 tr '\\0' x < /dev/zero > $f & done 2>/dev/null; sleep 2"
        await session.run(flood, timeout_s=4)
        result = await session.run("echo on", timeout_s=20)
        fresh = await sandbox.open_session()
        again = await fresh.run("echo on", timeout_s=20)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) >> 10
    if grown > 64 or again.output != b"on\n":
        return succeeded(f"owner grew {grown} MiB; next session {again}")
    return refused(f"owner grew {grown} MiB; own session said {result.output[:20]!r}, the next worked")


async def _daemons(world: World) -> Verdict:
    """Double forks, new sessions, ignored signals, stopped and traced processes after close."""
    mark = f"{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with await world.open() as sandbox:
        script = f"""
for kind in range(6):
    if os.fork(): continue
    os.setsid()
    for s in range(1, 65):
        with contextlib.suppress(OSError, ValueError): signal.signal(s, signal.SIG_IGN)
    if os.fork(): os._exit(0)
    if kind == 1: os.kill(os.getpid(), signal.SIGSTOP)
    if kind == 2: LIBC.ptrace(0, 0, None, None)
    if kind == 3 and os.fork() == 0:
        os.execvp('sh', ['sh', '-c', 'while :; do sleep 0.01; done', '{mark}'])
    os.execvp('sleep', ['sleep', '{mark}'])
time.sleep(0.5); print('READY')
"""
        await world.run(script, sandbox, timeout_s=10)
    left = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if mark.encode() in _cmdline(path).split(b"\0")
    ]
    return succeeded(f"left after close: {left}") if left else refused("none left")


def _cmdline(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def _spawn_race(world: World) -> Verdict:
    """Catch a new process before its exec, while it still shares the first process's memory."""
    script = """
caught = set(); seen = set(); deadline = time.monotonic() + 4
print('READY', flush=True)
while time.monotonic() < deadline:
    for pid in pids():
        if pid == 1: continue
        try:
            for n in os.listdir(f'/proc/{pid}/fd'):
                link = os.readlink(f'/proc/{pid}/fd/{n}'); seen.add(link.split(':')[0])
                if link.startswith('socket:'):
                    caught.add(link)
        except OSError: pass
say(str(caught) if caught else '', 'EACCES or gone')
open('/tmp/race', 'w').write(str(caught)); time.sleep(30)
"""
    async with await world.open() as sandbox:
        async with world.background(script, sandbox):
            for _ in range(150):
                await sandbox.exec(["true"], timeout_s=20)
            for _ in range(100):
                if (await sandbox.exec(["test", "-s", "/tmp/race"], timeout_s=20)).exit_status == 0:
                    break
                await asyncio.sleep(0.1)
            caught = await sandbox.read_file("/tmp/race")
    return succeeded(f"control socket seen: {caught!r}") if caught != b"set()" else refused("never seen")


def _bomb(identifier: str, tries: str, attack: Callable[[World], Awaitable[Verdict]]) -> Probe:
    return Probe(identifier, "bombs", tries, attack=attack)


_FORKS = "signal.signal(2, signal.SIG_IGN)\nfor _ in range(10 ** 9):\n    try: os.fork()\n    except OSError: pass\n"

PROBES = (
    _bomb("fork-bomb", "fork without end", bomb(_FORKS)),
    _bomb("thread-bomb", "threads without end", bomb(
        "import threading\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "    except RuntimeError: break")),
    _bomb("memory-bomb", "anonymous memory without end", bomb(
        _FILL + "while True: keep.append(bytearray(b))", growth_bytes=256 * MIB)),
    _bomb("tmpfs-bomb", "fill the root, /tmp, /dev/shm", bomb(
        _FILL + "for p in ('/f', '/tmp/f', '/dev/shm/f', '/var/tmp/f'):\n    with contextlib.suppress(OSError):\n"
        "        f = open(p, 'wb', 0)\n        while True: f.write(b)", growth_bytes=256 * MIB)),
    _bomb("memfd-bomb", "memory files in many small processes", bomb(
        _FILL + "for _ in range(40):\n    if os.fork() == 0: break\nwhile True:\n"
        "    f = os.memfd_create('x'); keep.append(f)\n    for _ in range(8): os.write(f, b)", growth_bytes=256 * MIB)),
    _bomb("shm-bomb", "System V shared memory without end", bomb(
        "LIBC.shmat.restype = ctypes.c_void_p\nwhile True:\n    i, e = call('shmget', 0, 8 << 20, 0o1600)\n    if e: break\n"
        "    a = LIBC.shmat(i, None, 0)\n    ctypes.memset(a, 1, 8 << 20)", growth_bytes=256 * MIB)),
    _bomb("page-cache-bomb", "read and map everything in /usr", bomb(
        "for d, _, fs in os.walk('/usr/lib'):\n    for f in fs:\n"
        "        with contextlib.suppress(OSError): read(os.path.join(d, f), 1 << 22)")),
    _bomb("tcp-buffers", "kernel memory in TCP socket buffers", bomb(_TCP, growth_bytes=256 * MIB)),
    _bomb("unix-buffers", "kernel memory in unix socket buffers and pipes", bomb(
        _FILL + "try:\n    while True:\n        a, c = socket.socketpair(); a.setblocking(False); keep += [a, c]\n"
        "        with contextlib.suppress(BlockingIOError):\n            while True: a.send(b[:65536])\n"
        "        r, w = os.pipe(); os.set_blocking(w, False)\n"
        "        with contextlib.suppress(OSError): fcntl.fcntl(w, 1031, 1 << 20)\n"
        "        with contextlib.suppress(BlockingIOError):\n            while True: os.write(w, b)\n"
        "except OSError as e: print(e)", growth_bytes=256 * MIB)),
    _bomb("inode-bomb", "empty files and directories without end", bomb(
        "n = 0\ntry:\n    while True:\n        open(f'/tmp/f{n}', 'w').close(); n += 1\nexcept OSError as e: print(n, e)",
        growth_bytes=256 * MIB)),
    _bomb("descriptor-bomb", "open files without end, in many processes", bomb(
        "for _ in range(20):\n    if os.fork() == 0: break\n" + _TAKE_ALL.format("os.open('/dev/null', 0)"))),
    _bomb("inotify-bomb", "take all inotify instances", bomb(
        "n = 0\nwhile LIBC.inotify_init() >= 0: n += 1\nprint(n)", host=_inotify)),
    _bomb("signal-bomb", "take all queued signals", bomb(
        "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\nn = 0\n"
        "while LIBC.sigqueue(os.getpid(), 40, None) == 0: n += 1\nprint(n)", host=_timer)),
    _bomb("queue-bomb", "take all POSIX message queue bytes", bomb(
        "n = 0\nwhile LIBC.mq_open(b'/q%d' % n, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0: n += 1\nprint(n)", host=_queue)),
    _bomb("terminal-bomb", "take all pseudo-terminals", bomb(
        _TAKE_ALL.format("os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)"), host=_terminal,
        limits=Limits(memory_bytes=512 * MIB, disk_bytes=24 * MIB))),
    _bomb("in-flight-bomb", "take all descriptors in flight (SCM_RIGHTS)", bomb(_IN_FLIGHT)),
    _bomb("disk-upper-hidden", "hide what fills a disk upper from its watch", _disk_upper),
    _bomb("output-bomb", "write gigabytes to stdout and stderr", _output_flood),
    _bomb("report-bomb", "write gigabytes to the pipes a session reports on", _report_flood),
    Probe("daemons", "processes", "outlive close: double forks, ignored signals, stopped, traced", attack=_daemons),
    Probe("spawn-race", "processes", "catch a process between clone and exec for its sockets", attack=_spawn_race),
)  # fmt: skip
