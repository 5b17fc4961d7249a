"""A persistent bash inside a sandbox.

A command is placed in a memory file that the shell shares; one fixed line on the shell's script pipe makes
it read and `eval` the file and report `$?` and `$PWD` on a descriptor of its own. So commands may hold any
text, nothing is ever looked for in the output, and the line runs at top level as if typed. When the shell
ends (`exit`, `set -e`, a timeout) a trap saves its variables and functions, and the next command starts a
new shell with them. A session's own programs could forge its reports: they only fool themselves, since
grading never uses a session.
"""

import asyncio
import os
import time
from typing import TYPE_CHECKING

from sandbox.errors import SandboxLostError
from sandbox.output import Collector, PipeReader
from sandbox.types import ExecResult

if TYPE_CHECKING:
    from sandbox.instance import MiniSandbox

_OUT, _STATE, _COMMAND, _STATUS = 58, 59, 60, 62
_SAVE_STATE = "builtin printf '%s\\0' \"$PWD\"; builtin declare -p; builtin declare -f"
_PRELUDE = f"""\
__sandbox_exit() {{ {{ {_SAVE_STATE}; }} >&{_STATE} 2>/dev/null; }}
trap __sandbox_exit EXIT
trap 'exit 137' USR1
"""
_STEP = (
    f"IFS= builtin read -r -d '' -u {_COMMAND} __sandbox_command || builtin :; "
    'builtin eval "$__sandbox_command" '
    f"</dev/null >&{_OUT} 2>&{_OUT} {_OUT}>&- {_COMMAND}<&- {_STATUS}>&-; "
    f'builtin printf \'%s %s\\0\' "$?" "$PWD" >&{_STATUS}\n'
)
_INTERRUPT_GRACE_S = 0.5
_KILL_GRACE_S = 10.0
_STATE_LIMIT_BYTES = 2 << 20
_REPORT_LIMIT_BYTES = 16 << 10
"""A report is a status and a directory, whose path has at most 4,096 bytes."""


class _Shell:
    """One bash process: its pipes, and futures for what it reports."""

    def __init__(self, child: int, exited: asyncio.Future[int], script: int, command: int) -> None:
        self.child = child
        self.exited = exited
        self.script = script
        self.command = command
        self.status_text = bytearray()
        self.state = bytearray()
        self.reported: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: PipeReader | None = None
        self.state_pipe: PipeReader | None = None

    def attach(self, status: int, state: int) -> None:
        self.status = PipeReader(status)
        self.status.start(self._on_status)
        self.state_pipe = PipeReader(state)
        self.state_pipe.start(self._on_state)

    def _on_status(self, data: bytes) -> None:
        # Programs inside can write here too, for ever: never keep more than a report can hold.
        self.status_text += data[: _REPORT_LIMIT_BYTES - len(self.status_text)]
        if b"\0" in data and not self.reported.done():
            self.reported.set_result(None)

    def _on_state(self, data: bytes) -> None:
        if len(self.state) < _STATE_LIMIT_BYTES:
            self.state += data

    def submit(self, command: bytes) -> None:
        """Hand over one command."""
        self.reported = asyncio.get_running_loop().create_future()
        self.status_text.clear()
        os.ftruncate(self.command, 0)
        view, offset = memoryview(command), 0
        while offset < len(command):
            offset += os.pwrite(self.command, view[offset:], offset)
        # The shell shares this file position.
        os.lseek(self.command, 0, os.SEEK_SET)
        try:
            os.write(self.script, _STEP.encode())
        except BrokenPipeError:
            return  # it died since the last command: its exit is on the way
        except BlockingIOError:
            return  # a program inside filled the shell's script: no report comes, and the timeout ends it

    def close(self) -> None:
        """Close our ends."""
        for pipe in (self.status, self.state_pipe):
            if pipe:
                pipe.close()
        os.close(self.script)
        os.close(self.command)


