"""Probes of the calls the owner makes: files read and written, patches, hostile replies, odd layers."""

# ruff: noqa: E501 - scripts as data

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandbox import wire
from sandbox.errors import SandboxError
from sandbox.link import Link
from sandbox.types import MIB, BindMount, Limits
from tests.sandbox.probes.model import Probe, Verdict, refused, succeeded
from tests.sandbox.probes.world import World

_Attack = Callable[[World], Awaitable[Verdict]]
_SWAP = """
os.makedirs('/race/good', exist_ok=True); open('/race/good/f', 'w').write('inside')
print('READY', flush=True)
while True:
    for target in ({targets}):
        with contextlib.suppress(OSError):
            os.symlink(target, '/race/new'); os.rename('/race/new', '/race/link')
"""

# ruff: noqa: E501
_TARGETS = "'/race/good', HOST_DIRECTORY, '/proc/1/root' + HOST_DIRECTORY, '/proc/self/root', '../../../..' + HOST_DIRECTORY"


def _leaked(world: World, data: bytes) -> bool:
    return any(token in data for token in world.tokens)


async def _read_race(world: World) -> Verdict:
    reads = 0
    async with await world.open() as sandbox:
        async with world.background(_SWAP.format(targets=_TARGETS), sandbox):
            for name in ("f", "host-secret", "f/../host-secret", "../.." + str(world.host_file)) * 60:
                try:
                    data = await sandbox.read_file(f"/race/link/{name}")
                except OSError:
                    continue
                reads += 1
                if _leaked(world, data):
                    return succeeded("a host file was read")
    return refused(f"{reads} reads, all inside")


async def _write_race(world: World) -> Verdict:
    written = 0
    async with await world.open() as sandbox:
        async with world.background(_SWAP.format(targets=_TARGETS), sandbox):
            for number in range(150):
                try:
                    await sandbox.write_file(f"/race/link/evil{number % 7}", b"evil")
                    written += 1
                except OSError:
                    continue
    evil = list(world.directory.rglob("evil*"))
    return succeeded(f"written outside: {evil}") if evil else refused(f"{written} writes, all inside")


async def _special_reads(world: World) -> Verdict:
    async with await world.open() as sandbox:
        setup = (
            "mkfifo /f; ln -s /dev/zero /z; ln -s /proc/1/environ /e; ln -s loop /loop; ln -s /dev/stdin /in"
        )
        await sandbox.exec(["sh", "-c", setup], timeout_s=20)
        paths = ["/f", "/z", "/e", "/loop", "/in", "/proc/1/environ", "/proc/self/fd/3", "/proc/self/maps", "/dev/tty",
                 "/proc/self/task/1/environ", "/dev/fd/0", "/proc/thread-self/root/etc/passwd", "", "x", "../x",
                 "/tmp/../../../../" + str(world.host_file), "/x\0y", "/" + "a" * 5000, "/" + "a/" * 3000]  # fmt: skip
        for path in paths:
            started = time.monotonic()
            for call in (sandbox.read_file(path), sandbox.write_file(path, b"x") if "proc" in path else None):
                if call is None:
                    continue
                try:
                    await asyncio.wait_for(call, 10)
                except TimeoutError:
                    return succeeded(f"{path!r} hangs the owner")
                except (OSError, ValueError):
                    continue
                return succeeded(f"{path!r} was taken")
            if time.monotonic() - started > 10:
                return succeeded(f"{path!r} delays the owner")
    return refused(f"{len(paths)} odd paths refused")


async def _patch(world: World, script: str, *, contains: str = "", seconds: float = 60.0) -> Verdict:
    async with await world.open(limits=Limits(memory_bytes=1024 * MIB, disk_bytes=256 * MIB)) as sandbox:
        result = await world.run(script, sandbox, timeout_s=60)
        if result.exit_status != 0:
            return Verdict("broken", result.text[-300:])
        before = len(os.listdir("/proc/self/fd"))
        started = time.monotonic()
        try:
            patch = await asyncio.wait_for(sandbox.diff("/testbed"), seconds)
        except TimeoutError:
            return succeeded("diff does not end")
        except SandboxError as error:
            if contains:
                return succeeded(f"the honest change is lost: {error}"[:200])
            return refused(f"clear error: {error}"[:100])
        except Exception as error:  # noqa: BLE001 - any other error is the finding
            return succeeded(f"diff fails with {type(error).__name__}: {error}"[:200])
        took = time.monotonic() - started
        left = len(os.listdir("/proc/self/fd")) - before
    if _leaked(world, patch.encode()):
        return succeeded("a host file is in the patch")
    if contains not in patch:
        return succeeded("the honest change is missing from the patch")
    return (
        succeeded(f"{left} descriptors left")
        if left > 0
        else refused(f"patch of {len(patch)} bytes in {took:.1f} s")
    )


