"""Grading that is killed, stopped, or out of memory, disk or time in the middle, in real sandboxes.

Killed from outside, the right fix is graded again and earns 1, or the error reaches the caller; it never
earns a 0. What the judged code does to itself costs it one more grading and then is its 0: no 0 is dropped.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rewards.errors import GraderError
from rewards.grade import grade
from rewards.policy import PatchPolicy
from rewards.retry import grade_with_retry
from rewards.runners import signed
from rewards.types import RewardResult
from sandbox.errors import SandboxError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits, Sandbox, SandboxSpec
from tests.rewards.mini import MINI_SPEC
from tests.rewards.project import CORE_FIXED, FILES, GOLD, edit

pytestmark = pytest.mark.asyncio(loop_scope="function")
SPEC = replace(MINI_SPEC, timeout_s=4.0)
INIT = FILES["shapes/__init__.py"]
RUNNER = b"python\0-m\0pytest\0"


def below(pid: int) -> Iterator[int]:
    """All descendants, parents first."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from below(child)


def runners(helper: int) -> list[int]:
    """The supervisor and its test process, once both are there."""
    found: list[int] = []
    for pid in below(helper):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(RUNNER):
                found.append(pid)
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[1])


async def strike(backend: MiniBackend, victim: str, number: int, delay_s: float) -> None:
    """Sends a signal to one process of the first grading, as soon as there is a test process."""
    while len(found := runners(backend.helper_pid)) < 2:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.002)
    await asyncio.sleep(delay_s)
    pids = {"helper": backend.helper_pid, "supervisor": found[0], "tests": found[1]}
    try:
        pid = parent(found[0]) if victim == "init" else pids[victim]
        os.kill(pid, number)
    except (OSError, IndexError):
        return  # Over already.


async def judged(
    backend: MiniBackend,
    patch: str,
    *layers: SandboxSpec,
    faults: Counter[str] | None = None,
    timeout_s: float = SPEC.timeout_s,
) -> RewardResult:
    """A verdict with one retry; each grading in a sandbox of the next layers, the last ones for the rest."""
    left = list(layers)

    @asynccontextmanager
    async def fresh() -> AsyncIterator[Sandbox]:
        async with await backend.open(left.pop(0) if len(left) > 1 else left[0]) as sandbox:
            yield sandbox

    policy = PatchPolicy(lint=False)
    tests = replace(SPEC, timeout_s=timeout_s)
    return await grade_with_retry(
        fresh, lambda sandbox: grade(tests, patch, sandbox, policy=policy), faults=faults
    )


SLOW = edit("shapes/core.py", CORE_FIXED + "\n\nimport time\ntime.sleep(0.3)\n")
"""The fix, with time to be struck."""


@pytest.mark.parametrize("victim", ["helper", "init", "supervisor", "tests"])
@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in range(1, 8))])
async def test_killed_at_a_random_moment_is_never_a_0(victim: str, turn: int, layers: SandboxSpec) -> None:
    delay_s = random.Random(f"{victim}{turn}").uniform(0, 0.3)
    async with MiniBackend() as backend:
        striking = asyncio.create_task(strike(backend, victim, signal.SIGKILL, delay_s))
        try:
            result = await judged(backend, SLOW, layers)
        except (GraderError, SandboxError) as error:
            assert victim == "helper", error
        else:
            assert (result.reward, result.reasons) == (1.0, ()), result
        finally:
            striking.cancel()


@pytest.mark.parametrize("victim", ["supervisor", pytest.param("init", marks=pytest.mark.slow)])
async def test_stopped_is_never_a_0(
    victim: str, layers: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed, "GRACE_S", 1.0)
    async with MiniBackend() as backend:
        striking = asyncio.create_task(strike(backend, victim, signal.SIGSTOP, 0.05))
        try:
            result = await judged(backend, SLOW, layers)
        except (GraderError, SandboxError):
            return
        finally:
            striking.cancel()
        assert (result.reward, result.gradings) == (1.0, 2)


async def test_a_test_process_stopped_from_outside_is_graded_again(layers: SandboxSpec) -> None:
    async with MiniBackend() as backend:
        striking = asyncio.create_task(strike(backend, "tests", signal.SIGSTOP, 0.05))
        try:
            result = await judged(backend, SLOW, layers)
        finally:
            striking.cancel()
    assert (result.reward, result.gradings) == (1.0, 2)


