"""One bash process of a session: its descriptors, the line that runs a command, and what it reports.

A command is placed in a memory file that the shell shares. One line on the shell's script pipe makes it read
and `eval` the file and report `$?` and `$PWD` on a descriptor of its own. Nothing is ever looked for in the
output. The code of a command can spoil the shell it runs in (functions named `builtin`, `set -n`, closed
descriptors, ...), so nothing is taken on trust:

- names and reports carry random tokens, new for every command, so that no report is another command's;
- the first line of what is evaluated sets a variable that the report must show, and the position in the
  memory file tells whether the command was read at all: a command that did not begin is known not to have;
- the line is followed by an empty one. Once that is read and no report has come, none will.

What to do then is decided in `sandbox.session`. Code inside that reads its own shell's memory can still forge
a report; it only fools its own agent, since grading never uses a session.
"""

import array
import asyncio
import fcntl
import os
import secrets
import termios
from dataclasses import dataclass

from sandbox.output import PipeReader

OUT, STATE, COMMAND, STATUS = 58, 59, 60, 62
"""Descriptors inside: output, saved state, the memory file, reports."""

STATE_LIMIT_BYTES = 2 << 20
_REPORT_LIMIT_BYTES = 16 << 10
"""A report is a status and a directory, whose path has at most 4,096 bytes."""
_BEGUN = "1"
_SKIPS = 2000

END_UNWINDING = (
    b"\\builtin trap - DEBUG __sandbox_ 2>/dev/null; \\builtin shopt -u extdebug; \\builtin set +T; "
    b"\\builtin unset -v __sandbox_skips"
)
"""A command that ends the effect of USR2; its text spares it from being skipped."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the shell says about one command."""

    status: int
    """`$?` after it."""
    begun: bool
    """False when the shell did not evaluate the command at all."""
    cwd: str
    """Directory the shell is in."""


def _token() -> str:
    """Begins with a letter: a digit after `\\0` would be read as part of that escape, printf(1)."""
    return "t" + secrets.token_hex(6)


def _prelude(secret: str) -> str:
    """First lines of a shell: save its state at the end, stop when told.

    INT must not end it when a command substitution dies of that signal. USR1 ends the shell. USR2 unwinds
    what it runs, as an interactive shell does on Ctrl-C: with `extdebug` a DEBUG trap that fails skips the
    command it precedes, bash(1), all but our own. Nothing in that trap may fork: it is inherited by every
    subshell, so one that forks never ends."""
    # Functions called like builtins would spoil the state and, restored, the next shell as well.
    clean = "unset -f unset builtin printf declare mapfile eval trap set shopt exit; unset -v __sandbox_skips"
    save = "builtin printf '%s\\0' \"$PWD\"; builtin declare -p; builtin declare -f"
    # A loop skips its commands for ever: such a shell ends, and a new one goes on with its state.
    give_up = f"((++__sandbox_skips < {_SKIPS})) || {{ trap - DEBUG; exit 137; }}"
    skip = f"[[ \\$BASH_COMMAND == *__sandbox_* ]] || {{ {give_up}; ((0)); }}"
    return (
        f"__sandbox_exit() {{ {clean}; {{ builtin printf '\\0{secret}\\0'; {save}; }} >&{STATE}; }} "
        "2>/dev/null\n"
        "trap __sandbox_exit EXIT\ntrap : INT\ntrap 'trap - DEBUG __sandbox_ 2>/dev/null; exit 137' USR1\n"
        f"trap \"__sandbox_skips=0; trap '{skip}' DEBUG; set -T; shopt -s extdebug\" USR2\n"
    )


