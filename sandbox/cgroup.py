"""Memory and process-count limits through cgroups: v2, v1, hybrid, or none at all.

Directories are named after the owning process, so that those of dead owners can be told and removed.
cgroups(7). Where nothing is writable `Cgroups.controllers` is empty and the caller falls back to rlimits.
"""

import os
import time
from collections.abc import Iterator

from sandbox import syscalls

PREFIX = "minisandbox-"
_WANTED = ("memory", "pids")


def _mounts() -> Iterator[tuple[str, str, str, str]]:
    """(root, mount point, file system type, super options) of every mount."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            yield fields[3], fields[4], kind[0], kind[-1]


def _own_paths() -> dict[str, str]:
    """Controller ('' for v2) -> this process's cgroup path."""
    paths: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def _candidates(mount_point: str, root: str, own: str) -> list[str]:
    """Where a cgroup could be made: below our own first (its limits still bind), then its parents."""
    relative = os.path.relpath(own, root) if root != "/" else own.lstrip("/")
    if relative.startswith(".."):
        relative = ""
    found: list[str] = []
    path = os.path.normpath(os.path.join(mount_point, relative))
    while path.startswith(mount_point):
        if os.path.isdir(path):
            found.append(path)
        path = os.path.dirname(path)
    return found


def candidate_directories() -> dict[str, list[str]]:
    """Where this machine might let us make cgroups: 'v2' and each v1 controller -> directories."""
    own = _own_paths()
    found: dict[str, list[str]] = {}
    for root, mount_point, kind, options in _mounts():
        if kind == "cgroup2":
            found["v2"] = _candidates(mount_point, root, own.get("", "/"))
        elif kind == "cgroup":
            for controller in _WANTED:
                if controller in options.split(","):
                    found[controller] = _candidates(mount_point, root, own.get(controller, "/"))
    return found


def remove_directory(path: str) -> None:
    """rmdir(2) of a cgroup, waiting a moment for its last process to be gone."""
    for _ in range(50):
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            # The last exit may still be on its way through the kernel.
            time.sleep(0.002)
    os.rmdir(path)


class Cgroups:
    """The cgroup directories of one owner, one subdirectory a sandbox."""

    def __init__(self, owner: str) -> None:
        self.bases: dict[str, str] = {}
        """Controller -> the owner's directory; both controllers share one under v2."""
        self.version = "none"
        name = PREFIX + owner
        places = candidate_directories()
        for controller in _WANTED:
            for parent in places.get(controller, []):
                if self._try_v1(controller, os.path.join(parent, name)):
                    self.version = "v1"
                    break
        for parent in [] if len(self.bases) == len(_WANTED) else places.get("v2", []):
            if self._try_v2(parent, os.path.join(parent, name)):
                break

    @property
    def controllers(self) -> tuple[str, ...]:
        """Those of memory and pids that work."""
        return tuple(sorted(self.bases))

    def _try_v1(self, controller: str, path: str) -> bool:
        try:
            os.makedirs(path, exist_ok=True)
            if os.access(os.path.join(path, "cgroup.procs"), os.W_OK):
                self.bases[controller] = path
                return True
            os.rmdir(path)
        except OSError:
            return False
        return False

    def _try_v2(self, parent: str, path: str) -> bool:
        wanted = [c for c in _WANTED if c not in self.bases]
        try:
            with open(os.path.join(parent, "cgroup.controllers"), encoding="utf-8") as file:
                usable = [c for c in wanted if c in file.read().split()]
            if not usable:
                return False
            switch = " ".join("+" + c for c in usable)
            # Fails with EBUSY where `parent` itself holds processes, cgroups(7): the next parent is tried.
            syscalls.write_setting(os.path.join(parent, "cgroup.subtree_control"), switch)
            os.makedirs(path, exist_ok=True)
            syscalls.write_setting(os.path.join(path, "cgroup.subtree_control"), switch)
        except OSError:
            return False
        self.version = "v2" if self.version == "none" else "hybrid"
        self.bases.update(dict.fromkeys(usable, path))
        return True

    def create(self, name: str, *, memory_bytes: int, pids: int) -> None:
        """Make the directories of one sandbox with its limits."""
        for path in self._paths(name):
            os.mkdir(path)
        if "memory" in self.bases:
            path = os.path.join(self.bases["memory"], name)
            self._limit_memory(path, memory_bytes)
        if "pids" in self.bases:
            syscalls.write_setting(os.path.join(self.bases["pids"], name, "pids.max"), str(pids))

    @staticmethod
    def _limit_memory(path: str, memory_bytes: int) -> None:
        if os.path.exists(os.path.join(path, "memory.max")):
            syscalls.write_setting(os.path.join(path, "memory.max"), str(memory_bytes))
            swap, value = "memory.swap.max", "0"
        else:
            syscalls.write_setting(os.path.join(path, "memory.limit_in_bytes"), str(memory_bytes))
            # memory + swap may not be lower than memory, so it comes second.
            swap, value = "memory.memsw.limit_in_bytes", str(memory_bytes)
        if os.path.exists(os.path.join(path, swap)):
            syscalls.write_setting(os.path.join(path, swap), value)

    def enter(self, name: str, pid: int) -> None:
        """Put a process in; only the child, never the helper, or the helper would share its limit."""
        for path in self._paths(name):
            syscalls.write_setting(os.path.join(path, "cgroup.procs"), str(pid))

    def remove(self, name: str) -> None:
        """Remove the directories of one sandbox, whose processes are gone."""
        for path in self._paths(name):
            remove_directory(path)

    def remove_all(self) -> None:
        """Remove the owner's own directories."""
        for path in set(self.bases.values()):
            remove_directory(path)

    def _paths(self, name: str) -> list[str]:
        return [os.path.join(base, name) for base in sorted(set(self.bases.values()))]
