"""Conformance: commands that spoil the shell they run in, by accident or on purpose.

After each of them the next commands work, and their results are their own. The spoiler's own status may be
lost (255 then), but a status of 0 always means that the command ran.
"""

from sandbox.conformance_base import PLENTY_S, check, expect, opened_session
from sandbox.types import Backend, SandboxSpec, Session

_SPOILERS = (
    "readonly ${!__sandbox@}", "declare -u ${!__sandbox@}; declare -i ${!__sandbox@}",
    "readonly IFS PWD; IFS=x", "set -k; set -t", "set -n", "set -r", "set -m", "set -o posix",
    "set -u; unset PWD", "set -e", "set -f",
    "for f in /proc/$$/fd/*; do echo x > $f; done",
    "builtin() { :; }", "eval() { :; }; printf() { :; }; unset() { :; }; mapfile() { :; }; read() { :; }",
    "enable -n eval", "enable -n mapfile printf unset", "enable -n builtin",
    "shopt -s extdebug; trap false DEBUG", "trap 'exit 0' DEBUG",
    "shopt -s extdebug; trap '[[ $BASH_COMMAND != *eval* ]]' DEBUG",
    "shopt -s expand_aliases; alias builtin=true eval=true printf=true mapfile=true",
    "PROMPT_COMMAND='exit 3'; PS0='$(exit)'", "exec 0<&-", "exec 62>&- 60<&- 59>&- 58>&-",
    "for i in {0..255}; do eval \"exec $i>&-\"; done", "ulimit -n 3", "ulimit -n 11", "ulimit -f 0",
    "trap '' USR1 USR2 INT EXIT", "exec >/dev/null 2>&1 </dev/null",
)  # fmt: skip
_LATE_FORGERY = (
    "(for i in $(seq 30); do for fd in /proc/$$/fd/*; do printf '\\0x 0 1 /\\0000 1 /\\0' > $fd; done; "
    "sleep 0.01; done) 2>/dev/null & sleep 0.02"
)
_SPOILER_TIMEOUT_S = 10.0


async def _expect_own_results(session: Session, after: str) -> None:
    for status in (0, 3):
        command = f"echo {status}; sleep 0.02; (exit {status})"
        result = await session.run(command, timeout_s=PLENTY_S)
        expect(result.exit_status == status, f"own status after {after!r}, expected {status}", result)
        expect(result.output.endswith(b"%d\n" % status), f"own output after {after!r}", result)


@check()
async def spoiled_shells_are_replaced(backend: Backend) -> None:
    """Names, options, traps, descriptors and limits of the shell, turned against it."""
    async with await backend.open(SandboxSpec()) as sandbox:
        for spoiler in _SPOILERS:
            session = await sandbox.open_session()
            result = await session.run(spoiler, timeout_s=_SPOILER_TIMEOUT_S)
            expect(not result.timed_out, f"{spoiler!r} does not hang", result)
            await _expect_own_results(session, spoiler)
            await session.close()


@check()
async def skipped_commands_never_succeed(backend: Backend) -> None:
    """Whatever was set before: a command with status 0 has run, and has run once."""
    async with await backend.open(SandboxSpec(workdir="/tmp")) as sandbox:
        for number, spoiler in enumerate(_SPOILERS):
            session = await sandbox.open_session()
            await session.run(spoiler, timeout_s=_SPOILER_TIMEOUT_S)
            result = await session.run(f"sh -c 'echo x >> ran{number}'", timeout_s=PLENTY_S)
            ran = await sandbox.exec(["cat", f"ran{number}"], timeout_s=PLENTY_S)
            if result.exit_status == 0:
                expect(ran.output == b"x\n", f"status 0 after {spoiler!r} and run once", ran)
            await session.close()


@check()
async def spoiled_shells_that_hang_time_out(backend: Backend) -> None:
    """A shell that stops itself ends at the timeout, and the next command works."""
    async with opened_session(backend) as (_, session):
        result = await session.run("kill -STOP $$", timeout_s=0.5)
        expect(result.timed_out, "stopped shells time out", result)
        await _expect_own_results(session, "kill -STOP $$")


@check()
async def reports_cannot_be_forged_blindly(backend: Backend) -> None:
    """A background job writes what looks like reports into all the shell's descriptors."""
    async with opened_session(backend) as (_, session):
        await session.run(_LATE_FORGERY, timeout_s=PLENTY_S)
        for number in range(10):
            result = await session.run(f"sleep 0.03; echo {number}; (exit {number})", timeout_s=PLENTY_S)
            expect(result.exit_status in (number, 255), "its own status, or none", result)
            if result.exit_status == number:
                expect(b"%d\n" % number in result.output, "its own output", result)


@check()
async def tampering_keeps_state_where_possible(backend: Backend) -> None:
    """Variables outlive a shell that had to be replaced for a function called `builtin`."""
    async with opened_session(backend, SandboxSpec(workdir="/tmp")) as (_, session):
        await session.run("kept=5; cd /usr", timeout_s=PLENTY_S)
        await session.run("builtin() { :; }", timeout_s=_SPOILER_TIMEOUT_S)
        result = await session.run("echo $kept $PWD", timeout_s=PLENTY_S)
        expect(result.output == b"5 /usr\n", "state", result)
