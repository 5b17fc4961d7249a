"""Attacks on the Landlock mode: with a user id per sandbox (root), and with the owner's own."""

import asyncio
import json
import os
import shutil
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
from tests.sandbox import landlock_attacks, ordinary_user

pytestmark = pytest.mark.skipif(
    landlock.abi() < landlock.SCOPE_ABI, reason="this kernel's Landlock keeps no signals inside"
)
_REPOSITORY = str(Path(weak.__file__).resolve().parents[1])


@pytest.fixture
async def landlocked(state_dir: Path) -> AsyncIterator[LandlockBackend]:
    async with LandlockBackend(state_dir=state_dir) as entered:
        yield entered


needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the attacker is Python")


@needs_python
async def test_attacks(state_dir: Path) -> None:
    count, won = await landlock_attacks.attack(state_dir)
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
from tests.sandbox.landlock_attacks import attack
print(json.dumps(asyncio.run(attack(Path(sys.argv[2])))))
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


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests here already run as an ordinary user")
@pytest.mark.parametrize("what", [pytest.param("attack", marks=needs_python), "conformance"])
def test_as_an_ordinary_user(what: str) -> None:
    """Whose files are not root's, and who may not change ids."""
    with ordinary_user.home() as target:
        shutil.copy(landlock_attacks.__file__, target / "run.py")
        done = ordinary_user.run(target, str(target / "run.py"), what)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.pop("uid") == ordinary_user.ORDINARY_ID
    if what == "attack":
        assert report["count"] >= 50 and report["won"] == []
    else:
        assert len(report) >= 15 and {name: seen for name, seen in report.items() if seen} == {}


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
