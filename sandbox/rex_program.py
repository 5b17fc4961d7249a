"""A program that is talked to line by line (gdb, a Python prompt), on a terminal of its own.

SWE-ReX's interactive actions type into the one terminal of their session. Ours have none, so the program runs
under script(1) in a second session that gets the first one's exported variables and directory; a FIFO
takes what is typed, a file what it prints. Shell functions and unexported variables are not seen by it, and
nothing that it does changes the session it was started from. Needs util-linux inside the sandbox.
"""

import asyncio
import shlex
import time

from swerex.exceptions import SwerexException

from sandbox import rex_text
from sandbox.rex_text import PROMPT
from sandbox.types import GIB, Sandbox, Session

_SETUP_S = 10.0
_FOREVER_S = 365 * 86400.0
_FIRST_POLL_S = 0.005
_LONGEST_POLL_S = 0.1
_READ_LIMIT_BYTES = 1 * GIB
_NOT_FOUND = 127


class Program:
    """One running program. Made by `start`."""

    def __init__(self, sandbox: Sandbox, session: Session, name: str) -> None:
        self._sandbox = sandbox
        self._session = session
        self._name = name
        self._seen = 0  # bytes of the output that were handed out
        self._task: asyncio.Task[int | None] | None = None

    @classmethod
    async def start(cls, sandbox: Sandbox, shell: Session, command: str, name: str) -> "Program":
        """Start `command` with the shell's variables and directory; `name` is a path for its files."""
        state = await shell.run('export -p; printf "cd %q\\n" "$PWD"', timeout_s=_SETUP_S)
        session = await sandbox.open_session()
        program = cls(sandbox, session, name)
        try:
            await session.run(state.output, timeout_s=_SETUP_S)
            ready = await session.run(
                f"command -v script >&2 || exit {_NOT_FOUND}; mkfifo -m 600 {name}.in && : > {name}.out",
                timeout_s=_SETUP_S,
            )
            if ready.exit_status != 0:
                raise SwerexException(f"cannot run an interactive program: {ready.text.strip()}"
                                      " (needs script(1), of util-linux, inside the sandbox)")  # fmt: skip
        except BaseException:
            await session.close()
            raise
        program._task = asyncio.create_task(program._run(command))
        return program

    async def _run(self, command: str) -> int | None:
        # <> keeps the FIFO open for writing, so that it has no end between two lines.
        line = (
            f"SHELL=/bin/bash script -qfec {shlex.quote(command)} /dev/null"
            f" <>{self._name}.in >{self._name}.out 2>&1"
        )
        result = await self._session.run(line, timeout_s=_FOREVER_S)
        return result.exit_status

    @property
    def ended(self) -> bool:
        """True once it has ended by itself or was killed."""
        return self._task is not None and self._task.done()

    @property
    def exit_status(self) -> int | None:
        """Its exit status; None while it runs, and when it was killed."""
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception():
            return None
        return task.result()

    async def _send(self, data: bytes) -> None:
        copy = ["sh", "-c", 'cat > "$1"', "sh", f"{self._name}.in"]
        await self._sandbox.exec(copy, stdin=data, timeout_s=_SETUP_S)

    async def type_line(self, line: str) -> None:
        """Type a line and the return key."""
        await self._send(line.encode("utf-8", "surrogateescape") + b"\n")

    async def interrupt(self) -> None:
        """Type Ctrl-C: its terminal makes SIGINT of it (termios(3), VINTR)."""
        await self._send(b"\x03")

    async def read(self, wanted: list[str], limit_s: float) -> tuple[str, str | None]:
        """What it printed up to the first of `wanted`, or up to its end (then the second part is the
        prompt). After `limit_s` without either: nothing, None; what it printed is kept for the next read."""
        deadline, pause = time.monotonic() + limit_s, _FIRST_POLL_S
        while True:
            ended = self.ended  # before reading, so that what it printed last is seen
            data = await self._sandbox.read_file(f"{self._name}.out", limit_bytes=_READ_LIMIT_BYTES)
            text = decode_partial(data[self._seen :])
            match = rex_text.first_match(text, wanted)
            if match is not None:
                position, string = match
                self._seen += len((text[:position] + string).encode("utf-8", "surrogateescape"))
                return _cleaned(text[:position]), string
            if ended:
                self._seen = len(data)
                await self._clean_up()
                return _cleaned(text), PROMPT
            if time.monotonic() >= deadline:
                return "", None
            await self._pause(min(pause, max(deadline - time.monotonic(), 0)))
            pause = min(pause * 1.5, _LONGEST_POLL_S)

    async def _pause(self, seconds: float) -> None:
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)

    async def kill(self) -> None:
        """End it and all that it started."""
        await self._session.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._clean_up()

    async def _clean_up(self) -> None:
        await self._session.close()
        remove = ["rm", "-f", f"{self._name}.in", f"{self._name}.out"]
        await self._sandbox.exec(remove, timeout_s=_SETUP_S)


def decode_partial(data: bytes) -> str:
    """Text whose length in bytes is that of the data: undecodable bytes become surrogates."""
    return data.decode("utf-8", "surrogateescape")


def _cleaned(text: str) -> str:
    return rex_text.from_terminal(text.encode("utf-8", "surrogateescape"))