class Shell:
    """One bash process: its pipes, and futures for what it reports."""

    def __init__(self, child: int, exited: asyncio.Future[int], script: int, command: int) -> None:
        self.child = child
        self.exited = exited
        self.reported: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self.broken = False
        """Its script pipe takes no more."""
        self._script = script
        self._command = command
        self._secret = _token()
        self._state_mark = b"\0" + self._secret.encode() + b"\0"
        self._report_mark = b"\0"
        self._status_text = bytearray()
        self._state = bytearray()
        self._status: PipeReader | None = None
        self._state_pipe: PipeReader | None = None

    def begin(self, status: int, state: int) -> None:
        """Listen on the read ends, and write the first lines."""
        self._status = PipeReader(status)
        self._status.start(self._on_status)
        self._state_pipe = PipeReader(state)
        self._state_pipe.start(self._on_state)
        self._write(_prelude(self._secret))

    def _on_status(self, data: bytes) -> None:
        # Programs inside can write here too, for ever: never keep more than a report can hold.
        self._status_text += data
        if not self.reported.done() and (report := self._find_report()):
            self.reported.set_result(report)
        if len(self._status_text) > _REPORT_LIMIT_BYTES:
            del self._status_text[:-_REPORT_LIMIT_BYTES]

    def _find_report(self) -> Report | None:
        _, mark, text = self._status_text.rpartition(self._report_mark)
        fields, end, _ = text.partition(b"\0")
        status, _, rest = fields.partition(b" ")
        proof, _, cwd = rest.partition(b" ")
        if not (mark and end and status.isdigit()):
            return None
        return Report(int(status) & 0xFF, bytes(proof) == _BEGUN.encode(), os.fsdecode(bytes(cwd)))

    def _on_state(self, data: bytes) -> None:
        if len(self._state) < STATE_LIMIT_BYTES:
            self._state += data

    def submit(self, command: bytes) -> None:
        """Hand over one command."""
        token = _token()
        name = f"__sandbox_{token}"
        self.reported = asyncio.get_running_loop().create_future()
        self._status_text.clear()
        self._report_mark = b"\0%s " % token.encode()
        # Without its stderr, else `set -x` would show this line as the agent's own.
        text = f"{{ {name}={_BEGUN}; }} 2>&-\n".encode() + command
        os.ftruncate(self._command, 0)
        view, offset = memoryview(text), 0
        while offset < len(text):
            offset += os.pwrite(self._command, view[offset:], offset)
        # The shell shares this file position.
        os.lseek(self._command, 0, os.SEEK_SET)
        # The backslash keeps aliases out; the empty line at the end tells us when the first one is over.
        self._write(
            f"\\builtin mapfile -d '' -u {COMMAND} {name}; \\builtin eval \"${{{name}}}\" "
            f"</dev/null >&{OUT} 2>&{OUT} {OUT}>&- {COMMAND}<&- {STATUS}>&-; "
            f'\\builtin printf \'\\0{token} %s %s %s\\0\' "$?" "${{{name}:0:1}}" "$PWD" >&{STATUS}; '
            f"\\builtin unset -v {name}\n\n"
        )

    def _write(self, text: str) -> None:
        try:
            # At most PIPE_BUF bytes, so all or nothing, pipe(7).
            os.write(self._script, text.encode())
        except BrokenPipeError:
            return  # it died since the last command: its exit is on the way
        except BlockingIOError:
            self.broken = True  # a program inside filled the pipe

    def end_input(self) -> None:
        """End an idle shell, which acts on no signal while it waits for input."""
        if self._script >= 0:
            os.close(self._script)
            self._script = -1

    def has_begun(self) -> bool:
        """Whether the shell has read the command."""
        return os.lseek(self._command, 0, os.SEEK_CUR) > 0

    def went_on(self) -> bool:
        """Whether it has read past the line that runs the command, after which no report can come.

        One that is in the pipe at this moment is taken first."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self._script, termios.FIONREAD, waiting)
        if waiting[0] > 0:
            return False
        if self._status:
            self._status.drain()
        return not self.reported.done()

    def saved_state(self) -> tuple[str, bytes] | None:
        """Directory and state of an ended shell, if it saved them."""
        if self._state_pipe:
            self._state_pipe.drain()
        _, mark, saved = bytes(self._state).rpartition(self._state_mark)
        cwd, _, state = saved.partition(b"\0")
        return (os.fsdecode(cwd), state) if mark and cwd and len(self._state) < STATE_LIMIT_BYTES else None

    def close(self) -> None:
        """Close our ends."""
        for pipe in (self._status, self._state_pipe):
            if pipe:
                pipe.close()
        self.end_input()
        os.close(self._command)
