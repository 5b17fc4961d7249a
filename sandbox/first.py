"""The owner's end of the conversation with a sandbox's first process.

Turns its messages into futures: exit statuses, replies, ends of kills. `sandbox.instance.MiniSandbox` builds
on it; what the first process does with the requests is in `sandbox.init`.
"""

import asyncio
import itertools
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandbox import files, wire
from sandbox.errors import SandboxLostError
from sandbox.link import Link
from sandbox.types import GIB, MIB, Job

_BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    # Without capabilities nothing can be given to another owner, which tar tries for uid 0.
    "TAR_OPTIONS": "--no-same-owner",
}
KILL_TIMEOUT_S = 10.0
"""How long a process may take to die before its sandbox counts as lost."""


class FirstProcess:
    """Base of an open sandbox: `on_other` and `on_end` are its own."""

    def __init__(self, sock: socket.socket, env: Mapping[str, str]) -> None:
        """`env`: the environment of its programs beside the fixed base; `spawn` adds to it."""
        self._env = {**_BASE_ENV, **env}
        self._ids = itertools.count(1)
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._replies: dict[int, asyncio.Future[int | None]] = {}
        self._kills: dict[int, asyncio.Future[None]] = {}
        self._cwds: dict[int, str] = {}
        self._link = Link(sock, self._on_message, self.on_end)

    def on_other(self, message: wire.Message, fds: list[int]) -> None:
        """A message that is none of the conversation; what is taken from `fds` is kept."""
        raise NotImplementedError

    def on_end(self) -> None:
        """The first process closed its end."""
        raise NotImplementedError

    def request_close(self) -> None:
        """Ask for the sandbox's end."""
        raise NotImplementedError

    def _on_message(self, message: wire.Message, fds: list[int]) -> None:
        if "exit" in message:
            future = self._exits.pop(message["exit"], None)
            if future and not future.done():
                future.set_result(message["status"])
        elif "reply" in message:
            self._on_reply(message, fds)
            fds = []
        elif "killed" in message:
            self._cwds[message["killed"]] = message["cwd"]
            killed = self._kills.pop(message["killed"], None)
            if killed and not killed.done():
                killed.set_result(None)
        else:
            self.on_other(message, fds)
        for fd in fds:
            os.close(fd)

    def _on_reply(self, message: wire.Message, fds: list[int]) -> None:
        future = self._replies.pop(message["reply"], None)
        if future is None or future.done():
            for fd in fds:
                os.close(fd)
        elif number := message.get("errno"):
            future.set_exception(OSError(number, os.strerror(number)))
        else:
            future.set_result(fds[0] if fds else None)

    def fail_waiting(self, error: SandboxLostError) -> None:
        """Fail every future; no warning where nobody waits any more."""
        for future in [*self._exits.values(), *self._replies.values(), *self._kills.values()]:
            if not future.done():
                future.set_exception(error)
                future.exception()
        self._exits.clear()
        self._replies.clear()
        self._kills.clear()

    async def _send(self, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        try:
            await self._link.send(message, fds)
        except SandboxLostError as error:
            raise SandboxLostError(await self.why_lost()) from error

    async def why_lost(self) -> str:
        """What ended it; waits a moment for who knows."""
        raise NotImplementedError

    async def ask(self, message: wire.Message, fds: tuple[int, ...] = ()) -> int | None:
        """Send a request and wait for its reply: a descriptor, or None. Raises OSError as the reply says."""
        number = next(self._ids)
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            await self._send({**message, "id": number}, fds)
            return await future
        finally:
            self._replies.pop(number, None)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        fds: tuple[int, ...],
        targets: tuple[int, ...],
        null: tuple[int, ...],
        cwd: str,
        env: Mapping[str, str] | None = None,
        fallback_cwd: str | None = None,
        terminal: str | None = None,
    ) -> tuple[int, asyncio.Future[int]]:
        """Start a program with `fds` as its descriptors `targets`, or on the `terminal` that
        `open_terminal` made. Returns its id and its status to come."""
        child = next(self._ids)
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exits[child] = exited
        message: wire.Message = {
            "op": "spawn",
            "id": child,
            "argv": list(argv),
            "env": {**self._env, **(env or {})},
            "cwd": cwd,
            "fallback_cwd": fallback_cwd,
            "targets": list(targets),
            "null": list(null),
            "terminal": terminal,
        }
        await self._send(message, fds)
        return child, exited

    async def kill(self, child: int, *, elapsed_s: float, shell: bool) -> None:
        """Kill what `child` started in the last `elapsed_s`, and it too unless a `shell` to be asked."""
        if child not in self._exits:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kills[child] = done
        await self._send({"op": "kill", "id": child, "since_s": _ago(elapsed_s), "shell": shell})
        waiting = {done, self._exits.get(child, done)}
        await asyncio.wait(waiting, timeout=KILL_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)

    async def signal(self, child: int, elapsed_s: float, *, shell: int | None, tree: int | None) -> None:
        """Send a signal to `child`, and one to what it started in the last `elapsed_s`."""
        if child in self._exits:
            await self._send(
                {
                    "op": "signal",
                    "id": child,
                    "since_s": _ago(elapsed_s),
                    "shell": shell or 0,
                    "tree": tree or 0,
                }
            )

    async def jobs(self, shells: list[int], elapsed_s: float | None) -> tuple[Job, ...]:
        """What the shells left running, but for what started in the last `elapsed_s`."""
        since_s = None if elapsed_s is None else _ago(elapsed_s)
        fd = await self.ask({"op": "jobs", "shells": shells, "since_s": since_s})
        if fd is None:
            raise SandboxLostError("no descriptor came back")
        with open(fd, "rb") as file:
            return tuple(Job(int(pid), str(command)) for pid, command in json.load(file))

    def kill_soon(self, child: int, *, elapsed_s: float) -> None:
        """`kill` from where nothing can be awaited (cancellation)."""
        if not self._link.closed and child in self._exits:
            try:
                self._link.send_now({"op": "kill", "id": child, "since_s": _ago(elapsed_s), "shell": False})
            except (BlockingIOError, SandboxLostError):
                self.request_close()  # it does not listen: end all of it

    def last_cwd(self, child: int) -> str:
        """Directory the shell was in when it was last interrupted, or ''."""
        return self._cwds.get(child, "")

    # -- what needs nothing but the conversation

    async def open_terminal(self) -> int:
        """The master end of a new pseudo-terminal inside; `sandbox.terminal` names and sizes it."""
        fd = await self.ask({"op": "terminal"})
        if fd is None:
            raise SandboxLostError("no descriptor came back")
        return fd

    async def read_file(self, path: str, *, limit_bytes: int = 16 * MIB) -> bytes:
        """See `sandbox.types.Sandbox.read_file`."""
        return await files.read(self.ask, path, limit_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `sandbox.types.Sandbox.write_file`."""
        await files.write(self.ask, path, data, mode)

    async def upload(self, source: Path, path: str) -> None:
        """See `sandbox.types.Sandbox.upload`."""
        await files.upload(self.ask, source, path)

    async def download(self, path: str, target: Path, *, limit_bytes: int = GIB) -> None:
        """See `sandbox.types.Sandbox.download`."""
        await files.download(self.ask, path, target, limit_bytes)


def _ago(elapsed_s: float) -> float:
    """The time on CLOCK_BOOTTIME, which starts of processes are counted on, that long ago."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - elapsed_s
