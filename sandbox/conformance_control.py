"""Conformance: interrupts, background jobs, output to a file, many sessions, what broke others' sessions."""

import asyncio
import tempfile
from pathlib import Path

from sandbox.conformance_base import PLENTY_S, check, expect, expect_result, opened_session
from sandbox.errors import SandboxError
from sandbox.types import Backend, SandboxSpec

_ENDLESS = (
    "sleep 60; echo never", "while :; do sleep 60; done; echo never", "while :; do :; done; echo never",
    "f() { sleep 60; echo never; }; f; echo never", "(sleep 60; echo never); echo never",
    "sleep 60 | cat; echo never", "y=$(sleep 60; echo never); echo never $y", "trap '' INT; sleep 60",
)  # fmt: skip
_CATCHES_ONCE = (
    "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('once', flush=True)\ntime.sleep(60)\n"
)


@check(needs=("processes",))
async def interrupt_ends_the_command_only(backend: Backend) -> None:
    """Status 130, nothing of the rest of the line, and state and older jobs stay."""
    async with opened_session(backend) as (_, session):
        expect(not await session.interrupt(), "nothing to interrupt")
        await session.run("cd /usr; x=5; sleep 500 & job=$!; sleep 0.1", timeout_s=PLENTY_S)
        for command in _ENDLESS:
            running = asyncio.ensure_future(session.run("echo begin; " + command, timeout_s=PLENTY_S))
            await asyncio.sleep(0.3)
            expect(await session.interrupt(), f"{command!r} was running")
            result = await running
            expect_result(result, 130, b"begin\n", f"interrupt of {command!r}")
            result = await session.run("pwd; echo $x; kill -0 $job && echo alive", timeout_s=PLENTY_S)
            expect_result(result, 0, b"/usr\n5\nalive\n", f"state after {command!r}")


@check(needs=("processes",))
async def interrupt_is_repeated(backend: Backend) -> None:
    """A program that survives the first signal gets a second one."""
    async with opened_session(backend) as (sandbox, session):
        await sandbox.write_file("/tmp/once.py", _CATCHES_ONCE.encode())
        running = asyncio.ensure_future(session.run("python3 /tmp/once.py; echo never", timeout_s=PLENTY_S))
        await asyncio.sleep(1.0)
        await session.interrupt()
        result = await running
        expect(result.exit_status == 130 and b"never" not in result.output, "interrupted", result)


@check(needs=("processes",))
async def jobs_are_listed(backend: Backend) -> None:
    """What commands left running, daemons too, and none of another session's."""
    async with opened_session(backend) as (sandbox, session):
        other = await sandbox.open_session()
        expect(await session.jobs() == (), "none yet")
        await session.run("sleep 501 & sleep 0.05; setsid sleep 502 & sleep 0.05", timeout_s=PLENTY_S)
        await other.run("sleep 503 & sleep 0.05", timeout_s=PLENTY_S)
        seen = [job.command for job in await session.jobs()]
        expect(seen == ["sleep 501", "sleep 502"], "jobs, oldest first", seen)
        await session.run("exit 3", timeout_s=PLENTY_S)
        seen = [job.command for job in await session.jobs()]
        expect(seen == ["sleep 501", "sleep 502"], "the jobs of a shell that is gone", seen)
        running = asyncio.ensure_future(session.run("sleep 504", timeout_s=0.5))
        await asyncio.sleep(0.2)
        expect("sleep 504" not in [job.command for job in await session.jobs()], "not what runs now")
        await running
        for job in await session.jobs():
            await session.run(f"kill {job.pid}; sleep 0.05", timeout_s=PLENTY_S)
        expect(await session.jobs() == (), "pids are the sandbox's own", await session.jobs())


