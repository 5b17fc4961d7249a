"""Attacks on the Landlock mode: with a user id per sandbox (root), and with the owner's own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox import conformance, landlock, relocate, weak
from sandbox.errors import SandboxLostError, SandboxStartError
from sandbox.types import MIB, BindMount, Limits, SandboxSpec
from sandbox.weak import LandlockBackend

pytestmark = pytest.mark.skipif(
    landlock.abi() < landlock.SCOPE_ABI, reason="this kernel's Landlock keeps no signals inside"
)
_REPOSITORY = str(Path(weak.__file__).resolve().parents[1])

# The attacker: each attempt says whether it succeeded. argv: JSON of what there is to attack.
_ATTACKS = r"""
import ctypes, json, os, socket, sys
target = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
owner, supervisor, secret = target["owner"], target["supervisor"], target["secret"]
def fails(result):
    return result < 0
def opens(path, flags=os.O_RDONLY):
    os.close(os.open(path, flags, 0o600))
def connect(family, kind, address):
    socket.socket(family, kind).connect(address)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def datagram():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", target["unix"])
def map_shared(name):
    opens("/dev/shm/" + name, os.O_CREAT | os.O_RDWR)
attempts = {
    "inherited descriptor": lambda: None if len(os.listdir("/proc/self/fd")) > 4 else 1 / 0,
    "read a secret": lambda: opens(secret),
    "write a secret": lambda: opens(secret, os.O_WRONLY),
    "truncate": lambda: os.truncate(secret, 0),
    "chmod": lambda: os.chmod(secret, 0o777),
    "times": lambda: os.utime(secret, (0, 0)),
    "attribute": lambda: os.setxattr(secret, "user.x", b"y"),
    "rename away": lambda: os.rename(secret, "stolen"),
    "link in": lambda: os.link(secret, "linked"),
    "link in by descriptor": lambda: os.link(
        f"/proc/self/fd/{os.open(secret, os.O_PATH)}", "l2", follow_symlinks=True
    ),
    "symlink read": lambda: (os.symlink(secret, "ln"), opens("ln")),
    "unlink": lambda: os.unlink(secret),
    "list the directory": lambda: os.listdir(os.path.dirname(secret)),
    "make a file beside": lambda: opens(secret + ".new", os.O_CREAT | os.O_WRONLY),
    "write /tmp": lambda: opens("/tmp/minisandbox-was-here", os.O_CREAT | os.O_WRONLY),
    "write /var/tmp": lambda: opens("/var/tmp/minisandbox-was-here", os.O_CREAT | os.O_WRONLY),
    "write the sibling": lambda: opens(target["sibling"] + "/x", os.O_CREAT | os.O_WRONLY),
    "list the sibling": lambda: os.listdir(target["sibling"]),
    "write the layer": lambda: opens(target["layer"] + "/testbed/a.py", os.O_WRONLY),
    "chmod the layer": lambda: os.chmod(target["layer"] + "/testbed/a.py", 0o777),
    "write the program's bind": lambda: opens(target["bind"] + "/new", os.O_CREAT | os.O_WRONLY),
    "chmod the bind by descriptor": lambda: os.fchmod(os.open(target["bind"] + "/tool", os.O_RDONLY), 0o777),
    "owner's environment": lambda: opens(f"/proc/{owner}/environ"),
    "owner's memory": lambda: opens(f"/proc/{owner}/mem", os.O_RDWR),
    "owner's root": lambda: os.listdir(f"/proc/{owner}/root/"),
    "owner's descriptors": lambda: os.readlink(f"/proc/{owner}/fd/0"),
    "owner's working directory": lambda: os.listdir(f"/proc/{owner}/cwd/"),
    "supervisor's memory": lambda: opens(f"/proc/{supervisor}/mem", os.O_RDWR),
    "signal the owner": lambda: os.kill(owner, 0),
    "signal the supervisor": lambda: os.kill(supervisor, 9),
    "signal by thread": lambda: call(234 if os.uname().machine == "x86_64" else 131, owner, owner, 0),
    "ptrace": lambda: call(101 if os.uname().machine == "x86_64" else 117, 16, owner, 0, 0),
    "limit the owner": lambda: __import__("resource").prlimit(owner, 7, (0, 0)),
    "slow the owner": lambda: os.setpriority(os.PRIO_PROCESS, owner, 19),
    "pin the owner": lambda: os.sched_setaffinity(owner, {0}),
    "its descriptor": lambda: call(438, os.pidfd_open(owner), 0, 0),
    "tcp": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", target["port"])),
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "raw netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "named socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, target["unix"]),
    "abstract socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, target["abstract"]),
    "datagram from a pair": datagram,
    "shared memory": lambda: map_shared("minisandbox-was-here"),
    "system v shared memory": lambda: call(29 if os.uname().machine == "x86_64" else 194, 77, 4096, 0o1777),
    "namespace": lambda: os.unshare(os.CLONE_NEWUSER) if hasattr(os, "unshare") else call(272, 0x10000000),
    "mount": lambda: call(165 if os.uname().machine == "x86_64" else 40, b"x", b"/mnt", b"tmpfs", 0, None),
    "io_uring": lambda: call(425, 8, ctypes.create_string_buffer(120)),
    "chroot": lambda: os.chroot("."),
    "become root": lambda: os.setuid(0) if os.getuid() else os.setgroups([1]),
    "device": lambda: os.mknod("sda", 0o60600, 0x800),
    "kernel setting": lambda: opens("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "own oom score down": lambda: opens("/proc/self/oom_score_adj", os.O_WRONLY),
    "disk device": lambda: [opens("/dev/" + n) for n in ("sda", "vda") if os.path.exists("/dev/" + n)][0],
    "terminal": lambda: opens("/dev/ptmx", os.O_RDWR),
}
won = []
for name, attempt in attempts.items():
    try:
        attempt()
        won.append(name)
    except (OSError, ZeroDivisionError, IndexError, ValueError):
        pass