async def test_code_that_stops_itself_pays_with_a_0(layers: SandboxSpec) -> None:
    faults: Counter[str] = Counter()
    code = "\nimport os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    patch = GOLD + edit("shapes/__init__.py", INIT + code)
    async with MiniBackend() as backend:
        result = await judged(backend, patch, layers, faults=faults, timeout_s=4.0)
    assert (result.reward, result.gradings) == (0.0, 2)
    assert faults["runner_died_counted_as_0"] == 1


@contextmanager
def frozen(pids: list[int], how: str) -> Iterator[None]:
    """All of a sandbox stands still, as on a machine that is suspended or throttled."""
    if how == "signal":
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return
    group = Path("/sys/fs/cgroup/freezer") / f"test-{os.getpid()}-{random.randrange(1 << 30)}"
    group.mkdir()
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        for line in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(line)
        with contextlib.suppress(OSError):  # processes that are ending hold it a little longer
            group.rmdir()


FREEZE = [
    pytest.param("signal", 3.0, id="stopped"),
    pytest.param("freezer", 3.0, id="frozen", marks=pytest.mark.slow),
    pytest.param("signal", 30.0, id="stopped for good", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("how", "seconds"), FREEZE)
async def test_a_frozen_sandbox_is_graded_again(
    how: str, seconds: float, layers: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "freezer" and not Path("/sys/fs/cgroup/freezer/cgroup.procs").exists():
        pytest.skip("no cgroup v1 freezer on this machine")
    monkeypatch.setattr(signed, "GRACE_S", 2.0)

    async def freeze(backend: MiniBackend) -> None:
        while len(found := runners(backend.helper_pid)) < 2:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
        init = parent(found[0])
        with frozen([init, *below(init)], how):
            await asyncio.sleep(seconds)

    async with MiniBackend() as backend:
        freezing = asyncio.create_task(freeze(backend))
        try:
            result = await judged(backend, SLOW, layers, timeout_s=2.5)
        finally:
            freezing.cancel()
            await asyncio.wait((freezing,))
    assert (result.reward, result.gradings) == (1.0, 2)


SMALL = Limits(memory_bytes=64 * MIB, disk_bytes=64 * MIB, pids=64)
FILL = "with open('/testbed/filler', 'wb') as file:\n    while file.write(bytes(1 << 16)):\n        pass\n"
HOGS = {
    "memory": "held = [bytearray(1 << 20) for _ in range(300)]\n",
    "disk": FILL,
}


@pytest.mark.parametrize("kind", HOGS)
async def test_what_the_code_uses_up_is_its_0_after_one_retry(kind: str, layers: SandboxSpec) -> None:
    faults: Counter[str] = Counter()
    patch = GOLD + edit("shapes/__init__.py", INIT + HOGS[kind])
    async with MiniBackend() as backend:
        result = await judged(backend, patch, replace(layers, limits=SMALL), faults=faults)
    assert (result.reward, result.gradings) == (0.0, 2), result
    assert sum(count for name, count in faults.items() if name.endswith("_counted_as_0")) == 1


@pytest.mark.parametrize("kind", HOGS)
async def test_too_little_in_the_first_sandbox_costs_nothing(kind: str, layers: SandboxSpec) -> None:
    wide = Limits(memory_bytes=1024 * MIB, disk_bytes=256 * MIB, pids=64)
    hog = HOGS[kind] if kind == "memory" else "open('/testbed/filler', 'wb').write(bytes(100 << 20))\n"
    patch = GOLD + edit("shapes/__init__.py", INIT + hog)
    async with MiniBackend() as backend:
        result = await judged(backend, patch, replace(layers, limits=SMALL), replace(layers, limits=wide))
    assert (result.reward, result.gradings) == (1.0, 2)


COUNT = ("sh", "-c", "set -- /proc/[0-9]*; echo $#")
"""Counts without another process, which might be seen or not."""


async def test_nothing_is_left_of_a_test_that_hangs_forks_and_ignores_signals(layers: SandboxSpec) -> None:
    code = (
        "\nimport os, signal, time\nfor number in range(1, 32):\n    if number not in (9, 19):\n"
        "        signal.signal(number, signal.SIG_IGN)\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        os.fork()\n"
        "while True:\n    time.sleep(60)\n"
    )
    patch = edit("shapes/__init__.py", INIT + code)
    async with MiniBackend() as backend, await backend.open(layers) as sandbox:
        before = await sandbox.exec(COUNT, timeout_s=5)
        result = await grade(replace(SPEC, timeout_s=2.0), patch, sandbox, policy=PatchPolicy(lint=False))
        assert (result.reward, result.exhausted) == (0.0, "time")
        left = await sandbox.exec(COUNT, timeout_s=5)
        assert left.output == before.output
