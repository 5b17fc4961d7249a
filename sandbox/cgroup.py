"""Limits of memory, processes and processor share through cgroups: v2, v1, hybrid, or none at all.

Directories are named after the owning process, so that those of dead owners can be told and removed.
cgroups(7). Where nothing is writable `Cgroups.controllers` is empty and the caller falls back to rlimits.
"""

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from sandbox import syscalls

PREFIX = "minisandbox-"
_WANTED = ("memory", "pids", "cpu", "cpuacct")
_LIMITING = ("memory", "pids", "cpu")


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


class Doors(NamedTuple):
    """Descriptors through which one new process enters the cgroups of a sandbox."""

    tasks: tuple[int, ...]
    """`tasks` files of v1, to which the process itself writes "0"."""
    into: int
    """Directory of v2 for `clone`, or -1."""

    def close(self) -> None:
        """Close them; the caller's copies only."""
        for fd in (*self.tasks, *([self.into] if self.into >= 0 else [])):
            os.close(fd)


def walk_in(doors: Doors) -> None:
    """Enter the v1 cgroups, as the process that is to be limited.

    A lone thread that moves itself spares the kernel the lock that keeps thread groups whole, whose first
    taker after a pause waits 5 to 20 ms: hence "0" in `tasks`, not a pid in `cgroup.procs`, cgroups(7)."""
    for fd in doors.tasks:
        os.write(fd, b"0")


class Cgroups:
    """The cgroup directories of one owner, one subdirectory a sandbox."""

    def __init__(self, owner: str) -> None:
        self.bases: dict[str, str] = {}
        """Controller -> the owner's directory; all controllers share one under v2."""
        self.version = "none"
        self._v2 = ""
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
        """Those of memory, pids and cpu that work."""
        return tuple(sorted(set(self.bases) & set(_LIMITING)))

    def _try_v1(self, controller: str, path: str) -> bool:
        try:
            os.makedirs(path, exist_ok=True)
            if os.access(os.path.join(path, "tasks"), os.W_OK):
                self.bases[controller] = path
                return True
            os.rmdir(path)
        except OSError:
            return False
        return False

    def _try_v2(self, parent: str, path: str) -> bool:
        # cpu.stat, and so the time used, is there without a controller in v2.
        wanted = [c for c in _LIMITING if c not in self.bases]
        try:
            with open(os.path.join(parent, "cgroup.controllers"), encoding="utf-8") as file:
                offered = file.read().split()
            usable = [c for c in wanted if c in offered]
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
        self._v2 = path
        return True

    def create(self, name: str) -> None:
        """Make the directories of one sandbox, without limits yet."""
        for path in self._paths(name):
            os.mkdir(path)

    def limit(self, name: str, *, memory_bytes: int, pids: int, cpu_weight: int) -> None:
        """Set the limits of one sandbox. Raises OSError where the kernel takes a value back."""
        if "memory" in self.bases:
            self._limit_memory(os.path.join(self.bases["memory"], name), memory_bytes)
        if "pids" in self.bases:
            syscalls.write_setting(os.path.join(self.bases["pids"], name, "pids.max"), str(pids))
        if "cpu" in self.bases and cpu_weight != 100:
            self._weigh(os.path.join(self.bases["cpu"], name), cpu_weight)

    def _limit_memory(self, path: str, memory_bytes: int) -> None:
        if self.bases["memory"] == self._v2:
            syscalls.write_setting(os.path.join(path, "memory.max"), str(memory_bytes))
            swap, value = "memory.swap.max", "0"
        else:
            limit, swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
            value = str(memory_bytes)
            syscalls.write_setting(os.path.join(path, limit), value)
            # memory + swap may not be lower than memory, so it comes second.
        self._set_if_there(os.path.join(path, swap), value)
        if self.bases["memory"] != self._v2:
            # v1 does not count the buffers of sockets as memory.
            self._set_if_there(os.path.join(path, "memory.kmem.tcp.limit_in_bytes"), str(memory_bytes // 4))

    @staticmethod
    def _set_if_there(path: str, value: str) -> None:
        try:
            syscalls.write_setting(path, value)
        except FileNotFoundError:
            return  # a kernel built without it

    def _weigh(self, path: str, weight: int) -> None:
        if self.bases["cpu"] == self._v2:
            syscalls.write_setting(os.path.join(path, "cpu.weight"), str(weight))
        else:
            # v1's usual share is 1024 where v2's usual weight is 100.
            syscalls.write_setting(os.path.join(path, "cpu.shares"), str(max(2, weight * 1024 // 100)))

    def doors(self, name: str) -> Doors:
        """Descriptors for a process to enter by; the caller closes them."""
        tasks = tuple(
            os.open(os.path.join(path, "tasks"), os.O_WRONLY | os.O_CLOEXEC)
            for path in self._paths(name)
            if not self._v2 or not path.startswith(self._v2 + "/")
        )
        into = -1
        if self._v2:
            into = os.open(os.path.join(self._v2, name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return Doors(tasks, into)

    def push(self, name: str, pid: int) -> None:
        """Put a process into the v2 cgroup, where `clone` could not; slow, see `walk_in`."""
        syscalls.write_setting(os.path.join(self._v2, name, "cgroup.procs"), str(pid))

    def directories(self, name: str) -> dict[str, str]:
        """Controller -> directory of one sandbox, for `read_usage`; `cpuacct` is v2's where that counts."""
        bases = {**self.bases, **({"cpuacct": self._v2} if self._v2 and "cpuacct" not in self.bases else {})}
        return {controller: os.path.join(base, name) for controller, base in bases.items()}

    def why_killed(self, name: str) -> str:
        """What to say of a sandbox that ended: that the kernel ran out of its memory, or ''."""
        if "memory" not in self.bases:
            return ""
        path = os.path.join(self.bases["memory"], name)
        file = "memory.events" if self.bases["memory"] == self._v2 else "memory.oom_control"
        with open(os.path.join(path, file), encoding="ascii") as lines:
            killed = any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)
        return "the sandbox ran out of the memory it may use" if killed else ""

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