print(json.dumps([len(attempts), won]))
"""


@pytest.fixture
async def landlocked(state_dir: Path) -> AsyncIterator[LandlockBackend]:
    async with LandlockBackend(state_dir=state_dir) as entered:
        yield entered


async def _attack(state_dir: Path) -> tuple[int, list[str]]:
    """Everything there is to attack belongs to the owner's own user, as it would."""
    home = state_dir / "home"
    for name in ("layer/testbed", "bind"):
        (home / name).mkdir(parents=True)
    secret = home / "secret"
    for path in (secret, home / "layer/testbed/a.py", home / "bind/tool"):
        path.write_text("secret\n")
        path.chmod(0o644)
    state_dir.chmod(0o755)
    unix = str(home / "socket")
    abstract = f"\0minisandbox-test-{os.getpid()}"
    servers = [
        await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0),
        await asyncio.start_unix_server(lambda _r, w: w.close(), unix),
        await asyncio.start_unix_server(lambda _r, w: w.close(), abstract),
    ]
    Path(unix).chmod(0o777)
    async with LandlockBackend(state_dir=state_dir) as backend:
        spec = SandboxSpec(
            layers=(home / "layer",), workdir="/testbed", binds=(BindMount(home / "bind", "/opt/tools"),)
        )
        async with await backend.open(spec) as sandbox, await backend.open(spec) as sibling:
            place = (await sibling.exec(["pwd"], timeout_s=20)).text.strip()
            parents = await sandbox.exec(["sh", "-c", "cut -d' ' -f4 /proc/$PPID/stat"], timeout_s=20)
            target = {
                "owner": os.getpid(), "supervisor": int(parents.output), "secret": str(secret), "unix": unix,
                "abstract": abstract, "port": servers[0].sockets[0].getsockname()[1], "sibling": place,
                "layer": str(home / "layer"), "bind": str(home / "bind"),
            }  # fmt: skip
            result = await sandbox.exec(
                ["/usr/bin/python3", "-c", _ATTACKS, json.dumps(target)], timeout_s=60
            )
            assert result.exit_status == 0, result.text
            count, won = json.loads(result.text.splitlines()[-1])
            # kill -1 last: it may reach the attacker's own sandbox and nothing else.
            with pytest.raises(SandboxLostError):
                await sandbox.exec(["sh", "-c", "trap '' TERM; kill -TERM -1; kill -KILL -1"], timeout_s=20)
            alive = await sibling.exec(["sh", "-c", "cat a.py; echo alive"], timeout_s=20)
            assert alive.output == b"secret\nalive\n"
    for server in servers:
        server.close()
    status = secret.stat()
    assert secret.read_text() == "secret\n" and status.st_mode & 0o777 == 0o644 and status.st_nlink == 1
    return count, won


needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the attacker is Python")


@needs_python
async def test_attacks(state_dir: Path) -> None:
    count, won = await _attack(state_dir)
    assert count >= 50
    assert won == []


# As an owner without any capability, whose user id the sandbox shares.
_SAME_USER = """
import os, sys, tempfile
sys.path.insert(0, sys.argv[1])
from sandbox import syscalls
for capability in range(41):
    syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
syscalls.drop_all_capabilities()
import asyncio, json
from pathlib import Path
from tests.sandbox.test_landlock import _attack
print(json.dumps(asyncio.run(_attack(Path(sys.argv[2])))))
"""


@needs_python
def test_attacks_as_the_owners_user(state_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SAME_USER, _REPOSITORY, str(state_dir)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, won = json.loads(done.stdout)
    assert count >= 50 and won == []


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.name)
async def test_conformance(check: conformance.Check, landlocked: LandlockBackend) -> None:
    if check.lacking(landlocked):
        pytest.skip(f"declared: {check.lacking(landlocked)}")
    await check(landlocked)


async def test_layers_are_copied_and_mapped(landlocked: LandlockBackend, tmp_path: Path) -> None:
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    for layer, text in ((lower, "low"), (upper, "up")):
        (layer / "testbed").mkdir(parents=True)
        (layer / "testbed" / "a.py").write_text(f"{text}\n")
        (layer / "opt/venv/bin").mkdir(parents=True)
    (lower / "testbed" / "b.py").write_text("b\n")
    tool = lower / "opt/venv/bin/tool"
    tool.write_text("#!/opt/venv/bin/sh\necho tool ran\n")
    tool.chmod(0o755)
    (lower / "opt/venv/bin/sh").symlink_to("/bin/sh")
    (lower / "opt/venv/link").symlink_to("/opt/venv/bin/tool")
    spec = SandboxSpec(layers=(upper, lower), workdir="/testbed", env={"PATH": "/opt/venv/bin:/usr/bin:/bin"})
    async with await landlocked.open(spec) as sandbox:
        result = await sandbox.exec(["sh", "-c", "cat a.py b.py; tool; ../opt/venv/link"], timeout_s=20)
        assert result.output == b"up\nb\ntool ran\ntool ran\n"
        assert await sandbox.read_file("/testbed/a.py") == b"up\n"
        await sandbox.write_file("/testbed/new/c.py", b"c\n")
        assert await sandbox.diff("/testbed/") != ""
        await sandbox.exec(["sh", "-c", "echo more >> a.py; rm b.py"], timeout_s=20)
        patch = await sandbox.diff("/testbed")
        assert "+more" in patch and "b/new/c.py" in patch and "deleted file mode" in patch
        assert patch.count("diff --git") == 3
        fork = await sandbox.fork()
        async with fork:
            assert await fork.diff("/testbed") == patch
            assert (await fork.exec(["tool"], timeout_s=20)).output == b"tool ran\n"
            await fork.exec(["rm", "a.py"], timeout_s=20)
        assert await sandbox.diff("/testbed") == patch
    assert (upper / "testbed" / "a.py").read_text() == "up\n" and (lower / "testbed" / "b.py").exists()


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        found += [int(word) for word in path.read_text().split()]
    return found + [each for child in found for each in _children_of(child)]


