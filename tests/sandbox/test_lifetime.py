"""Nothing outlives its owner: close, crash of the owner, crash of the helper, and collection after both."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import cgroup, gc, process
from sandbox.errors import SandboxError, SandboxLostError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits, SandboxSpec

_T = 60.0

_OWNER = """
import asyncio, sys
from pathlib import Path
from sandbox.mini import MiniBackend
from sandbox.types import SandboxSpec

async def main():
    backend = MiniBackend(state_dir=Path(sys.argv[1]))
    await backend.__aenter__()
    for _ in range(3):
        sandbox = await backend.open(SandboxSpec())
        await sandbox.exec(["sh", "-c", "(setsid sleep %s &) ; sleep %s &"], timeout_s=5)
        session = await sandbox.open_session()
        asyncio.ensure_future(session.run("sleep %s", timeout_s=1000))
    await asyncio.sleep(0.2)
    print(backend.helper_pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def _sleepers(mark: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _cgroups(pid: int) -> list[Path]:
    """Directories of the owner with this pid."""
    parents = {Path(place) for places in cgroup.candidate_directories().values() for place in places}
    return [path for parent in parents for path in parent.glob(f"{cgroup.PREFIX}{pid}-*")]


def _wait(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _start_owner(state_dir: Path) -> tuple[subprocess.Popen[str], int, str]:
    mark = str(100_000 + os.getpid() * 10 + time.monotonic_ns() % 10)
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER.replace("%s", mark), str(state_dir)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout
    return owner, int(owner.stdout.readline()), mark


def _assert_nothing_left(state_dir: Path, owner: int, helper: int, mark: str) -> None:
    assert _wait(lambda: process.start_time(helper) is None)
    assert _wait(lambda: not _sleepers(mark))
    assert _cgroups(owner) == []
    assert list(state_dir.iterdir()) == []


async def test_close_leaves_nothing(backend: MiniBackend) -> None:
    mark = str(200_000 + os.getpid())
    sandbox = await backend.open(SandboxSpec())
    daemons = (
        f"(setsid sh -c '(sleep {mark} &)' &); nohup sleep {mark} & trap '' TERM HUP INT; sleep {mark} &"
    )
    await sandbox.exec(["bash", "-c", daemons], timeout_s=_T)
    assert _wait(lambda: len(_sleepers(mark)) == 3)
    await sandbox.close()
    assert _sleepers(mark) == []
    assert all(list(path.glob("minisandbox*")) == [] for path in _cgroups(os.getpid()))


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_owner_leaves_nothing(state_dir: Path, signal_number: signal.Signals) -> None:
    owner, helper, mark = _start_owner(state_dir)
    assert len(_sleepers(mark)) == 9
    owner.send_signal(signal_number)
    owner.wait()
    assert _wait(lambda: process.start_time(helper) is None)
    assert _wait(lambda: not _sleepers(mark))
    assert _cgroups(owner.pid) == []
    gc.collect(state_dir)
    _assert_nothing_left(state_dir, owner.pid, helper, mark)


@pytest.mark.usefixtures("usable")
def test_death_of_owner_and_helper_is_collected(state_dir: Path) -> None:
    owner, helper, mark = _start_owner(state_dir)
    os.kill(helper, signal.SIGSTOP)  # it cannot clean up
    owner.kill()
    owner.wait()
    assert process.start_time(helper) is not None
    collected = gc.collect(state_dir)
    assert collected.processes >= 1
    assert collected.directories == 1
    _assert_nothing_left(state_dir, owner.pid, helper, mark)
    assert gc.collect(state_dir) == gc.Collected(0, 0, 0)


async def test_collection_spares_the_living(backend: MiniBackend, state_dir: Path) -> None:
    async with await backend.open(SandboxSpec()) as sandbox:
        assert gc.collect(state_dir) == gc.Collected(0, 0, 0)
        assert (await sandbox.exec(["echo", "on"], timeout_s=_T)).output == b"on\n"


async def test_death_of_the_helper_is_an_error_not_a_hang(state_dir: Path, usable: None) -> None:
    async with MiniBackend(state_dir=state_dir) as backend:
        sandbox = await backend.open(SandboxSpec())
        session = await sandbox.open_session()
        running = asyncio.ensure_future(session.run("sleep 1000", timeout_s=1000))
        await asyncio.sleep(0.1)
        first = backend.helper_pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxLostError):
            await asyncio.wait_for(running, 10)
        with pytest.raises(SandboxLostError):
            await sandbox.exec(["true"], timeout_s=_T)
        # Its sandboxes are lost, the backend is not.
        several = await asyncio.gather(*(backend.open(SandboxSpec()) for _ in range(3)))
        for each in several:
            assert (await each.exec(["echo", "on"], timeout_s=_T)).output == b"on\n"
        assert backend.helper_pid != first
        await sandbox.close()
    assert _cgroups(os.getpid()) == []
    assert list(state_dir.iterdir()) == []


async def test_death_of_one_sandbox_leaves_the_others(backend: MiniBackend) -> None:
    first = await backend.open(SandboxSpec())
    second = await backend.open(SandboxSpec())
    first.end("for the test")
    for _ in range(100):
        try:
            await first.exec(["true"], timeout_s=5)
        except SandboxLostError as error:
            assert str(error) == "for the test"
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the sandbox outlived its end")
    await first.close()
    assert (await second.exec(["echo", "on"], timeout_s=_T)).output == b"on\n"
    await second.close()


async def test_128_at_once(backend: MiniBackend, capsys: pytest.CaptureFixture[str]) -> None:
    count = 128
    barrier = asyncio.Barrier(count)
    mark = str(300_000 + os.getpid())
    spec = SandboxSpec(limits=Limits(memory_bytes=128 * MIB, disk_bytes=32 * MIB))

    async def one(number: int) -> bytes:
        async with await backend.open(spec) as sandbox:
            session = await sandbox.open_session()
            await session.run(f"cd /tmp; n={number}; setsid sleep {mark} & echo $n > f", timeout_s=_T)
            await barrier.wait()
            await sandbox.write_file("/g", str(number).encode())
            result = await session.run("cat f /g; pwd; ls /proc | grep -c '^[0-9]'", timeout_s=_T)
            return result.output

    started = time.monotonic()
    outputs = await asyncio.gather(*(one(number) for number in range(count)))
    took = time.monotonic() - started
    with capsys.disabled():
        print(f"\n128 sandboxes opened, used and closed at once: {took:.2f} s on {os.cpu_count()} cores")
    for number, output in enumerate(outputs):
        assert output.startswith(f"{number}\n{number}/tmp\n".encode()), output
    assert _sleepers(mark) == []
    assert all(list(path.glob("minisandbox*")) == [] for path in _cgroups(os.getpid()))


async def test_bad_layer_is_a_start_error(backend: MiniBackend) -> None:
    with pytest.raises(SandboxError, match="no-such"):
        await backend.open(SandboxSpec(layers=(Path("/no-such-layer"),)))
    async with await backend.open(SandboxSpec()) as sandbox:
        assert (await sandbox.exec(["echo", "on"], timeout_s=_T)).output == b"on\n"


async def test_cancelled_open_leaves_nothing(backend: MiniBackend) -> None:
    tasks = [asyncio.ensure_future(backend.open(SandboxSpec())) for _ in range(8)]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(result, BaseException):
            await result.close()
    assert all(list(path.glob("[0-9]*")) == [] for path in _cgroups(os.getpid()))


async def test_two_backends_in_one_process(state_dir: Path, usable: None) -> None:
    async with MiniBackend(state_dir=state_dir) as one, MiniBackend(state_dir=state_dir) as two:
        async with await one.open(SandboxSpec()) as first, await two.open(SandboxSpec()) as second:
            results = await asyncio.gather(
                first.exec(["id", "-u"], timeout_s=_T), second.exec(["id", "-u"], timeout_s=_T)
            )
            assert [result.output for result in results] == [b"0\n", b"0\n"]
    assert list(state_dir.iterdir()) == []


def test_a_tree_is_removed_while_a_dead_owners_program_still_writes_in_it(tmp_path: Path) -> None:
    """As git(1) does for a moment, whose owner was killed in the middle of a diff."""
    tree = tmp_path / "tree"
    (tree / "objects").mkdir(parents=True)
    writes = "i=0; while [ $i -lt 3000 ] && echo x > objects/$i; do i=$((i+1)); [ -d d$i ] || mkdir d$i; done"
    with subprocess.Popen(["sh", "-c", writes], cwd=tree, stderr=subprocess.DEVNULL):
        while not (tree / "objects" / "50").exists():
            time.sleep(0.001)
        gc.remove_tree(tree)
        assert not tree.exists()
