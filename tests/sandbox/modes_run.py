"""Run in a process of its own, as root or as an ordinary user: attacks on the layers, conformance in a mode.

python modes_run.py MODE attack|conformance    prints JSON
"""

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from sandbox import conformance
from sandbox.mini import MiniBackend
from sandbox.probe import unusable_reason
from sandbox.types import MIB, Limits, SandboxSpec

_ATTACKS = """
import array, errno, fcntl, json, mmap, os, shutil, socket, struct, sys
tried, done = 0, []

def attempt(what, action):
    global tried
    tried += 1
    try:
        action()
        done.append(what)
    except OSError:
        pass

def flags(path, number):
    fd = os.open(path, os.O_RDONLY)
    value = array.array("i", [0])
    try:
        fcntl.ioctl(fd, 0x80086601, value, True)
        value[0] |= number
        fcntl.ioctl(fd, 0x40086602, value, True)
    finally:
        os.close(fd)

def mapped(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0:4] = b"EVIL"
        view.flush()

def reopened(path):
    with open(path, "rb") as file, open(f"/proc/self/fd/{file.fileno()}", "r+b") as again:
        again.write(b"EVIL")

def written(path, mode):
    with open(path, mode) as file:
        file.write(b"EVIL")

def hole(path):
    fd = os.open(path, os.O_RDWR)
    os.posix_fallocate(fd, 0, 65536)
    os.close(fd)

def deduplicated(path, evil):
    # FIDEDUPERANGE and FICLONE onto the file
    fd, other = os.open(path, os.O_RDWR), os.open(evil, os.O_RDONLY)
    fcntl.ioctl(fd, 0x40049409, other)

for top in ("/alone/tree", "/shared/dir", "/testbed"):
    path = top + "/file"
    attempt(top + " chattr +i", lambda: flags(path, 0x10))
    attempt(top + " chattr +A", lambda: flags(path, 0x80))
    attempt(top + " write", lambda: written(path, "r+b"))
    attempt(top + " append", lambda: written(path, "ab"))
    attempt(top + " mmap", lambda: mapped(path))
    attempt(top + " reopen by fd", lambda: reopened(path))
    attempt(top + " truncate", lambda: os.truncate(path, 1))
    attempt(top + " allocate", lambda: hole(path))
    attempt(top + " clone onto", lambda: deduplicated(path, "/tmp/evil"))
    attempt(top + " chmod", lambda: os.chmod(path, 0o6777))
    attempt(top + " chmod of the directory", lambda: os.chmod(top, 0o777))
    attempt(top + " chown", lambda: os.chown(path, 0, 0))
    attempt(top + " times", lambda: os.utime(path, (1, 1)))
    attempt(top + " attribute", lambda: os.setxattr(path, "user.evil", b"x"))
    attempt(top + " link out and write", lambda: (os.link(path, "/tmp/out"), written("/tmp/out", "r+b")))
    twin = top + "/twin"
    attempt(top + " link beside and write", lambda: (os.link(path, twin), written(twin, "r+b")))
    attempt(top + " link in", lambda: os.link("/tmp/evil", top + "/in"))
    attempt(top + " rename over", lambda: os.rename("/tmp/evil2", path))
    attempt(top + " rename within", lambda: os.rename(top + "/other", path))
    attempt(top + " rename the directory", lambda: os.rename(top + "/sub", top + "/gone"))
    attempt(top + " mkfifo", lambda: os.mkfifo(top + "/fifo"))
    attempt(top + " unlink", lambda: os.unlink(path))
    attempt(top + " through a link", lambda: written(top + "/link", "r+b"))
    attempt(top + " remove", lambda: shutil.rmtree(top))
print(json.dumps([tried, done]))
"""


def make_layers(directory: Path) -> tuple[Path, Path]:
    """Two layers: a tree of the first alone, one that both have, the working directory, a link between."""
    layers = (directory / "upper-layer", directory / "lower-layer")
    for layer, tops in zip(
        layers, (("alone/tree", "shared/dir", "testbed"), ("shared/dir", "below/tree")), strict=True
    ):
        for top in tops:
            (layer / top / "sub").mkdir(parents=True)
            for name in ("file", "other", "sub/deep"):
                (layer / top / name).write_text(f"{top} {name} of {layer.name}\n")
            (layer / top / "link").symlink_to("sub/deep")
    return layers


def state_of(directory: Path) -> str:
    """Digest of everything about every file below but the time of access."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        facts = (
            path,
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_nlink,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        digest.update(repr((facts, os.listxattr(path, follow_symlinks=False))).encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()


async def attack(mode: str) -> dict[str, object]:
    """What was tried and done inside, and whether anything reached the layers, also from a fork."""
    with tempfile.TemporaryDirectory(prefix="modes-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        layers = make_layers(directory)
        before = state_of(directory)
        async with MiniBackend(state_dir=directory.parent / f"{directory.name}-state", mode=mode) as backend:
            for upper in ("tmpfs", "disk"):
                spec = SandboxSpec(
                    layers=layers, workdir="/testbed", upper=upper, limits=Limits(disk_bytes=64 * MIB)
                )
                async with await backend.open(spec) as sandbox, await sandbox.fork() as fork:
                    for each in (sandbox, fork):
                        for evil in ("/tmp/evil", "/tmp/evil2"):
                            await each.write_file(evil, b"EVIL")
                        await each.write_file("/tmp/attack.py", _ATTACKS.encode())
                        done = await each.exec(["python3", "/tmp/attack.py"], timeout_s=30)
                        if done.exit_status != 0:
                            return {"error": done.text}
            facts = dict(backend.facts)
        tried, successes = json.loads(done.text)
        return {
            "tried": tried,
            "done": successes,
            "changed": state_of(directory) != before,
            "mode": facts["mode"],
        }


def _wanted() -> list[conformance.Check]:
    """Checks that how the root is made could break; with `--all` every check. The hostile trees are about how
    files are carried, which is the same in all modes, and take long."""
    if "--all" in sys.argv:
        return list(conformance.CHECKS)
    return [
        check
        for check in conformance.CHECKS
        if {"root", "limits", "network"} & set(check.needs)
        and check.name != "hostile_trees_come_out_harmless"
    ]


async def conform(mode: str) -> dict[str, object]:
    """Outcomes of checks, and what is said to be lacking."""
    async with MiniBackend(mode=mode) as backend:
        outcomes = [await conformance.run_one(check, backend) for check in _wanted()]
    return {
        "results": {each.name: [each.problem, each.lacking] for each in outcomes},
        "lacks": list(backend.lacks),
    }


if __name__ == "__main__":
    reason = unusable_reason()
    action = attack if sys.argv[2] == "attack" else conform
    print(
        json.dumps(
            {"unusable": reason} if reason else asyncio.run(action(sys.argv[1])) | {"uid": os.getuid()}
        )
    )