def _diff(script: str, **options: str) -> _Attack:
    return lambda world: _patch(world, "os.chdir('/testbed')\n" + script, **options)


async def _overlay_attributes(world: World) -> Verdict:
    """Attributes that would make overlayfs follow redirects or hide deletions, seen from the upper layer."""
    script = """
bad = []
os.mkdir('/dir'); open('/dir/f', 'w').close(); open('/layer/file', 'a').close()
for p in ('/dir', '/dir/f', '/layer', '/layer/file', '/testbed'):
    for prefix in ('user.overlay.', 'trusted.overlay.'):
        for name in ('redirect', 'metacopy', 'opaque', 'origin', 'whiteout', 'impure'):
            with contextlib.suppress(OSError): os.setxattr(p, prefix + name, b'y' if name == 'opaque' else b'/layer')
os.unlink('/testbed/a.py'); print(sorted(os.listdir('/layer')), sorted(os.listdir('/testbed')))
"""
    async with await world.open() as sandbox:
        result = await world.run(script, sandbox)
        if b"['file', 'sub'] []" not in result.output:
            return succeeded(f"the merged tree changed: {result.text[-200:]}")
        patch = await sandbox.diff("/testbed")
        honest = "deleted file mode" in patch and _leaked(world, patch.encode()) is False
    return (
        refused("hidden from overlayfs; the patch is honest")
        if honest
        else succeeded(f"the patch lies: {patch!r}")
    )


async def _layer_links(world: World) -> Verdict:
    """A layer whose /opt, /tmp, /dev, /proc, /usr and /etc are links that lead out of the new root."""
    trap = Path(tempfile.mkdtemp(prefix="probe-trap-"))
    trap.chmod(0o777)
    opened = 0
    try:
        for name in ("opt", "tmp", "dev", "proc", "usr", "home", "mnt"):
            for target in (f"/..{trap}", f"/../../..{trap}", str(trap), f"../../../..{trap}"):
                layer = Path(tempfile.mkdtemp(prefix="layer-", dir=world.layer.parent))
                layer.chmod(0o755)
                (layer / name).symlink_to(target)
                binds = (
                    *world.spec.binds,
                    BindMount(world.layer, "/opt/a/b"),
                    BindMount(world.layer, "/mnt/c/d"),
                )
                try:
                    sandbox = await world.backend.open(_spec(world, (layer,), binds))
                    opened += 1
                    await sandbox.close()
                except SandboxError:
                    pass  # refusing such a layer is as good
                finally:
                    shutil.rmtree(layer)
        made = sorted(str(path) for path in trap.rglob("*"))
    finally:
        shutil.rmtree(trap)
    return (
        succeeded(f"made on the host: {made[:4]}")
        if made
        else refused(f"{opened} of 28 layers opened, all inside")
    )


def _spec(world: World, layers: tuple[Path, ...], binds: tuple[BindMount, ...]) -> object:
    from sandbox.types import SandboxSpec

    return SandboxSpec(layers=layers, binds=binds, env=world.spec.env, limits=world.spec.limits)


async def _workdir_link(world: World) -> Verdict:
    trap = Path(tempfile.mkdtemp(prefix="probe-trap-"))
    trap.chmod(0o777)
    layer = Path(tempfile.mkdtemp(prefix="layer-", dir=world.layer.parent))
    layer.chmod(0o755)
    (layer / "w").symlink_to(f"/../../..{trap}")
    try:
        try:
            async with await world.open(layers=(layer,), workdir="/w/deep/er") as sandbox:
                await sandbox.exec(["sh", "-c", "touch /w/deep/er/x /w/y"], timeout_s=20)
        except SandboxError:
            pass  # refusing it is as good
        made = list(trap.rglob("*"))
    finally:
        shutil.rmtree(trap)
        shutil.rmtree(layer)
    return succeeded(f"made on the host: {made}") if made else refused("resolved inside")


async def _hostile_replies(world: World) -> Verdict:
    """What a first process taken over by an attacker might send; the owner must end it, not hang or break."""
    messages: tuple[tuple[bytes, bool], ...] = (
        (b"J{", False), (b"J[1, 2]", False), (b'J"text"', False), (b"Jnull", False), (b"X", False), (b"F", False),
        (b"F", True), (b"J\xff\xfe", False), (b'J{"exit": [1], "status": {}}', False), (b'J{"reply": {}}', False),
        (b'J{"killed": []}', False), (b'J{"ready": 1}', False), (b"J" + b"[" * 50_000, False),
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    problems: list[str] = []
    loop.set_exception_handler(lambda _, context: problems.append(str(context.get("exception"))))
    try:
        for body, with_pipe in messages:
            ours, theirs = wire.pair()
            ended = loop.create_future()
            link = Link(ours, lambda *_: None, lambda done=ended: done.done() or done.set_result(None))
            ancillary: list[tuple[int, int, bytes]] = []
            read_end, write_end = os.pipe()
            if with_pipe:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, read_end.to_bytes(4, "little"))]
            theirs.sendmsg([body], ancillary)
            theirs.close()
            os.close(read_end)
            os.close(write_end)
            try:
                await asyncio.wait_for(ended, 5)
            except TimeoutError:
                problems.append(f"{body[:20]!r} hangs")
            link.close()
    finally:
        loop.set_exception_handler(None)
    return (
        succeeded("; ".join(problems)[:300])
        if problems
        else refused(f"{len(messages)} bad messages end the link")
    )


