"""Every limit exceeded, while a neighbour works: checks shared by tests with and without cgroups.

`python -m tests.sandbox.limits hide` runs all in a mount namespace where no cgroup is writable; prints JSON.
"""

# ruff: noqa: E501 - scripts as data

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from sandbox import syscalls
from sandbox.errors import SandboxError, SandboxLostError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits, Sandbox, SandboxSpec

_T = 60.0
_SLOW_S = 5.0
Check = Callable[[MiniBackend], Awaitable[None]]


@contextlib.asynccontextmanager
async def pair(backend: MiniBackend, limits: Limits, **fields: object) -> AsyncIterator[Sandbox]:
    """A sandbox with these limits; meanwhile a neighbour must answer rightly and soon."""
    slowest = 0.0

    async def work(neighbour: Sandbox) -> None:
        nonlocal slowest
        number = 0
        while True:
            number += 1
            started = time.monotonic()
            script = f"echo {number} > /tmp/n && cat /tmp/n"
            result = await neighbour.exec(["sh", "-c", script], timeout_s=_T)
            assert result.output == f"{number}\n".encode(), f"the neighbour: {result}"
            slowest = max(slowest, time.monotonic() - started)
            await asyncio.sleep(0.02)

    async with await backend.open(SandboxSpec()) as neighbour:
        task = asyncio.ensure_future(work(neighbour))
        try:
            spec = SandboxSpec(limits=limits, **fields)  # type: ignore[arg-type]
            async with await backend.open(spec) as sandbox:
                yield sandbox
        finally:
            if not task.done():
                task.cancel()
            ended = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(ended, asyncio.CancelledError), f"the neighbour: {ended}"
        assert slowest < _SLOW_S, f"the neighbour waited {slowest:.1f} s"


async def _python(sandbox: Sandbox, script: str, timeout_s: float = _T) -> "tuple[int | None, str]":
    await sandbox.write_file("/tmp/s.py", script.encode())
    result = await sandbox.exec(["python3", "/tmp/s.py"], timeout_s=timeout_s)
    return result.exit_status, result.text


async def _still_works(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["echo", "on"], timeout_s=_T)
    assert result.output == b"on\n", f"the sandbox no longer works: {result}"


def _available_bytes() -> int:
    text = Path("/proc/meminfo").read_text()
    return int(text.partition("MemAvailable:")[2].split()[0]) * 1024


async def memory(backend: MiniBackend) -> None:
    """One process over the limit is ended or refused; the sandbox goes on."""
    async with pair(backend, Limits(memory_bytes=96 * MIB, disk_bytes=32 * MIB)) as sandbox:
        free = _available_bytes()
        status, text = await _python(sandbox, "x = []\nwhile True: x.append(bytearray(1 << 20))")
        assert status == 137 or "MemoryError" in text, (status, text)
        assert free - _available_bytes() < 1024 * MIB
        usage = await sandbox.usage()
        if "memory" in backend.facts["controllers"]:
            assert usage.oom_kills and usage.memory_peak_bytes, usage
            assert usage.memory_peak_bytes <= 97 * MIB, usage
        await _still_works(sandbox)


async def memory_of_many(backend: MiniBackend) -> None:
    """Many processes together over the limit (a cgroup is needed for that)."""
    if "memory" not in backend.facts["controllers"]:
        return
    async with pair(backend, Limits(memory_bytes=96 * MIB, disk_bytes=32 * MIB, pids=64)) as sandbox:
        script = (
            "import os\nfor _ in range(30):\n    if os.fork() == 0: break\nx = bytearray(20 << 20)\n"
            "for i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(2)"
        )
        try:
            await _python(sandbox, script, 6)
            usage = await sandbox.usage()
            assert usage.oom_kills and (usage.memory_peak_bytes or 0) <= 97 * MIB, usage
            await _still_works(sandbox)
        except SandboxLostError as error:
            # The kernel may choose the sandbox's first process: then the error must say what happened.
            assert "memory" in str(error), error


