"""Sandboxes made ahead: same sandboxes, made sooner; and what each of them is accounted for."""

import asyncio
import os
from pathlib import Path

import pytest

from sandbox import process
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits, SandboxSpec

_T = 60.0


def _children(pid: int) -> set[int]:
    """First processes of the helper's sandboxes: its children in pid namespaces of their own."""
    found = set[int]()
    for path in Path("/proc").glob("[0-9]*"):
        fields = process.stat_fields(path.name)
        if fields and int(fields[1]) == pid and fields[0] != b"Z":
            inside = (path / "ns" / "pid").readlink() != Path("/proc/self/ns/pid").readlink()
            if inside:
                found.add(int(path.name))
    return found


async def _filled(backend: MiniBackend, size: int) -> set[int]:
    for _ in range(200):
        if len(children := _children(backend.helper_pid)) == size:
            return children
        await asyncio.sleep(0.02)
    pytest.fail(f"the pool has {len(_children(backend.helper_pid))} members, not {size}")


@pytest.mark.usefixtures("usable")
async def test_members_are_used_and_replaced(state_dir: Path) -> None:
    async with MiniBackend(state_dir=state_dir, pool_size=3) as backend:
        ready = await _filled(backend, 3)
        limits = Limits(memory_bytes=200 * MIB, pids=37, disk_bytes=5 * MIB, open_files=99)
        async with await backend.open(SandboxSpec(limits=limits, workdir="/made")) as sandbox:
            await _filled(backend, 4)
            assert len(ready & _children(backend.helper_pid)) == 3, "one of them became the sandbox"
            script = "pwd; ulimit -n; df -B1 --output=size / | tail -1"
            seen = (await sandbox.exec(["sh", "-c", script], timeout_s=_T)).text.split()
            assert seen == ["/made", "99", str(5 * MIB)]


@pytest.mark.usefixtures("usable")
async def test_more_than_the_pool_holds(state_dir: Path) -> None:
    async with MiniBackend(state_dir=state_dir, pool_size=2) as backend:
        await _filled(backend, 2)
        sandboxes = await asyncio.gather(*(backend.open(SandboxSpec()) for _ in range(12)))
        for number, sandbox in enumerate(sandboxes):
            result = await sandbox.exec(["echo", str(number)], timeout_s=_T)
            assert result.text == f"{number}\n"


@pytest.mark.usefixtures("usable")
async def test_dead_members_are_not_handed_out(state_dir: Path) -> None:
    async with MiniBackend(state_dir=state_dir, pool_size=3) as backend:
        for pid in await _filled(backend, 3):
            os.kill(pid, 9)
        async with await backend.open(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["echo", "on"], timeout_s=_T)).text == "on\n"
        await _filled(backend, 3)


@pytest.mark.usefixtures("usable")
async def test_the_process_they_are_forked_from_is_replaced(state_dir: Path) -> None:
    async with MiniBackend(state_dir=state_dir, pool_size=1) as backend:
        (member,) = await _filled(backend, 1)
        everyone = {int(path.name) for path in Path("/proc").glob("[0-9]*") if path.is_dir()}
        for pid in everyone:
            fields = process.stat_fields(pid)
            if fields and int(fields[1]) == backend.helper_pid and pid != member:
                os.kill(pid, 9)
        for number in range(3):
            async with await backend.open(SandboxSpec()) as sandbox:
                result = await sandbox.exec(["echo", str(number)], timeout_s=_T)
                assert result.text == f"{number}\n"


@pytest.mark.usefixtures("usable")
async def test_layers_that_come_after_the_pool(state_dir: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    async with MiniBackend(state_dir=state_dir, pool_size=1) as backend:
        for number in range(4):
            await _filled(backend, 1)
            (tmp_path / str(number)).mkdir(mode=0o755)
            (tmp_path / str(number) / "file").write_text(f"{number}\n")
            layers = tuple(tmp_path / str(each) for each in range(number, -1, -1))
            async with await backend.open(SandboxSpec(layers=layers)) as sandbox:
                assert await sandbox.read_file("/file") == f"{number}\n".encode()


async def test_usage(backend: MiniBackend) -> None:
    if "memory" not in backend.facts["controllers"]:
        pytest.skip("no memory cgroup here: usage is None by design")
    async with await backend.open(SandboxSpec(limits=Limits(memory_bytes=256 * MIB))) as sandbox:
        before = await sandbox.usage()
        code = "x = bytearray(50 << 20)\nfor _ in range(3_000_000): pass"
        await sandbox.exec(["/usr/bin/python3", "-c", code], timeout_s=_T)
        await sandbox.exec(["/usr/bin/python3", "-c", "x = bytearray(500 << 20)"], timeout_s=_T)
        after = await sandbox.usage()
    assert before.oom_kills == 0 and after.oom_kills and after.oom_kills >= 1
    assert before.memory_peak_bytes and after.memory_peak_bytes
    assert before.memory_peak_bytes < 30 * MIB and 50 * MIB < after.memory_peak_bytes <= 256 * MIB
    assert before.cpu_s is not None and after.cpu_s is not None and after.cpu_s > before.cpu_s + 0.02
