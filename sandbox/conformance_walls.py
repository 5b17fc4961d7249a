"""Conformance: limits, isolation and closing.

Attacks that need to look at the host are in tests/sandbox, not here.
"""

import asyncio

from sandbox.conformance_base import PLENTY_S, check, expect
from sandbox.types import MIB, Backend, ExecResult, Limits, SandboxSpec

# Doubles nine times and no further, so that it ends by itself where a limit turns out not to hold.
_BOMB = "b() { if [ $1 -lt 9 ]; then b $(($1 + 1)) | b $(($1 + 1)) & else sleep 2; fi }; b 0; b 0; sleep 9"


@check(needs=("limits",))
async def limits_hold(backend: Backend) -> None:
    """Process count and disk size."""
    limits = Limits(pids=40, disk_bytes=8 * MIB, memory_bytes=256 * MIB)
    async with await backend.open(SandboxSpec(limits=limits)) as sandbox:
        # Subshells that wait for a FIFO, since a program each would take long on a slow machine.
        script = (
            "head -c 50000000 /dev/zero > /big; echo $?; rm /big; mkfifo /wait; "
            "for i in $(seq 100); do (read x < /wait) & done"
        )
        # bash as sh retries a failed fork for seconds, so a timeout is as good an end as any here.
        result = await sandbox.exec(["sh", "-c", script], timeout_s=10)
        expect(b"No space left" in result.output, "disk is limited", result.output[:200])
        # No bomb after this unless forks were seen to fail: nothing else would stop it.
        expect(b"fork" in result.output, "processes are limited", result.output[:500])
    async with await backend.open(SandboxSpec(limits=limits)) as sandbox:
        result = await sandbox.exec(["bash", "-c", _BOMB], timeout_s=1)
        result = await sandbox.exec(["bash", "-c", ":"], timeout_s=PLENTY_S)
        expect(not result.timed_out, "a fork bomb is contained", result)


@check(
    needs=(
        "root",
        "network",
        "processes",
    )
)
async def isolation_basics(backend: Backend) -> None:
    """No network but loopback, no capabilities, no host processes, no way to mount."""
    async with await backend.open(SandboxSpec()) as sandbox:

        async def run(script: str) -> ExecResult:
            return await sandbox.exec(["bash", "-c", script], timeout_s=PLENTY_S)

        expect((await run("grep -c . /proc/net/dev")).output == b"3\n", "one network interface")
        result = await run("exec 3<>/dev/tcp/192.0.2.1/80")
        expect(result.exit_status != 0, "no route out", result)
        result = await run("grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | grep -vc 0000000000000000")
        expect(result.output == b"0\n", "no capability", result)
        expect((await run("grep NoNewPrivs /proc/self/status")).output.endswith(b"1\n"), "no_new_privs")
        result = await run("ls -d /proc/[0-9]* | wc -l")
        expect(int(result.output) < 10, "own processes only", result)
        for attempt in (
            "mount -t tmpfs x /mnt", "umount /usr", "unshare -U true", "unshare -m true",
            "mount -o remount,rw /usr", "touch /usr/x", "chroot / true",
            "mknod /n c 1 3 && head -c 1 /n > /dev/null", "kill -9 1 && ! kill -0 1",
            "cat /proc/1/environ | grep -q =", "ls /proc/1/root/",
            "cat /proc/kcore | head -c 1 | grep -q .", "echo x > /proc/sysrq-trigger",
            "echo x > /proc/sys/kernel/core_pattern", "dmesg",
        ):  # fmt: skip
            expect((await run(attempt)).exit_status != 0, f"{attempt!r} must fail")
        expect((await run("echo still here")).output == b"still here\n", "and the sandbox still lives")


@check(needs=("root", "processes", "ids"))
async def first_process_is_hidden(backend: Backend) -> None:
    """Not even how many descriptors it has can be seen: it belongs to nobody inside."""
    async with await backend.open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(["ls", "/proc/1/fd/"], timeout_s=PLENTY_S)
        expect(result.exit_status != 0, "descriptors of the first process are hidden", result)


@check(needs=("network",))
async def loopback_works(backend: Backend) -> None:
    """Test suites start servers on 127.0.0.1; two sandboxes may use one port."""
    script = (
        "coproc cat; exec 3<>/dev/tcp/127.0.0.1/9 2>/dev/null; "
        "timeout 5 bash -c 'echo -n | cat < /dev/tcp/127.0.0.1/9' 2>&1 | grep -c refused"
    )
    async with await backend.open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(["bash", "-c", script], timeout_s=PLENTY_S)
        expect(b"1" in result.output, "loopback answers (connection refused, not unreachable)", result)


@check()
async def close_is_idempotent(backend: Backend) -> None:
    """close twice, close after the first process died, and many at once."""
    sandbox = await backend.open(SandboxSpec())
    session = await sandbox.open_session()
    await session.run("sleep 100 & setsid sleep 100 &", timeout_s=PLENTY_S)
    await asyncio.gather(sandbox.close(), sandbox.close())
    await session.close()

    async def one(number: int) -> bytes:
        async with await backend.open(SandboxSpec()) as each:
            return (await each.exec(["echo", str(number)], timeout_s=PLENTY_S)).output

    results = await asyncio.gather(*(one(number) for number in range(16)))
    expect(results == [b"%d\n" % number for number in range(16)], "many at once", results)
