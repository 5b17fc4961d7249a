"""Conformance: one-shot programs and the cap on output."""

from sandbox.conformance_base import PLENTY_S, check, expect, expect_result, opened_session
from sandbox.types import Backend, SandboxSpec


@check()
async def exec_reports_exactly(backend: Backend) -> None:
    """Status, output, stdin, environment and directory of one-shot programs."""
    async with await backend.open(SandboxSpec(env={"GREETING": "hé"}, workdir="/usr")) as sandbox:
        expect_result(await sandbox.exec(["true"], timeout_s=PLENTY_S), 0, b"", "true")
        expect_result(await sandbox.exec(["sh", "-c", "exit 77"], timeout_s=PLENTY_S), 77, b"", "exit 77")
        expect_result(await sandbox.exec(["sh", "-c", "kill -9 $$"], timeout_s=PLENTY_S), 137, b"", "killed")
        result = await sandbox.exec(["cat"], stdin=b"\0\xff" * 100_000, timeout_s=PLENTY_S)
        expect_result(result, 0, b"\0\xff" * 100_000, "stdin of any bytes")
        result = await sandbox.exec(
            ["sh", "-c", "echo $GREETING $X; pwd"], env={"X": "y"}, timeout_s=PLENTY_S
        )
        expect_result(result, 0, "hé y\n/usr\n".encode(), "environment and directory")
        result = await sandbox.exec(["pwd"], cwd="/usr/bin", timeout_s=PLENTY_S)
        expect_result(result, 0, b"/usr/bin\n", "cwd")
        result = await sandbox.exec(["sh", "-c", "echo a; echo b >&2; echo c"], timeout_s=PLENTY_S)
        expect_result(result, 0, b"a\nb\nc\n", "stdout and stderr in order")
        for odd in (["echo", "a\0b"], ["echo", "\ud800"], ["/etc/passwd"], ["/"]):
            result = await sandbox.exec(odd, timeout_s=PLENTY_S)
            expect(result.exit_status == 126, f"{odd!r} is status 126", result)
        result = await sandbox.exec(["no-such-program"], timeout_s=PLENTY_S)
        expect(result.exit_status == 127, "a missing program is status 127", result)
        result = await sandbox.exec(
            ["sh", "-c", "echo out > /dev/stdout; echo err > /dev/stderr"], timeout_s=PLENTY_S
        )
        expect_result(result, 0, b"out\nerr\n", "/dev/stdout and /dev/stderr can be opened")


@check(needs=("processes",))
async def exec_times_out(backend: Backend) -> None:
    """A timeout kills the whole tree, keeps the output so far, and the sandbox goes on."""
    async with await backend.open(SandboxSpec()) as sandbox:
        script = "echo started; (setsid sleep 1234 &) ; sleep 1234 & sleep 1234"
        result = await sandbox.exec(["sh", "-c", script], timeout_s=0.3)
        expect(result.timed_out and result.exit_status is None, "timed out", result)
        expect(result.output.startswith(b"started\n"), "output before the timeout is kept", result)
        left = await sandbox.exec(["sh", "-c", "grep -l 1234 /proc/[0-9]*/cmdline; :"], timeout_s=PLENTY_S)
        # grep finds itself and its shell
        expect(left.output.count(b"\n") <= 2, "nothing of it is left", left.output)


@check()
async def output_is_capped(backend: Backend) -> None:
    """Ten megabytes come back as head and tail."""
    async with opened_session(backend) as (sandbox, session):
        command = "echo first; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo last"
        for result in (
            await sandbox.exec(["sh", "-c", command], timeout_s=PLENTY_S, output_limit_bytes=10_000),
            await session.run(command, timeout_s=PLENTY_S, output_limit_bytes=10_000),
        ):
            expect(result.exit_status == 0 and result.truncated, "truncated, status kept")
            expect(10_000 <= len(result.output) <= 10_200, "size", len(result.output))
            expect(result.output.startswith(b"first\n") and result.output.endswith(b"\nlast\n"), "head, tail")
