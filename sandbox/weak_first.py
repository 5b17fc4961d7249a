"""The first process of a sandbox of the Landlock mode: the loop of `sandbox.init` without a root of its own.

Paths of requests are mapped into the private directory, and what it started is found by descent, since no
namespace holds it together. `sandbox.weak_init` starts it, already confined.
"""

import os
import signal
import socket

from sandbox import process, relocate, wire
from sandbox.init import Init


class FirstProcess(Init):
    """`Init` in a world without a root of its own."""

    def __init__(self, sock: socket.socket, paths: relocate.PathMap) -> None:
        super().__init__(sock)
        self._map = paths

    def serve(self) -> int:
        """See `Init.serve`; then ends what it started, which no namespace does for it."""
        try:
            return super().serve()
        finally:
            os.kill(-1, signal.SIGKILL)  # only what is inside the inner rules or of the private id

    def _spawn(self, message: wire.Message, fds: list[int]) -> None:
        message["env"] = {name: self._map.value(value) for name, value in message["env"].items()}
        for name in ("cwd", "fallback_cwd"):
            if message[name]:
                message[name] = self._map.outside(message[name])
        if message["argv"][0].startswith("/") and "\0" not in message["argv"][0]:
            message["argv"][0] = self._map.outside(message["argv"][0])
        super()._spawn(message, fds)

    def _open(self, path: str, flags: int, mode: int = 0) -> int:
        return super()._open(self._map.outside(path) if path.startswith("/") else path, flags, mode)

    def others(self) -> list[int]:
        """See `Init.others`: the descendants of this process."""
        children: dict[int, list[int]] = {}
        running: set[int] = set()
        for name in os.listdir("/proc"):
            fields = process.stat_fields(name) if name.isdigit() else None
            if fields:
                children.setdefault(int(fields[1]), []).append(int(name))
                if fields[0] not in (b"T", b"t", b"Z", b"X"):
                    running.add(int(name))
        found, queue = list[int](), list(children.get(os.getpid(), []))
        while queue:
            pid = queue.pop()
            queue += children.get(pid, [])
            if pid in running:
                found.append(pid)
        return found