@check()
async def output_goes_to_a_file(backend: Backend) -> None:
    """All of it in the file, head and tail in the result; a file that cannot take it is a clear error."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        path = Path(name) / "output"
        async with opened_session(backend) as (_, session):
            command = "echo first; head -c 8000000 /dev/zero | tr '\\0' x; echo last"
            result = await session.run(command, timeout_s=PLENTY_S, output_limit_bytes=1000, output_file=path)
            expect(result.exit_status == 0 and result.truncated, "truncated, status kept", result)
            expect(path.read_bytes() == b"first\n" + b"x" * 8_000_000 + b"last\n", "the whole output")
            result = await session.run("echo end; sleep 60", timeout_s=0.3, output_file=path)
            expect(result.timed_out and path.read_bytes() == b"end\n", "up to a timeout; replaced", result)
            for bad in (Path(name), Path(name) / "missing" / "x"):
                try:
                    await session.run("echo lost", timeout_s=PLENTY_S, output_file=bad)
                except OSError:
                    result = await session.run("echo on", timeout_s=PLENTY_S)
                    expect_result(result, 0, b"on\n", "the session after an unwritable file")
                    continue
                expect(False, f"writing to {bad} is an OSError")
            try:
                await session.run("seq 100000", timeout_s=PLENTY_S, output_file=Path("/dev/full"))
            except SandboxError:
                expect_result(await session.run("echo on", timeout_s=PLENTY_S), 0, b"on\n", "a full disk")
                return
            expect(False, "a full disk is a SandboxError")


@check()
async def many_sessions_at_once(backend: Backend) -> None:
    """Each with its own directory and variables, none waiting for another."""
    async with await backend.open(SandboxSpec(workdir="/tmp")) as sandbox:

        async def one(number: int) -> None:
            session = await sandbox.open_session()
            await session.run(f"mkdir {number}; cd {number}; n={number}", timeout_s=PLENTY_S)
            for _ in range(10):
                result = await session.run("echo $n; basename $PWD", timeout_s=PLENTY_S)
                expect_result(result, 0, b"%d\n%d\n" % (number, number), "its own")
            await session.close()

        await asyncio.gather(*(one(number) for number in range(20)))


@check()
async def a_prepared_session_is_a_session(backend: Backend) -> None:
    """It starts where and as any other does, and is given out once."""
    # A directory that has this name also where the sandbox has no root of its own.
    async with await backend.open(SandboxSpec(workdir="/usr")) as sandbox:
        for _ in range(2):
            await sandbox.prepare_session()
            first, second = await sandbox.open_session(), await sandbox.open_session()
            expect_result(await first.run("pwd; cd /; mine=1", timeout_s=PLENTY_S), 0, b"/usr\n", "prepared")
            result = await second.run('pwd; echo "${mine-none}"', timeout_s=PLENTY_S)
            expect_result(result, 0, b"/usr\nnone\n", "the one after it")
            expect(not await second.jobs(), "nothing runs")


@check()
async def what_broke_other_sessions(backend: Backend) -> None:
    """Sentinels and prompts in the output, tabs in heredocs, megabytes, `exit`, `set -e`, trivial echoes."""
    megabyte = b"".join(b"%d\n" % number for number in range(1, 200_001))
    cases: tuple[tuple[str, int, bytes], ...] = (
        ("echo SHELLPS1PREFIX; echo '$ '; echo '>>> '", 0, b"SHELLPS1PREFIX\n$ \n>>> \n"),
        ("echo EXITCODESTART0EXITCODEEND; false", 1, b"EXITCODESTART0EXITCODEEND\n"),
        ("cat <<'X'\na\tb\t\tc\nX", 0, b"a\tb\t\tc\n"),
        ("cat <<X\n\t$((1+1))\nX", 0, b"\t2\n"),
        ("seq 200000", 0, megabyte),
        ("printf 'no newline'; exit 4", 4, b"no newline"),
        ("set -e; false", 1, b""),
        ("PS1='# '; unset PS1; echo ok", 0, b"ok\n"),
        ("sleep 0.01 # comment \\", 0, b""),
        ("echo a &&\necho b ||\necho c", 0, b"a\nb\n"),
        ("for i in 1 2; do\necho $i\ndone", 0, b"1\n2\n"),
        ("read -r line <<< 'x y'; echo \"$line\"", 0, b"x y\n"),
    )
    async with opened_session(backend) as (_, session):
        for command, status, output in cases:
            result = await session.run(command, timeout_s=PLENTY_S, output_limit_bytes=4 << 20)
            expect_result(result, status, output, f"{command[:40]!r}")
        result = await session.run("sleep 60", timeout_s=0.2)
        expect(
            result.timed_out and b"Killed" not in result.output, "a timeout says nothing of its own", result
        )
        for number in range(37):
            result = await session.run(f"echo {number}", timeout_s=PLENTY_S)
            expect_result(result, 0, b"%d\n" % number, "a trivial echo")
