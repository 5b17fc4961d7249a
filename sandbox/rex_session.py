"""One SWE-ReX bash session, over a `sandbox.types.Session`.

Says what SWE-ReX's own session says (observations, exceptions, what `check` means), without its terminal:
commands are framed by the session itself, so output is never searched for prompts. Programs that need to be
talked to run in `sandbox.rex_program`. Must be used in the event loop of its sandbox.
"""

import re
import uuid

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CreateBashSessionRequest,
)

from sandbox import rex_text
from sandbox.rex_program import Program
from sandbox.rex_text import PROMPT
from sandbox.types import ExecResult, Sandbox, Session

FOREVER_S = 365 * 86400.0
"""What SWE-ReX's `timeout=None` becomes."""
_SYNTAX_CHECK_S = 30.0
_QUIT_GRACE_S = 5.0


def timeout_s(timeout: float | None) -> float:
    """SWE-ReX's timeout as ours."""
    return FOREVER_S if timeout is None else timeout


class RexSession:
    """A named shell of a runtime."""

    def __init__(self, sandbox: Sandbox, session: Session, output_limit_bytes: int) -> None:
        self._sandbox = sandbox
        self._session = session
        self._limit = output_limit_bytes
        self._program: Program | None = None
        self._unseen = ""  # output of a command that timed out; SWE-ReX shows it to the interrupt after it

    async def source(self, request: CreateBashSessionRequest) -> str:
        """Source the startup files; their output. A file that is missing or fails is in the output."""
        if not request.startup_source:
            return ""
        command = " ; ".join(f"source {path}" for path in request.startup_source)
        result = await self._shell(command, request.startup_timeout)
        if result.timed_out:
            raise CommandTimeoutError(
                f"timeout after {request.startup_timeout} seconds while sourcing {request.startup_source}"
            )
        return _text(result)

    async def run(self, action: BashAction) -> BashObservation:
        """See `swerex.runtime.abstract.BashAction`."""
        if self._program is not None or action.is_interactive_command:
            return await self._converse(action)
        self._unseen = ""
        await self._check_syntax(action.command)
        result = await self._shell(action.command, timeout_s(action.timeout))
        if result.timed_out:
            self._unseen = _text(result)
            raise _timeout(action)
        output = _text(result)
        match = rex_text.first_match(output, action.expect)
        observation = BashObservation(
            output=output, exit_code=result.exit_status, expect_string=match[1] if match else PROMPT
        )
        return _checked(action, observation)

    async def _shell(self, command: str, limit_s: float) -> ExecResult:
        return await self._session.run(command, timeout_s=limit_s, output_limit_bytes=self._limit)

    async def _check_syntax(self, command: str) -> None:
        """Nothing of a command with a syntax error may run. Moreover an unfinished `$(` corrupts the heap of
        bash 5.2, and it dies some commands later: such text must not reach the session's shell at all."""
        if rex_text.is_plain_command(command):
            return
        if "\0" in command:
            raise BashIncorrectSyntaxError("A command cannot hold a NUL character", extra_info=_bash_said(""))
        data = command.encode("utf-8", "surrogateescape") + b"\n"
        result = await self._sandbox.exec(["bash", "-n"], stdin=data, timeout_s=_SYNTAX_CHECK_S)
        if result.exit_status:
            said = rex_text.decode(result.output)
            raise BashIncorrectSyntaxError(
                f"Error (exit code {result.exit_status}) while checking bash command \n{command!r}\n"
                f"---- Stderr ----\n{said}\n---- Stdout ----\n",
                extra_info=_bash_said(said),
            )

    async def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """See `swerex.runtime.abstract.BashInterruptAction`."""
        program = self._program
        if program is None:
            await self._session.interrupt()
            output, self._unseen = self._unseen, ""
            return BashObservation(output=output.strip(), exit_code=0, expect_string=PROMPT)
        output, matched = "", None
        for _ in range(max(action.n_retry, 1)):
            await program.interrupt()
            part, matched = await program.read(action.expect, action.timeout)
            output += part
            if matched is not None:
                break
        if matched is None:
            await program.kill()
            matched = PROMPT
        if program.ended:
            self._program = None
        return BashObservation(output=output.strip(), exit_code=0, expect_string=matched)

    async def _converse(self, action: BashAction) -> BashObservation:
        """Start a program on a terminal of its own, or type a line to the one that runs."""
        program = self._program
        if program is None:
            program = self._program = await Program.start(
                self._sandbox, self._session, action.command, f"/tmp/.rex-{uuid.uuid4().hex}"
            )
        else:
            await program.type_line(action.command)
        limit_s = timeout_s(action.timeout)
        output, matched = await program.read(action.expect, limit_s)
        if matched is None:
            raise _timeout(action)
        if action.is_interactive_quit and not program.ended:
            _, _ = await program.read([], _QUIT_GRACE_S)
        if program.ended:
            self._program = None
        if action.is_interactive_command or action.is_interactive_quit:
            output = _without_echo(output, action.command).strip()
            return BashObservation(output=output, exit_code=0, expect_string=matched)
        observation = BashObservation(
            output=_without_echo(output, action.command),
            exit_code=program.exit_status,
            expect_string=matched,
        )
        return _checked(action, observation)

    async def close(self) -> None:
        """End the program and the shell."""
        try:
            if self._program is not None:
                await self._program.kill()
        finally:
            await self._session.close()


def _text(result: ExecResult) -> str:
    return rex_text.plain(rex_text.decode(result.output))


def _bash_said(stderr: str) -> dict[str, str]:
    return {"bash_stdout": "", "bash_stderr": stderr}


def _without_echo(output: str, command: str) -> str:
    """Without the line that a terminal or a line editor repeats."""
    return re.sub(r"\A\s*" + re.escape(command.strip()) + r"[ \t]*\r?\n?", "", output, count=1)


def _timeout(action: BashAction) -> CommandTimeoutError:
    return CommandTimeoutError(
        f"timeout after {action.timeout} seconds while running command {action.command!r}"
    )


def _checked(action: BashAction, observation: BashObservation) -> BashObservation:
    """What `check` makes of an exit code."""
    if action.check == "ignore":
        return observation.model_copy(update={"exit_code": None})
    if action.check == "raise":
        if observation.exit_code is None:
            raise NoExitCodeError(f"{action.command!r} has not ended, so there is no exit code")
        if observation.exit_code != 0:
            message = (
                f"Command {action.command!r} failed with exit code {observation.exit_code}. "
                f"Here is the output:\n{observation.output!r}"
            )
            raise NonZeroExitCodeError(rex_text.with_reason(action.error_msg, message))
    return observation
