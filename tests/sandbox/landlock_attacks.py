"""Attacks on the Landlock mode from inside, and the conformance suite over it, as whoever runs this.

python landlock_attacks.py attack|conformance    prints JSON
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from sandbox import conformance
from sandbox.errors import SandboxLostError
from sandbox.types import BindMount, SandboxSpec
from sandbox.weak import LandlockBackend

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
    "namespace": lambda: os.unshare(os.CLONE_NEWUSER) if hasattr(os, "unshare") else call(272, 1 << 28),
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


async def attack(state_dir: Path) -> tuple[int, list[str]]:
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
            place = (await sibling.exec(["pwd"], timeout_s=60)).text.strip()
            parents = await sandbox.exec(["sh", "-c", "cut -d' ' -f4 /proc/$PPID/stat"], timeout_s=60)
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
            try:
                await sandbox.exec(["sh", "-c", "trap '' TERM; kill -TERM -1; kill -KILL -1"], timeout_s=60)
            except SandboxLostError:
                pass  # its own first process is one that it may kill
            else:
                won.append("kill everybody, and live on")
            alive = await sibling.exec(["sh", "-c", "cat a.py; echo alive"], timeout_s=60)
            assert alive.output == b"secret\nalive\n"
    for server in servers:
        server.close()
    status = secret.stat()
    assert secret.read_text() == "secret\n" and status.st_mode & 0o777 == 0o644 and status.st_nlink == 1
    return count, won


async def promises(state_dir: Path) -> dict[str, str]:
    """Problem of each check that the mode does not declare as a lack."""
    async with LandlockBackend(state_dir=state_dir) as backend:
        outcomes = await conformance.run_all(backend)
    return {each.name: each.problem for each in outcomes if not each.lacking}


async def _report(what: str, state_dir: Path) -> dict[str, object]:
    who: dict[str, object] = {"uid": os.getuid()}
    if what == "conformance":
        return who | await promises(state_dir)
    count, won = await attack(state_dir)
    return who | {"count": count, "won": won}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="landlock-") as directory:
        sys.stdout.write(json.dumps(asyncio.run(_report(sys.argv[1], Path(directory)))) + "\n")