class MiniSession:
    """Implements `sandbox.types.Session`."""

    def __init__(self, sandbox: "MiniSandbox") -> None:
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._shell: _Shell | None = None
        self._cwd = sandbox.workdir
        self._state = b""
        self._opened = time.monotonic()
        self._closed = False
        # One output pipe for the session's life: background jobs outlive the shell that started them.
        read_end, self._out_write = sandbox.make_pipe()
        self._out = PipeReader(read_end)

    async def run(
        self, command: str | bytes, *, timeout_s: float, output_limit_bytes: int | None = None
    ) -> ExecResult:
        """See `sandbox.types.Session.run`."""
        data = command.encode("utf-8", "surrogateescape") if isinstance(command, str) else command
        limit = self._sandbox.limits.output_bytes if output_limit_bytes is None else output_limit_bytes
        async with self._lock:
            if self._closed:
                raise SandboxLostError("the session is closed")
            shell = await self._live_shell()
            return await self._run(shell, data, timeout_s, limit)

    async def _run(self, shell: _Shell, command: bytes, timeout_s: float, limit: int) -> ExecResult:
        collector = Collector(limit)
        self._out.start(collector.add)
        started = time.monotonic()
        timed_out = False
        finished = False
        try:
            shell.submit(command)
            done, _ = await asyncio.wait(
                {shell.reported, shell.exited}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                timed_out = True
                await self._interrupt(shell, started)
            status = self._settle(shell)
            finished = True
            self._out.drain()
        finally:
            self._out.stop()
            if not finished:
                self._abandon(shell, started)
        output, truncated = collector.result()
        return ExecResult(
            output=output,
            exit_status=None if timed_out else status,
            timed_out=timed_out,
            truncated=truncated,
            duration_s=time.monotonic() - started,
        )

    def _settle(self, shell: _Shell) -> int:
        """Exit status of the command; drops the shell when it ended."""
        if shell.exited.done():
            status = shell.exited.result()  # raises SandboxLostError with the sandbox
            if shell.reported.done() and not shell.reported.cancelled():
                self._note_report(shell)
            self._retire(shell)
            return status
        return self._note_report(shell)

    def _note_report(self, shell: _Shell) -> int:
        text, _, _ = bytes(shell.status_text).partition(b"\0")
        status, _, cwd = text.partition(b" ")
        if cwd:
            self._cwd = os.fsdecode(cwd)
        # A command that forged or garbled the report gets no exit status of 0 out of it.
        return int(status) & 0xFF if status.isdigit() else 255

    def _retire(self, shell: _Shell) -> None:
        """Keep what the ended shell saved."""
        if shell.state_pipe:
            shell.state_pipe.drain()
        cwd, _, state = bytes(shell.state).partition(b"\0")
        if cwd and len(state) < _STATE_LIMIT_BYTES:
            self._cwd, self._state = os.fsdecode(cwd), state
        shell.close()
        self._shell = None

    async def _interrupt(self, shell: _Shell, started: float) -> None:
        await self._sandbox.kill(shell.child, elapsed_s=time.monotonic() - started, shell=True)
        await asyncio.wait({shell.exited}, timeout=_INTERRUPT_GRACE_S)
        if shell.exited.done():
            return
        cwd = self._sandbox.last_cwd(shell.child)
        await self._sandbox.kill(shell.child, elapsed_s=time.monotonic() - started, shell=False)
        await asyncio.wait({shell.exited}, timeout=_KILL_GRACE_S)
        if not shell.exited.done():
            raise SandboxLostError("the shell could not be killed")
        self._cwd = cwd or self._cwd

    def _abandon(self, shell: _Shell, started: float) -> None:
        """Cancelled, or the sandbox is gone: never let the next command meet this one's report."""
        self._sandbox.kill_soon(shell.child, elapsed_s=time.monotonic() - started)
        shell.close()
        self._shell = None

    async def _live_shell(self) -> _Shell:
        shell = self._shell
        if shell and shell.exited.done():
            # Killed between two commands (by the command before, or for memory).
            shell.exited.result()
            self._retire(shell)
            shell = None
        if shell is None:
            shell = await self.start()
        return shell

    async def start(self) -> _Shell:
        """Start a shell, with the state of the one before."""
        script_read, script_write = self._sandbox.make_pipe()
        status_read, status_write = self._sandbox.make_pipe()
        state_read, state_write = self._sandbox.make_pipe()
        command = os.memfd_create("command")
        os.set_blocking(script_write, False)
        theirs = (script_read, self._out_write, state_write, command, status_write)
        try:
            child, exited = await self._sandbox.spawn(
                ["bash", "--norc", "--noprofile", "-s"],
                fds=theirs,
                targets=(0, _OUT, _STATE, _COMMAND, _STATUS),
                null=(1, 2),
                cwd=self._cwd,
                fallback_cwd=self._sandbox.workdir,
            )
        finally:
            for fd in (script_read, status_write, state_write):
                os.close(fd)
        shell = _Shell(child, exited, script_write, command)
        shell.attach(status_read, state_read)
        self._shell = shell
        os.write(script_write, _PRELUDE.encode())
        if self._state:
            await self._run(shell, self._state, _KILL_GRACE_S, 0)
            if self._shell is not shell:
                self._state = b""  # what was saved kills the shell: do without
                return await self.start()
        return shell

    async def close(self) -> None:
        """See `sandbox.types.Session.close`."""
        if self._closed:
            return
        self._closed = True
        shell, self._shell = self._shell, None
        if shell:
            try:
                if not shell.exited.done():
                    await self._sandbox.kill(
                        shell.child, elapsed_s=time.monotonic() - self._opened, shell=False
                    )
                    await asyncio.wait({shell.exited}, timeout=_KILL_GRACE_S)
            except SandboxLostError:
                pass  # nothing is left to kill
            finally:
                shell.close()
        self._out.close()
        os.close(self._out_write)