async def pids(backend: MiniBackend) -> None:
    """No more processes than allowed; the refused fork says EAGAIN."""
    async with pair(backend, Limits(pids=40)) as sandbox:
        script = (
            "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(20); os._exit(0)\n"
            "        n += 1\nexcept OSError as e: print(n, e.strerror, flush=True)\nos.kill(0, 9)"
        )
        _, text = await _python(sandbox, script)
        count, _, error = text.partition(" ")
        assert 20 <= int(count) <= 40 and "temporarily unavailable" in error, text
        await _still_works(sandbox)


async def cpu_weight(backend: MiniBackend) -> None:
    """Four times the weight gives clearly more of one core, however many processes the other starts."""
    if "cpu" not in backend.facts["controllers"]:
        return
    script = (
        "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "for _ in range(int(os.environ['N'])):\n    if os.fork() == 0: break\n"
        "end = time.monotonic() + 4\nwhile time.monotonic() < end: pass\n"
        "print(sum(os.times()[:2]), flush=True)"
    )
    heavy, light = Limits(cpu_weight=400), Limits(cpu_weight=100)
    async with (
        await backend.open(SandboxSpec(limits=heavy, env={"N": "0"})) as one,
        await backend.open(SandboxSpec(limits=light, env={"N": "7"})) as many,
    ):
        results = await asyncio.gather(_python(one, script), _python(many, script))
    shares = [sum(float(line) for line in text.split()) for _, text in results]
    assert shares[0] > 1.8 * shares[1], f"CPU seconds: weight 400 {shares[0]:.2f}, weight 100 {shares[1]:.2f}"


async def disk(backend: MiniBackend) -> None:
    """Bytes: all writable places together; a clear ENOSPC; usable again once something is removed."""
    async with pair(backend, Limits(disk_bytes=16 * MIB)) as sandbox:
        script = (
            "cd /; F='big tmp/big dev/shm/big var/tmp/big'; for f in $F; do head -c 40000000 /dev/zero > $f; done; "
            "du -cm $F | tail -1; rm -f $F; echo again > /big && cat /big"
        )
        result = await sandbox.exec(["bash", "-c", script], timeout_s=_T)
        total = [int(line.split()[0]) for line in result.text.splitlines() if line.endswith("total")]
        assert total and total[0] <= 17, result.text
        assert "No space left" in result.text, result.text
        assert result.text.endswith("again\n"), result.text
        await _still_works(sandbox)


async def disk_upper(backend: MiniBackend) -> None:
    """A disk upper is watched: the sandbox ends a moment after it grew too large, and says why."""
    try:
        async with pair(backend, Limits(disk_bytes=16 * MIB), upper="disk") as sandbox:
            await sandbox.exec(["sh", "-c", "head -c 40000000 /dev/zero > /big; sleep 30"], timeout_s=40)
    except SandboxLostError as error:
        assert "disk" in str(error), error
        return
    raise AssertionError("40 MB were kept on 16 MiB of disk")


async def inodes(backend: MiniBackend) -> None:
    """Empty files end at a bound too."""
    async with pair(backend, Limits(disk_bytes=16 * MIB)) as sandbox:
        script = (
            "import os\nn = 0\ntry:\n    while n < 200000:\n        os.close(os.open('/tmp/f%d' % n, os.O_CREAT)); n += 1\n"
            "except OSError as e: print(n, e.strerror)"
        )
        _, text = await _python(sandbox, script)
        count, _, error = text.partition(" ")
        assert int(count) < 100_000 and "No space left" in error, text
        await _still_works(sandbox)


async def open_files(backend: MiniBackend) -> None:
    """Descriptors of one process, and nobody inside can raise it."""
    async with pair(backend, Limits(open_files=100)) as sandbox:
        script = (
            "import os, resource\ntry: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); print('raised')\n"
            "except (OSError, ValueError): pass\nn = 0\ntry:\n    while True: os.dup(0); n += 1\n"
            "except OSError as e: print(n, e.strerror)"
        )
        _, text = await _python(sandbox, script)
        count, _, error = text.partition(" ")
        assert int(count) <= 100 and "Too many open files" in error, text