async def _many_names(world: World) -> Verdict:
    """Names of sandboxes, keys and paths given to owner's calls, with separators and NULs."""
    from sandbox.cache_record import env_path
    from sandbox.errors import CacheError

    taken: list[str] = []
    for key in ("../x", "/etc/passwd", "a/b", "", ".", "..", "a\0b", ".hidden"):
        try:
            env_path(world.directory, key)
            taken.append(key)
        except CacheError:
            continue
    for target in ("relative", "../up", "/proc/evil", "/a\0b", ""):
        try:
            binds = (BindMount(world.layer, target),)
            sandbox = await world.backend.open(_spec(world, (world.layer,), binds))
            seen = await sandbox.exec(["sh", "-c", "cat /proc/self/mountinfo"], timeout_s=20)
            if str(world.directory).encode() + b"/host" in seen.output:
                taken.append(target)
            await sandbox.close()
        except (SandboxError, ValueError, OSError):
            continue
    return succeeded(f"taken: {taken}") if taken else refused("refused or resolved inside")


def _call(identifier: str, tries: str, attack: _Attack) -> Probe:
    return Probe(identifier, "owner's calls", tries, attack=attack)


PROBES = (
    _call("read-race", "swap links under read_file", _read_race),
    _call("write-race", "swap links under write_file", _write_race),
    _call("odd-paths", "FIFOs, devices, /proc, loops, NULs, long names to read_file and write_file", _special_reads),
    _call("diff-links", "links to host files and directories in a patch", _diff(
        "os.symlink(HOST_FILE, 'l'); os.symlink(HOST_DIRECTORY, 'd'); os.unlink('a.py'); os.symlink(HOST_FILE, 'a.py')\n"
        "os.symlink('/proc/self/environ', 'e')", contains="+++ b/l")),
    _call("diff-deep", "3,000 nested directories", _diff(
        "open('b.py', 'w').write('honest')\nfor i in range(3000):\n    os.mkdir('a'); os.chdir('a')")),
    _call("diff-wide", "60,000 files", _diff(
        "for i in range(60000):\n    os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY))")),
    _call("diff-names", "newlines, quotes, bytes that are no text, git's own names", _diff(
        "open('b.py', 'w').write('honest')\n"
        "for n in (b'a\\nb', b'\\xff\\xfe', b'q\"\\\\', b'-rf', b' ', b'M 100644 inline x', b'git~1', b'.GIT', b'GIT~1'):\n"
        "    open(n, 'w').write('x')\n"
        "os.symlink(b'\\xff\\xfe', b'link'); os.mkdir(b'\\xfe'); open(b'\\xfe/x', 'w').write('y')", contains="+honest")),
    _call("diff-odd-files", "FIFOs, sockets, sparse terabytes, no permissions", _diff(
        "open('b.py', 'w').write('honest'); os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('sock')\n"
        "f = open('sparse', 'wb'); f.truncate(1 << 40); open('locked', 'w').write('x'); os.chmod('locked', 0)\n"
        "os.mkdir('closed'); open('closed/x', 'w').write('x'); os.chmod('closed', 0)\n"
        "fd = os.open('b.py', os.O_RDWR); fcntl.flock(fd, fcntl.LOCK_EX)", contains="+honest")),
    _call("diff-git-tricks", "attributes, configuration, hooks and filters in the tree", _diff(
        "os.mkdir('.git'); open('.git/config', 'w').write('[core]\\n\\tfsmonitor = touch /tmp/evil\\n')\n"
        "open('.gitattributes', 'w').write('* filter=evil diff=evil -text\\n'); open('b.py', 'w').write('honest\\n')",
        contains="+honest")),
    _call("overlay-attributes", "redirect, metacopy, opaque, origin attributes of overlayfs", _overlay_attributes),
    _call("layer-links", "layers whose directories are links out of the root", _layer_links),
    _call("workdir-link", "a working directory behind a link out of the root", _workdir_link),
    _call("hostile-replies", "garbage from the first process to the owner", _hostile_replies),
    _call("names", "separators, NULs and .. in keys and bind targets", _many_names),
)  # fmt: skip
