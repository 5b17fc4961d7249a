"""A persistent bash inside a sandbox.

`sandbox.shell` runs commands in one bash process; this module keeps a session going over many. When a shell
ends (`exit`, `set -e`, a timeout) its variables, functions and directory go on in a new one. A shell that a
command has spoiled is replaced too: a command that did not begin runs in the new one, and one whose end
nobody reported has status 255. So status 0 means that the command ran and succeeded.
"""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.errors import SandboxLostError
from sandbox.output import Collector, OutputFile, PipeReader, exec_result
from sandbox.shell import COMMAND, END_UNWINDING, OUT, STATE, STATUS, Report, Shell
from sandbox.types import ExecResult, Job

if TYPE_CHECKING:
    from sandbox.instance import MiniSandbox

_UNKNOWN, _INTERRUPTED = 255, 130
_NOTE = "\n[the session's shell stopped working; a new one was started]\n"
_ATTEMPTS = 3
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 1.0
_INTERRUPT_GRACE_S = 0.5
_INTERRUPT_STEPS_S = (0.3, 0.4, 0.5)
"""After Ctrl-C: until it is repeated, until the shell is told to end, until all is killed."""
_KILL_GRACE_S = 10.0


@dataclass(slots=True)
class _Running:
    """The command that is running now."""

    shell: Shell
    started: float
    over: asyncio.Event
    interrupted: bool = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started