@pytest.mark.parametrize("victim", ["close", "first", "supervisor"])
async def test_nothing_is_left(victim: str, landlocked: LandlockBackend) -> None:
    """Daemons, whoever is killed."""
    before = set(_children_of(os.getpid()))
    sandbox = await landlocked.open(SandboxSpec())
    script = "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP; sleep 300 & sleep 300' & done; sleep 0.5"
    assert (await sandbox.exec(["sh", "-c", script], timeout_s=20)).exit_status == 0
    mine = [pid for pid in _children_of(os.getpid()) if pid not in before]
    assert len(mine) >= 5
    ids = await sandbox.exec(["sh", "-c", "echo $PPID; cut -d' ' -f4 /proc/$PPID/stat"], timeout_s=20)
    first, supervisor = (int(word) for word in ids.output.split())
    if victim == "close":
        await sandbox.close()
    else:
        os.kill(first if victim == "first" else supervisor, signal.SIGKILL)
    for _ in range(200):
        left = [pid for pid in mine if Path(f"/proc/{pid}").exists() and _state(pid) != "Z"]
        if not left:
            break
        await asyncio.sleep(0.02)
    assert left == []
    with pytest.raises(SandboxLostError):
        await sandbox.exec(["true"], timeout_s=5)
    await sandbox.close()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


@pytest.mark.skipif(os.geteuid() != 0, reason="the process limit is exact with a private id only")
async def test_fork_bomb_and_memory(landlocked: LandlockBackend) -> None:
    limits = Limits(pids=40, memory_bytes=128 * MIB)
    async with await landlocked.open(SandboxSpec(limits=limits)) as sandbox:
        await sandbox.exec(["bash", "-c", "b() { b | b & }; b; b; sleep 9"], timeout_s=1)
        assert (await sandbox.exec(["true"], timeout_s=20)).exit_status == 0
        result = await sandbox.exec(
            ["sh", "-c", "head -c 500M /dev/zero | tail -c 400M | wc -c"], timeout_s=30
        )
        assert result.output != b"%d\n" % (400 << 20)


async def test_disk_limit_ends_it(landlocked: LandlockBackend) -> None:
    async with await landlocked.open(SandboxSpec(limits=Limits(disk_bytes=4 * MIB))) as sandbox:
        with pytest.raises(SandboxLostError, match="disk"):
            await sandbox.exec(["sh", "-c", "head -c 20M /dev/zero > big; sleep 20"], timeout_s=20)


async def test_refuses_what_it_cannot_do(landlocked: LandlockBackend, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"hsqs" + bytes(4096))
    for spec, word in (
        (SandboxSpec(network="host"), "network"),
        (SandboxSpec(allowed_hosts=("example.org",)), "network"),
        (SandboxSpec(layers=(image,)), "unpack"),
        (SandboxSpec(layers=(tmp_path / "missing",)), "missing"),
        (SandboxSpec(binds=(BindMount(tmp_path / "gone", "/opt/x"),)), "gone"),
    ):
        with pytest.raises(SandboxStartError, match=word):
            await landlocked.open(spec)


def test_path_map() -> None:
    paths = relocate.PathMap("/state/7", (("/opt/python", "/home/x/python"),), "/state/3")
    for inside, outside in (
        ("/testbed", "/state/7/testbed"),
        ("/", "/state/7"),
        ("/tmp/../testbed/x", "/state/7/testbed/x"),
        ("/opt/python/bin", "/home/x/python/bin"),
        ("/opt/python2", "/state/7/opt/python2"),
        ("/usr/bin/env", "/usr/bin/env"),
        ("/usrx", "/state/7/usrx"),
        ("/state/7/testbed", "/state/7/testbed"),
        ("/state/3/testbed", "/state/7/testbed"),
    ):
        assert paths.outside(inside) == outside
    assert paths.value("/opt/python/bin:/usr/bin:/testbed") == "/home/x/python/bin:/usr/bin:/state/7/testbed"
    assert paths.value("https://x/y") == "https://x/y"
    assert paths.contents("/a/pyvenv.cfg", b"home = /opt/python/bin\nx = 1\n") == (
        b"home = /home/x/python/bin\nx = 1\n"
    )
    assert paths.contents("/a/x.py", b"p = '/testbed'\n") == b"p = '/testbed'\n"
