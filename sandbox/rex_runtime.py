"""SWE-ReX's `AbstractRuntime` over one open sandbox.

Requests, responses and exceptions are SWE-ReX's own. A runtime works in the event loop of its sandbox; given
a `SandboxHost` it may be called from any loop. docs/rex.md lists where it differs from SWE-ReX's local
runtime on purpose. Opening and closing the sandbox is the deployment's business.
"""

import logging
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from swerex.exceptions import (
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    BashInterruptAction,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

from sandbox import rex_text
from sandbox.errors import SandboxLostError
from sandbox.rex_host import SandboxHost
from sandbox.rex_session import RexSession, timeout_s
from sandbox.types import MIB, ExecResult, Sandbox

_ALIVE_S = 10.0
_FILE_LIMIT_BYTES = 256 * MIB
_SPLIT_STREAMS = """\
"$@" 2>"$0"; status=$?; printf %s {divider}; tail -c {limit} "$0"; rm -f "$0"; exit $status
"""
_NOT_STARTED = 126
"""What the sandbox reports when a command could not be started, say for want of its directory."""


class SandboxGoneError(SwerexException, SandboxLostError):
    """The sandbox died or was closed: a SWE-ReX exception and a `sandbox.errors` one."""


class MiniSandboxRuntime(AbstractRuntime):
    """Runs things in one sandbox. Sessions and commands may run at the same time."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        workdir: str = "/",
        host: SandboxHost | None = None,
        output_limit_bytes: int = 16 * MIB,
        logger: logging.Logger | None = None,
    ) -> None:
        """`workdir` is what relative paths are relative to, and where commands start. With a `host`, the one
        that `sandbox` was opened in. Output of one command is kept up to `output_limit_bytes`."""
        self.logger = logger or get_logger("rex-runtime")
        self._sandbox = sandbox
        self._workdir = workdir
        self._host = host
        self._limit = output_limit_bytes
        self._sessions: dict[str, RexSession] = {}
        self._closed = False

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox itself. Its methods belong to the host's loop: use `call`."""
        return self._sandbox

    async def call[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the sandbox (say `sandbox.fork()`) from any event loop."""
        if self._closed:
            work.close()
            raise SandboxGoneError("the runtime is closed")
        try:
            return await (work if self._host is None else self._host.call(work))
        except SandboxLostError as error:
            raise error if isinstance(error, SwerexException) else SandboxGoneError(str(error)) from error

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether a program can be run inside."""
        limit_s = _ALIVE_S if timeout is None else timeout
        try:
            result = await self.call(self._sandbox.exec(["true"], timeout_s=limit_s))
        except SandboxGoneError as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        if result.exit_status == 0:
            return IsAliveResponse(is_alive=True)
        reason = f"no answer in {limit_s} s" if result.timed_out else result.text
        return IsAliveResponse(is_alive=False, message=reason)

    # -- sessions

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Start a shell. Raises SessionExistsError; CommandTimeoutError for slow startup files."""
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        return await self.call(self._create_session(request))

    async def _create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        session = RexSession(self._sandbox, await self._sandbox.open_session(), self._limit)
        if self._sessions.setdefault(request.session, session) is not session:
            await session.close()
            raise SessionExistsError(f"session {request.session} already exists")
        try:
            return CreateBashSessionResponse(output=await session.source(request))
        except BaseException:
            del self._sessions[request.session]
            await session.close()
            raise

    def _session(self, name: str) -> RexSession:
        session = self._sessions.get(name)
        if session is None:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return session

    async def run_in_session(self, action: Action) -> Observation:
        """Run a command in a shell, type to the program that runs in it, or interrupt either."""
        session = self._session(action.session)
        if isinstance(action, BashInterruptAction):
            return await self.call(session.interrupt(action))
        return await self.call(session.run(action))

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """Kill a shell and all it started."""
        session = self._session(request.session)
        del self._sessions[request.session]
        await self.call(session.close())
        return CloseBashSessionResponse()

    # -- commands

    async def execute(self, command: Command) -> CommandResponse:
        """Run a program. `env` is added to the sandbox's variables. Raises CommandTimeoutError
        and, with `check`, NonZeroExitCodeError. What cannot be started has exit code 126 or 127."""
        argv = [command.command] if isinstance(command.command, str) else list(command.command)
        if command.shell:
            argv = ["/bin/sh", "-c", *argv]
        response = await self.call(self._execute(command, argv))
        if command.check and response.exit_code != 0:
            message = (
                f"Command {command.command!r} failed with exit code {response.exit_code}. "
                f"Stdout:\n{response.stdout!r}\nStderr:\n{response.stderr!r}"
            )
            raise NonZeroExitCodeError(rex_text.with_reason(command.error_msg, message))
        return response

    async def _execute(self, command: Command, argv: list[str]) -> CommandResponse:
        if command.merge_output_streams:
            result = await self._exec(command, argv)
            return CommandResponse(stdout=rex_text.decode(result.output), exit_code=result.exit_status)
        # The sandbox gives both streams as one. So stderr goes to a file, and then behind stdout; the program
        # cannot foresee what stands between them.
        divider = uuid.uuid4().hex
        script = _SPLIT_STREAMS.format(divider=divider, limit=self._limit // 2 - 256)
        result = await self._exec(command, ["/bin/sh", "-c", script, f"/tmp/.rex-{uuid.uuid4().hex}", *argv])
        stdout, found, stderr = result.output.rpartition(divider.encode())
        if not found and result.exit_status != _NOT_STARTED:
            stdout, stderr = result.output, b""  # the shell around it was killed
        return CommandResponse(
            stdout=rex_text.decode(stdout), stderr=rex_text.decode(stderr), exit_code=result.exit_status
        )

    async def _exec(self, command: Command, argv: list[str]) -> ExecResult:
        result = await self._sandbox.exec(
            argv,
            timeout_s=timeout_s(command.timeout),
            env=command.env,
            cwd=self._absolute(command.cwd or "."),
            output_limit_bytes=self._limit,
        )
        if result.timed_out:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        return result

    # -- files

    def _absolute(self, path: str) -> str:
        return str(Path(self._workdir, path))

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """A file's text, line ends as they are. Raises what `Path.read_text` raises."""
        path = self._absolute(request.path)
        data = await self.call(self._sandbox.read_file(path, limit_bytes=_FILE_LIMIT_BYTES))
        text = data.decode(request.encoding or "utf-8", request.errors or "strict")
        return ReadFileResponse(content=text)

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Create or replace a file; its directories are made, and a file that is there keeps its mode."""
        data = request.content.encode("utf-8", "surrogateescape")
        await self.call(self._write_file(self._absolute(request.path), data))
        return WriteFileResponse()

    async def _write_file(self, path: str, data: bytes) -> None:
        known = await self._sandbox.exec(["stat", "-L", "-c", "%a", "--", path], timeout_s=_ALIVE_S)
        mode = int(known.output, 8) if known.exit_status == 0 else 0o644
        await self._sandbox.write_file(path, data, mode=mode & 0o777)

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or directory of this machine into the sandbox."""
        source = Path(request.source_path)
        await self.call(self._upload(source, self._absolute(request.target_path)))
        return UploadResponse()

    async def _upload(self, source: Path, target: str) -> None:
        if not source.is_dir():
            inside = await self._sandbox.exec(["test", "-d", target], timeout_s=_ALIVE_S)
            if inside.exit_status == 0:
                target = str(Path(target, source.name))  # as cp(1) does
        await self._sandbox.upload(source, target)

    # -- beyond SWE-ReX

    async def download(self, path: str, target: Path) -> None:
        """Copy a file or directory from inside to `target`, which must not exist yet."""
        await self.call(self._sandbox.download(self._absolute(path), target))

    async def diff(self, root: str | None = None) -> str:
        """What was changed below `root` (the workdir) as a git-format patch, read from outside: nothing that
        ran inside can falsify it."""
        return await self.call(self._sandbox.diff(self._absolute(root or ".")))

    async def close(self) -> CloseResponse:
        """Close every session. Idempotent. The sandbox is closed by who opened it."""
        if not self._closed:
            try:
                await self.call(self._close())
            except SandboxGoneError as error:
                self.logger.debug("Sessions ended with their sandbox: %s", error)
            self._closed = True
        return CloseResponse()

    async def _close(self) -> None:
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()