class MiniSession:
    """Implements `sandbox.types.Session`."""

    def __init__(self, sandbox: "MiniSandbox") -> None:
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._shell: Shell | None = None
        self._shells: list[int] = []
        self._running: _Running | None = None
        self._cwd = sandbox.workdir
        self._state = b""
        self._opened = time.monotonic()
        self._closed = False
        # One output pipe for the session's life: background jobs outlive the shell that started them.
        read_end, self._out_write = sandbox.make_pipe()
        self._out = PipeReader(read_end)

    async def run(
        self,
        command: str | bytes,
        *,
        timeout_s: float,
        output_limit_bytes: int | None = None,
        output_file: Path | None = None,
    ) -> ExecResult:
        """See `sandbox.types.Session.run`. Raises OSError when `output_file` cannot be opened, and
        SandboxError, after the command, when it could not take all."""
        data = command.encode("utf-8", "surrogateescape") if isinstance(command, str) else command
        limit = self._sandbox.limits.output_bytes if output_limit_bytes is None else output_limit_bytes
        async with self._lock:
            if self._closed:
                raise SandboxLostError("the session is closed")
            file = OutputFile(output_file) if output_file else None
            try:
                result = await self._run(data, timeout_s, Collector(limit), file)
            finally:
                if file:
                    file.close()
            if file:
                file.check(result.exit_status)
            return result

    async def _run(
        self, command: bytes, timeout_s: float, collector: Collector, file: OutputFile | None
    ) -> ExecResult:
        started = time.monotonic()
        for _ in range(_ATTEMPTS):
            shell = await self._live_shell()
            left_s = timeout_s - (time.monotonic() - started)
            status, begun = await self._run_in(shell, command, left_s, collector, file)
            if begun:
                note = _NOTE if status == _UNKNOWN and self._shell is None else ""
                return exec_result(collector, status=status, started=started, note=note)
            # The command before spoiled this shell, which never began the new one: nothing runs twice.
        return exec_result(collector, status=_UNKNOWN, started=started, note=_NOTE)

    async def _run_in(
        self,
        shell: Shell,
        command: bytes,
        timeout_s: float,
        collector: Collector,
        file: OutputFile | None = None,
        *,
        ours: bool = False,
    ) -> tuple[int | None, bool]:
        """(status or None for a timeout, whether the command began). `ours` cannot be interrupted."""
        running = _Running(shell, time.monotonic(), asyncio.Event())
        self._running = None if ours else running
        finished = False
        self._out.start(collector.add, file)
        try:
            shell.submit(command)
            over = await self._wait(shell, timeout_s)
            await self._out.finish()
            status, begun = await self._settle(shell) if over else (None, True)
            if not over:
                await self._end(shell, running.started)
            elif running.interrupted:
                status, begun = _INTERRUPTED, True
            finished = True
        finally:
            running.over.set()
            self._running = None
            self._out.stop()
            if not finished:
                self._abandon(running)
        if running.interrupted and self._shell is shell:
            await self._run_in(shell, END_UNWINDING, _KILL_GRACE_S, Collector(0), ours=True)
        return status, begun

    @staticmethod
    async def _wait(shell: Shell, timeout_s: float) -> bool:
        """Until the command is over, in whatever way; False when time is up."""
        deadline = time.monotonic() + timeout_s
        look_s = _FIRST_LOOK_S
        while not shell.broken:
            left_s = max(0.0, deadline - time.monotonic())
            done, _ = await asyncio.wait(
                {shell.reported, shell.exited},
                timeout=min(left_s, look_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done or shell.went_on():
                return True
            if left_s <= look_s:
                return False
            look_s = min(2 * look_s, _LAST_LOOK_S)
        return True

    async def _settle(self, shell: Shell) -> tuple[int, bool]:
        """Exit status of the command and whether it began; drops a shell that ended or is spoiled."""
        report: Report | None = shell.reported.result() if shell.reported.done() else None
        if report and report.cwd:
            self._cwd = report.cwd
        if shell.exited.done():
            status = shell.exited.result()  # raises SandboxLostError with the sandbox
            begun = report is not None or shell.has_begun()
            self._retire(shell)
            return status, begun
        if report and report.begun:
            return report.status, True
        begun = report is None and shell.has_begun()
        shell.end_input()
        await asyncio.wait({shell.exited}, timeout=_INTERRUPT_GRACE_S)
        await self._end(shell, time.monotonic())
        return _UNKNOWN, begun

    def _retire(self, shell: Shell) -> None:
        """Keep what the ended shell saved."""
        saved = shell.saved_state()
        if saved:
            self._cwd, self._state = saved
        shell.close()
        self._shell = None

    async def _end(self, shell: Shell, since: float) -> None:
        """End the shell and what it started since that time; its state is saved if it still can."""
        # What is printed from here on is bash's "Killed" and the like, which no command wrote.
        self._out.discard()
        await self._sandbox.kill(shell.child, elapsed_s=time.monotonic() - since, shell=True)
        await asyncio.wait({shell.exited}, timeout=_INTERRUPT_GRACE_S)
        if not shell.exited.done():
            cwd = self._sandbox.last_cwd(shell.child)
            await self._sandbox.kill(shell.child, elapsed_s=time.monotonic() - since, shell=False)
            await asyncio.wait({shell.exited}, timeout=_KILL_GRACE_S)
            if not shell.exited.done():
                raise SandboxLostError("the shell could not be killed")
            self._cwd = cwd or self._cwd
        self._out.drain()
        shell.exited.result()  # raises SandboxLostError with the sandbox
        self._retire(shell)

    def _abandon(self, running: _Running) -> None:
        """Cancelled, or the sandbox is gone: never let the next command meet this one's report."""
        if self._shell is running.shell:
            self._sandbox.kill_soon(running.shell.child, elapsed_s=running.elapsed_s)
            running.shell.close()
            self._shell = None

    async def _live_shell(self) -> Shell:
        shell = self._shell
        if shell and shell.exited.done():
            # Killed between two commands (by the command before, or for memory).
            shell.exited.result()
            self._retire(shell)
            shell = None
        if shell is None:
            shell = await self.start()
        return shell

    async def start(self) -> Shell:
        """Start a shell, with the state of the one before."""
        shell = await self._spawn()
        if self._state:
            await self._run_in(shell, self._state, _KILL_GRACE_S, Collector(0), ours=True)
            if self._shell is not shell:
                self._state = b""  # what was saved kills or spoils the shell: do without
                return await self.start()
        return shell

    async def _spawn(self) -> Shell:
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
                targets=(0, OUT, STATE, COMMAND, STATUS),
                null=(1, 2),
                cwd=self._cwd,
                fallback_cwd=self._sandbox.workdir,
            )
        finally:
            for fd in (script_read, status_write, state_write):
                os.close(fd)
        shell = Shell(child, exited, script_write, command)
        shell.begin(status_read, state_read)
        self._shell = shell
        self._shells.append(child)
        return shell

    async def interrupt(self) -> bool:
        """See `sandbox.types.Session.interrupt`. What does not end on a second SIGINT is killed."""
        running = self._running
        if running is None:
            return False
        running.interrupted = True
        shell_signals = (signal.SIGUSR2, None, signal.SIGUSR1)
        tree_signals = (signal.SIGINT, signal.SIGINT, None)
        for shell, tree, wait_s in zip(shell_signals, tree_signals, _INTERRUPT_STEPS_S, strict=True):
            await self._sandbox.signal(running.shell.child, running.elapsed_s, shell=shell, tree=tree)
            if await _is_set(running.over, wait_s):
                return True
        self._out.discard()
        for shell_only in (True, False):
            await self._sandbox.kill(running.shell.child, elapsed_s=running.elapsed_s, shell=shell_only)
            if await _is_set(running.over, _INTERRUPT_GRACE_S):
                break
        return True

    async def jobs(self) -> tuple[Job, ...]:
        """See `sandbox.types.Session.jobs`. What the command running now started is not among them."""
        if self._closed:
            raise SandboxLostError("the session is closed")
        running = self._running
        return await self._sandbox.jobs(self._shells, running.elapsed_s if running else None)

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


async def _is_set(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
