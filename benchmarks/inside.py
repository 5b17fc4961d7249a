"""What a sandbox costs once it is open: a command in a session, and memory of many idle ones.

Memory is told three ways: unshared pages of its processes (smaps_rollup), what its cgroup is charged
with (shared files that it touched first included), and how much less memory the machine has per sandbox, the
kernel's own structures included.
"""

import asyncio
import contextlib
import os
import statistics
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.children import WrongResultError
from benchmarks.measure import Say
from benchmarks.report import summarize
from benchmarks.systems import LIMITS, Context, mini_backend
from sandbox.types import SandboxSpec

_OPEN_TOGETHER = 16
_MIB = 1 << 20


async def session_command(context: Context, commands: int) -> dict[str, Any]:
    """`echo ok` in a session and in a bare bash read through pipes, in turn."""
    bare = subprocess.Popen(["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: ASYNC220
    ours_ms: list[float] = []
    bare_ms: list[float] = []
    try:
        async with mini_backend(0, _state(context, "session")) as backend:
            async with await backend.open(_spec(context)) as sandbox:
                session = await sandbox.open_session()
                for number in range(commands + 20):
                    begin = time.perf_counter()
                    result = await session.run("echo ok", timeout_s=60)
                    middle = time.perf_counter()
                    _bare_echo(bare)
                    if result.output != b"ok\n" or result.exit_status != 0:
                        raise WrongResultError(f"session: {result}")
                    if number >= 20:
                        ours_ms.append((middle - begin) * 1e3)
                        bare_ms.append((time.perf_counter() - middle) * 1e3)
    finally:
        bare.kill()
        bare.communicate()
    mine, theirs = summarize(ours_ms), summarize(bare_ms)
    assert mine and theirs
    return {"session_ms": asdict(mine), "bare_ms": asdict(theirs), "over_ms": mine.median - theirs.median}


def _bare_echo(bare: subprocess.Popen[bytes]) -> None:
    assert bare.stdin and bare.stdout
    bare.stdin.write(b"echo ok\n")
    if (line := os.read(bare.stdout.fileno(), 100)) != b"ok\n":
        raise WrongResultError(f"bare bash: {line!r}")


async def idle_memory(context: Context, live: int, say: Say) -> dict[str, Any]:
    """Open `live` sandboxes, look at their memory, close them."""
    spec = _spec(context)
    gate = asyncio.Semaphore(_OPEN_TOGETHER)
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(mini_backend(0, _state(context, "memory")))

        async def one() -> Any:
            async with gate:
                sandbox = await backend.open(spec)
                result = await sandbox.exec(["bash", "-c", "echo ok"], timeout_s=300)
                if result.output != b"ok\n":
                    raise WrongResultError(f"idle sandbox: {result}")
                return sandbox

        for sandbox in [await one() for _ in range(2)]:
            await sandbox.close()
        mine = {child.pid for child in psutil.Process().children(recursive=True)}
        available = psutil.virtual_memory().available
        say(f"opening {live} sandboxes")
        begin = time.perf_counter()
        sandboxes = await asyncio.gather(*(one() for _ in range(live)))
        opened_s = time.perf_counter() - begin
        taken = available - psutil.virtual_memory().available
        inits = {child.pid for child in psutil.Process().children(recursive=True)} - mine
        figures = _processes(inits, live)
        cgroups = _charged(backend.facts["cgroup_directories"])
        begin = time.perf_counter()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        closed_s = time.perf_counter() - begin
    return {
        "live": live, "opened_s": opened_s, "closed_s": closed_s, "unshared_mib": figures,
        "cgroup_mib": statistics.median(cgroups) if cgroups else None,
        "machine_mib": taken / live / _MIB,
    }  # fmt: skip


def _processes(pids: set[int], live: int) -> dict[str, Any]:
    if len(pids) != live:
        raise WrongResultError(f"{len(pids)} processes for {live} idle sandboxes")
    private = [_private_bytes(pid) / _MIB for pid in pids]
    summary = summarize(private)
    assert summary
    return asdict(summary)


def _private_bytes(pid: int) -> int:
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total


def _charged(directories: list[str]) -> list[float]:
    """MiB of each sandbox's memory cgroup."""
    found: list[float] = []
    for base in {Path(directory) for directory in directories}:
        for name in ("memory.current", "memory.usage_in_bytes"):
            found += [int(file.read_text()) / _MIB for file in base.glob(f"*/{name}")]
    return found


def _state(context: Context, name: str) -> Path:
    path = context.place.work / f"state-{name}"
    path.mkdir(mode=0o711)
    return path


def _spec(context: Context) -> SandboxSpec:
    return SandboxSpec(layers=(context.fixture.layer,), workdir="/testbed", limits=LIMITS)
