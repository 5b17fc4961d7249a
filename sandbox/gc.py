"""Removes what dead owners left: helper processes, cgroups, staging directories.

Normally nothing is left: a helper ends with its owner and sandboxes end with their helper. This is for the
helper that was killed too, and for power cuts. Processes are known by pid and start time, never by name
alone. Mounts need no care: they live in namespaces that die with their last process.
"""

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sandbox import cgroup, process

_KILL_WAIT_S = 5.0
_WRITERS_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed."""

    processes: int
    """Helpers and processes in left-over cgroups that had to be killed."""
    cgroups: int
    """Cgroup directories of owners."""
    directories: int
    """Staging directories of owners."""


def collect(state_dir: Path | None = None) -> Collected:
    """Remove everything of owners that no longer run. Blocks for milliseconds; safe beside live owners."""
    from sandbox.mini import default_state_dir  # here: mini is heavy, and gc may run in a light process

    root = state_dir or default_state_dir()
    dead = [path for path in _directories(root) if not process.is_alive(path.name.partition(".")[0])]
    processes = sum(_kill_helper(path) for path in dead)
    groups = 0
    for parent in _cgroup_parents(dead):
        for path in parent.glob(cgroup.PREFIX + "*"):
            tag = path.name.removeprefix(cgroup.PREFIX).partition(".")[0]
            if not process.is_alive(tag):
                processes += _empty_cgroup(path)
                groups += 1
    for path in dead:
        _remove_when_quiet(path)
    return Collected(processes, groups, len(dead))


def _remove_when_quiet(path: Path) -> None:
    """A helper whose owner was killed before it recorded it may still be writing here: it ends by itself as
    soon as it looks for its owner, so wait for that."""
    deadline = time.monotonic() + _KILL_WAIT_S
    while True:
        try:
            remove_tree(path)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def remove_cgroups(directories: list[str]) -> None:
    """Remove an owner's own cgroups after its helper ended without doing so. Blocks."""
    for directory in directories:
        if Path(directory).is_dir():
            _empty_cgroup(Path(directory))


def remove_tree(path: Path) -> None:
    """Remove a directory whatever modes a sandbox gave to what is in it. Blocks.

    Waits a little for those who still write there: git(1) of a diff whose owner was killed. Raises OSError
    when they do not end."""
    deadline = time.monotonic() + _WRITERS_END_S
    while True:
        try:
            return shutil.rmtree(path, onexc=_unlock)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _unlock(function: Callable[..., object], name: str, error: BaseException) -> None:
    if isinstance(error, FileNotFoundError):
        return
    os.chmod(os.path.dirname(name), 0o700)
    if not os.path.islink(name):
        os.chmod(name, 0o700)
    # Listing failed: again from there. Else the one call is tried again.
    shutil.rmtree(name, ignore_errors=True) if function in (os.open, os.scandir, os.listdir) else None
    try:
        os.rmdir(name) if os.path.isdir(name) and not os.path.islink(name) else os.unlink(name)
    except FileNotFoundError:
        return


def _directories(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def _record(path: Path) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads((path / "owner.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}  # it died before writing it


def _kill_helper(path: Path) -> int:
    tag = str(_record(path).get("helper", ""))
    if not tag or not process.is_alive(tag):
        return 0
    os.kill(process.pid_of(tag), signal.SIGKILL)
    deadline = time.monotonic() + _KILL_WAIT_S
    while process.is_alive(tag) and time.monotonic() < deadline:
        time.sleep(0.005)
    return 1


def _cgroup_parents(dead: list[Path]) -> set[Path]:
    """Where this process would make its own, and where the dead said they made theirs."""
    parents = {Path(place) for places in cgroup.candidate_directories().values() for place in places}
    for path in dead:
        parents |= {Path(str(directory)).parent for directory in _record(path).get("cgroups", [])}
    return parents


def _empty_cgroup(path: Path) -> int:
    """Kill what is in a cgroup and below, then remove it."""
    killed = 0
    for child in sorted(path.rglob("cgroup.procs"), key=lambda file: -len(file.parts)):
        deadline = time.monotonic() + _KILL_WAIT_S
        while (pids := _pids(child)) and time.monotonic() < deadline:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    continue
            time.sleep(0.005)
        try:
            cgroup.remove_directory(str(child.parent))
        except OSError:
            continue  # a process that cannot die yet; the next collection takes it
    return killed


def _pids(file: Path) -> list[int]:
    try:
        return [int(line) for line in file.read_text(encoding="ascii").split()]
    except FileNotFoundError:
        return []
