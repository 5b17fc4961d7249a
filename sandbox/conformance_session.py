"""Conformance: a persistent shell keeps its state and never breaks."""

import asyncio

from sandbox.conformance_base import PLENTY_S, check, expect, expect_result, opened_session
from sandbox.types import Backend


@check()
async def session_keeps_state(backend: Backend) -> None:
    """Directory, variables, functions and jobs live from command to command."""
    async with opened_session(backend) as (_, session):
        await session.run("cd /usr; x=5; export Y=6; f() { echo f$1; }; sleep 100 & p=$!", timeout_s=PLENTY_S)
        result = await session.run("pwd; echo $x $Y; f 7; kill -0 $p && echo alive", timeout_s=PLENTY_S)
        expect_result(result, 0, b"/usr\n5 6\nf7\nalive\n", "state")
        expect_result(await session.run("(exit 42)", timeout_s=PLENTY_S), 42, b"", "status")


@check()
async def session_takes_any_command(backend: Backend) -> None:
    """Whatever the bytes of a command, its result is its own and the next command works."""
    cases: list[tuple[bytes, int | None, bytes | None]] = [
        (b"cat <<'EOF'\n\tx\n  $y `z` \\\nEOF\n", 0, b"\tx\n  $y `z` \\\n"),
        (b"echo 'unbalanced", 2, None),
        (b'echo "unbalanced', 2, None),
        (b"if true; then", 2, None),
        (b"(", 2, None),
        (b"", 0, b""),
        (b"\n\n# only a comment", 0, b""),
        (b"echo a\necho b; false", 1, b"a\nb\n"),
        (b"printf '\\xff\\000\\n'", 0, b"\xff\0\n"),
        ("echo 'naïve €'".encode(), 0, "naïve €\n".encode()),
        (b"echo '\xe9'", 0, b"\xe9\n"),
        (b"printf abc", 0, b"abc"),
        (b"break; continue; echo on", 0, None),
        (b"return 3", None, None),
        (b"cat; read x; echo $?", 0, b"1\n"),
        (b"exit 9", 9, b""),
        (b"set -e; false; echo not", 1, b""),
        (b"exec true", 0, b""),
        (b"exec >/dev/null; echo lost", 0, b""),
        (b"kill -9 $$", 137, None),
        (b"set -u; echo $undefined_variable", None, None),
        (b"sleep 300 & echo started", 0, b"started\n"),
        (b"IFS=x; set -f; shopt -s extglob; alias ls=false; echo ok", 0, b"ok\n"),
        (b"trap 'echo bye' EXIT; exit 4", 4, b"bye\n"),
        (b"echo " + b"y" * 200_000 + b" | wc -c", 0, b"200001\n"),
        (b"PS1=x PROMPT_COMMAND='echo no'; history; !!; echo !x", 0, None),
    ]
    async with opened_session(backend) as (_, session):
        for command, status, output in cases:
            result = await session.run(command, timeout_s=PLENTY_S)
            shown = command[:60]
            expect(not result.timed_out, "no timeout", shown)
            if status is not None:
                expect(result.exit_status == status, f"status of {shown!r}, expected {status}", result)
            if output is not None:
                expect(result.output == output, f"output of {shown!r}, expected {output[:60]!r}", result)
            result = await session.run("echo next", timeout_s=PLENTY_S)
            expect_result(result, 0, b"next\n", f"the command after {shown!r}")


@check(needs=("processes",))
async def session_survives_timeout(backend: Backend) -> None:
    """A timeout kills the command's whole tree; directory and variables stay, older jobs live."""
    async with opened_session(backend) as (_, session):
        await session.run("cd /usr; x=5; sleep 777 & job=$!; sleep 0.1", timeout_s=PLENTY_S)
        slow = (
            "sleep 888; echo never",
            "(setsid sleep 888 &); sleep 888 | cat",
            "while :; do :; done",
            "trap '' TERM INT USR1; while :; do :; done",
            "python3 -c 'import time; time.sleep(888)' || sleep 888",
        )
        for command in slow:
            result = await session.run("echo begin; " + command, timeout_s=0.3)
            expect(result.timed_out and result.exit_status is None, f"timeout of {command!r}", result)
            expect(result.output.startswith(b"begin\n"), "output before it", result)
            expect(b"never" not in result.output, "the rest of the list does not run", result)
            result = await session.run(
                "pwd; grep -c 888 /proc/[0-9]*/cmdline | grep -v :0", timeout_s=PLENTY_S
            )
            expect(result.output.startswith(b"/usr\n"), f"directory after {command!r}", result)
            expect(result.output.count(b"\n") <= 2, f"nothing left of {command!r}", result)
            if "trap" not in command:
                result = await session.run("echo $x; kill -0 $job && echo alive", timeout_s=PLENTY_S)
                expect_result(result, 0, b"5\nalive\n", f"state after {command!r}")


@check()
async def session_ignores_late_output(backend: Backend) -> None:
    """A job that holds the output open, or never stops writing, does not delay a command."""
    async with opened_session(backend) as (_, session):
        result = await session.run("sleep 300 & yes & echo x; sleep 0.05; echo y", timeout_s=PLENTY_S)
        expect(result.exit_status == 0 and not result.timed_out, "not delayed")
        result = await session.run("kill %2; echo done", timeout_s=PLENTY_S)
        expect(b"done" in result.output, "the next command works")


@check(needs=("processes",))
async def cancelled_run_is_over(backend: Backend) -> None:
    """Cancelling `run` ends its command; the next one is not mixed up with it."""
    async with opened_session(backend) as (_, session):
        task = asyncio.ensure_future(session.run("sleep 999; echo old", timeout_s=PLENTY_S))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        result = await session.run(
            "echo new; grep -c 999 /proc/[0-9]*/cmdline | grep -v :0", timeout_s=PLENTY_S
        )
        expect(result.output.startswith(b"new\n") and result.output.count(b"\n") <= 2, "clean", result)