async def output(backend: MiniBackend) -> None:
    """Head and tail of gigabytes; by exec, by a session, and with a limit for one command."""
    async with pair(backend, Limits(output_bytes=64 * 1024)) as sandbox:
        script = "echo begin; head -c 1000000000 /dev/zero | tr '\\0' x; echo end"
        result = await sandbox.exec(["sh", "-c", script], timeout_s=_T)
        assert result.truncated and len(result.output) < 66 * 1024, len(result.output)
        assert result.output.startswith(b"begin\n") and result.output.endswith(b"xend\n")
        assert b"left out" in result.output and result.exit_status == 0
        session = await sandbox.open_session()
        result = await session.run(script, timeout_s=_T, output_limit_bytes=1000)
        assert result.truncated and len(result.output) < 1100 and result.exit_status == 0, result
        result = await session.run("echo on", timeout_s=_T)
        assert result.output == b"on\n" and not result.truncated


async def wall_time(backend: MiniBackend) -> None:
    """A command's time, and the sandbox's."""
    async with pair(backend, Limits()) as sandbox:
        result = await sandbox.exec(["sleep", "30"], timeout_s=0.3)
        assert result.timed_out and result.exit_status is None and result.duration_s < 10
        await _still_works(sandbox)
    started = time.monotonic()
    try:
        async with pair(backend, Limits(wall_time_s=1.0)) as sandbox:
            await _still_works(sandbox)
            await sandbox.exec(["sleep", "60"], timeout_s=_T)
    except SandboxLostError as error:
        assert "1" in str(error) and ("wall" in str(error) or "time" in str(error)), error
        assert time.monotonic() - started < 20
        return
    raise AssertionError("the sandbox outlived its wall time")


async def file_size(backend: MiniBackend) -> None:
    """Files that do not fit, through the owner's calls."""
    async with pair(backend, Limits(disk_bytes=16 * MIB)) as sandbox:
        try:
            await sandbox.write_file("/tmp/large", bytes(40 * MIB))
        except OSError as error:
            assert error.errno == 28, error
        else:
            raise AssertionError("40 MiB were written to 16")
        await sandbox.exec(["rm", "-f", "/tmp/large"], timeout_s=_T)
        await sandbox.write_file("/tmp/fits", bytes(2 * MIB))
        try:
            await sandbox.read_file("/tmp/fits", limit_bytes=MIB)
        except ValueError as error:
            assert str(MIB) in str(error)
        else:
            raise AssertionError("more than limit_bytes was read")
        sparse = "truncate -s 1T /tmp/sparse && stat -c %s /tmp/sparse"
        await sandbox.exec(["sh", "-c", sparse], timeout_s=_T)
        try:
            await sandbox.read_file("/tmp/sparse")
        except (ValueError, FileNotFoundError):
            pass  # refused for its size, or truncate was: both are clear
        await _still_works(sandbox)


CHECKS: tuple[Check, ...] = (
    memory, memory_of_many, pids, cpu_weight, disk, disk_upper, inodes, open_files, output, wall_time, file_size,
)  # fmt: skip


async def _all() -> dict[str, str]:
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="sandbox-limits-") as name:
        Path(name).chmod(0o711)
        async with MiniBackend(state_dir=Path(name)) as backend:
            results["controllers"] = ",".join(backend.facts["controllers"])
            for check in CHECKS:
                try:
                    async with asyncio.timeout(120):
                        await check(backend)
                    results[check.__name__] = ""
                except (AssertionError, SandboxError, OSError, TimeoutError) as error:
                    results[check.__name__] = f"{type(error).__name__}: {error}"[:500]
    return results


if __name__ == "__main__":
    if sys.argv[1:] == ["hide"]:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        syscalls.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", syscalls.MS_RDONLY)
    sys.stdout.write(json.dumps(asyncio.run(_all())) + "\n")
