"""What runs inside a sandbox, seen from its first process: which processes a session left running.

Descendants of a session's shells, processes of the process sessions that its shells led (setsid(2)), and
daemons that left both: those belong to nobody in particular, so every session lists them.
"""

import os
from typing import NamedTuple

from sandbox import process

_REMEMBERED = 4096
_NOBODY = -1


class _Process(NamedTuple):
    """Fields of /proc/PID/stat that matter here."""

    parent: int
    """Process id of its parent."""
    leader: int
    """Process session id."""
    started: int
    """Clock ticks after boot."""


class Spawned:
    """Remembers what the first process started: pid -> the owner's id for it."""

    def __init__(self) -> None:
        self._children: dict[int, int] = {}

    def add(self, pid: int, child: int) -> None:
        """A process was started. Those of which nothing is left are forgotten from time to time."""
        self._children[pid] = child
        if len(self._children) > _REMEMBERED:
            seen = _processes()
            leaders = {each.leader for each in seen.values()}
            kept = {one: number for one, number in self._children.items() if one in seen or one in leaders}
            self._children = kept

    def jobs(self, shells: set[int], before: int | None) -> list[tuple[int, str]]:
        """(pid, command line) of what the shells with these ids left, oldest first; `before` is a clock tick
        from which on nothing counts."""
        seen = _processes()
        found: list[tuple[int, int]] = []
        for pid, each in seen.items():
            if pid == os.getpid() or pid in self._children or (before is not None and each.started >= before):
                continue
            if self._owner(pid, seen) in shells | {_NOBODY}:
                found.append((each.started, pid))
        return [(pid, _command_line(pid)) for _, pid in sorted(found)]

    def _owner(self, pid: int, seen: dict[int, _Process]) -> int | None:
        """Id of what it descends from or whose process session it is in, _NOBODY for a daemon; None for what
        lives outside, in a mode without a pid namespace."""
        at = pid
        while at in seen:
            if at in self._children:
                return self._children[at]
            if seen[at].leader in self._children:
                return self._children[seen[at].leader]
            at = seen[at].parent
            if at == os.getpid():
                return _NOBODY
        return None


def _processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for name in os.listdir("/proc"):
        fields = process.stat_fields(name) if name.isdigit() else None
        if fields and fields[0] not in (b"Z", b"X"):
            found[int(name)] = _Process(int(fields[1]), int(fields[3]), int(fields[19]))
    return found


def _command_line(pid: int) -> str:
    """As ps shows it; the name in brackets for one that has no command line, '' when it is gone."""
    try:
        for name, form in (("cmdline", "{}"), ("comm", "[{}]")):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                text = file.read(1 << 16).replace(b"\0", b" ").strip().decode("utf-8", "replace")
            if text:
                return form.format(text)
    except OSError:
        return ""
    return ""


def others() -> list[int]:
    """All processes inside but this one that run or wait, not those that are stopped or dead."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            fields = process.stat_fields(name)
            if fields and fields[0] not in (b"T", b"t", b"Z", b"X"):
                found.append(int(name))
    return found


def started_since(root: int, since: int, *, spare: set[int]) -> list[int]:
    """Children of `root` and orphans that started at or after tick `since`, with all their descendants.

    Background jobs of earlier commands are older, and so are left alone."""
    children: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        fields = process.stat_fields(name)
        if fields and fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(name))
            started[int(name)] = int(fields[19])
    queue = [pid for pid in children.get(root, []) if started[pid] >= since]
    orphans = children.get(os.getpid(), [])
    queue += [pid for pid in orphans if started[pid] >= since and pid not in spare and pid != root]
    victims: list[int] = []
    while queue:
        pid = queue.pop()
        victims.append(pid)
        queue += children.get(pid, [])
    return victims
