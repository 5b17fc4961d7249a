"""Forks: the files of a sandbox at one moment, in another one."""

import asyncio
from pathlib import Path

import pytest

from sandbox.errors import SandboxLostError, SandboxStartError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits, SandboxSpec

_T = 60.0
_CHANGE = """
set -e
cd /testbed
echo more >> a.txt; rm b.txt; rm -r sub; mkdir sub; echo new > sub/new; chmod 4750 c.sh; touch -d @1000 c.sh
ln -s /etc/passwd link; ln a.txt twin; mkfifo fifo
truncate -s 1T sparse; printf x | dd of=sparse bs=1 seek=5 conv=notrunc 2>/dev/null
mkdir -p deep/$(printf 'd%.0s' {1..200}); printf '\\xff\\n' > $'odd\nname'; chmod 000 closed; rm /etc/hosts
echo tmp > /tmp/t; echo shm > /dev/shm/s
"""
_LOOK = """
cd /testbed; cat a.txt; ls b.txt sub 2>&1; stat -c '%a %Y' c.sh; readlink link
cmp a.txt twin && echo same
test -p fifo && stat -c '%s %b' sparse && cat $'odd\nname' | od -An -c; stat -c %a closed; ls /etc/hosts 2>&1
cat /tmp/t /dev/shm/s
"""


@pytest.fixture
def spec(tmp_path: Path) -> SandboxSpec:
    root = tmp_path / "layer" / "testbed"
    (root / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "c.sh", "closed", "sub/old"):
        (root / name).write_text(name + "\n")
    for path in (tmp_path, tmp_path / "layer"):
        path.chmod(0o755)
    return SandboxSpec(layers=(tmp_path / "layer",), workdir="/testbed")


async def test_a_fork_has_the_same_files(backend: MiniBackend, spec: SandboxSpec) -> None:
    async with await backend.open(spec) as origin:
        changed = await origin.exec(["bash", "-c", _CHANGE], timeout_s=_T)
        assert changed.exit_status == 0, changed.text
        seen = (await origin.exec(["bash", "-c", _LOOK], timeout_s=_T)).text
        assert "sparse" not in seen and "1099511627776" in seen and "4750 1000" in seen and "new" in seen
        async with await origin.fork() as fork:
            assert (await fork.exec(["bash", "-c", _LOOK], timeout_s=_T)).text == seen
            assert await fork.diff("/testbed") == await origin.diff("/testbed")


async def test_neither_sees_the_other(backend: MiniBackend, spec: SandboxSpec) -> None:
    async with await backend.open(spec) as origin, await origin.fork() as fork, await fork.fork() as second:
        for name, sandbox in (("origin", origin), ("fork", fork), ("second", second)):
            await sandbox.exec(["sh", "-c", f"echo {name} > a.txt"], timeout_s=_T)
        for name, sandbox in (("origin", origin), ("fork", fork), ("second", second)):
            assert await sandbox.read_file("/testbed/a.txt") == f"{name}\n".encode()
        await origin.close()
        assert await second.read_file("/testbed/a.txt") == b"second\n"


async def test_writers_stand_still_and_go_on(backend: MiniBackend, spec: SandboxSpec) -> None:
    """Two files that are always written one after the other never differ by more than that in the copy."""
    async with await backend.open(spec) as origin:
        session = await origin.open_session()
        await session.run("(i=0; while :; do i=$((i+1)); echo $i > x; echo $i > y; done) &", timeout_s=_T)
        for _ in range(5):
            async with await origin.fork() as fork:
                both = (await fork.exec(["cat", "x", "y"], timeout_s=_T)).text.split()
                if len(both) == 2:
                    assert int(both[0]) - int(both[1]) in (0, 1)
        before = int(await origin.read_file("/testbed/y") or b"0")
        await asyncio.sleep(0.3)
        assert int(await origin.read_file("/testbed/y") or b"1000000") > before


async def test_a_fork_that_does_not_fit(backend: MiniBackend, spec: SandboxSpec) -> None:
    limits = Limits(memory_bytes=64 * MIB, disk_bytes=8 * MIB)
    async with await backend.open(
        SandboxSpec(layers=spec.layers, limits=limits, workdir="/testbed")
    ) as origin:
        await origin.exec(["sh", "-c", "head -c 100M /dev/zero > full"], timeout_s=_T)
        async with await origin.fork() as fork:
            assert len(await fork.read_file("/testbed/full")) <= 8 * MIB
        await origin.close()
        with pytest.raises((SandboxLostError, SandboxStartError)):
            await origin.fork()


async def test_disk_uppers_fork_too(backend: MiniBackend, spec: SandboxSpec) -> None:
    disk = SandboxSpec(layers=spec.layers, workdir="/testbed", upper="disk")
    async with await backend.open(disk) as origin:
        await origin.exec(["sh", "-c", "echo changed > a.txt; rm b.txt"], timeout_s=_T)
        async with await origin.fork() as fork:
            assert await fork.read_file("/testbed/a.txt") == b"changed\n"
            assert await fork.diff("/testbed") == await origin.diff("/testbed")
