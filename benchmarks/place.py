"""Where a benchmark runs so that nothing of it is left behind: private mounts, one work directory, cgroups.

All systems run in a mount namespace of the benchmark: what they mount ends with it, and /run and /dev/shm
are empty tmpfs there. One cgroup subtree holds everything that is started: it tells the processor time of
all processes of a system, daemons included, and what is still alive at the end. Measures nothing itself.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sandbox import cgroup, syscalls

_KILL_S = 10.0
_UNIFIED = Path("/sys/fs/cgroup/unified")


class Place:
    """`with Place(parent) as place`: made as root only, in the calling process, before any thread starts."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self.work = Path()
        """Directory for everything that is written."""
        self.name = f"sandbox-bench-{os.getpid()}"
        """Name of the cgroup subtree, unique while this process lives."""
        self.notes: list[str] = []
        """What was changed for the peers' sake, for the report."""
        self._roots: list[Path] = []
        self._home: dict[Path, str] = {}
        self._exact = False

    def __enter__(self) -> "Place":
        self.work = Path(tempfile.mkdtemp(prefix="sandbox-bench-", dir=self._parent))
        self.work.chmod(0o711)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        for path in ("/run", "/dev/shm"):
            syscalls.mount("tmpfs", path, "tmpfs", 0, "mode=755" if path == "/run" else "mode=1777")
        if _UNIFIED.is_mount():
            # crun takes a mounted but empty v2 hierarchy for the one to use.
            syscalls.umount_detach(str(_UNIFIED))
            self.notes.append("/sys/fs/cgroup/unified hidden: crun refuses hybrid cgroups")
        self._make_cgroups()
        return self

    def _make_cgroups(self) -> None:
        own = _own_cgroups()
        for point, controllers in _hierarchies():
            root = point / self.name
            try:
                root.mkdir()
            except OSError:
                continue  # not writable here: no exact processor time from this hierarchy
            self._roots.append(root)
            self._home[root] = own.get("" if "v2" in controllers else controllers[0], "/")
            self._exact = self._exact or "cpuacct" in controllers or "v2" in controllers
        if not self._exact:
            self.notes.append("no writable cgroup for processor time: from getrusage(2), daemons left out")

    # -- processor time

    def parent_of(self, system: str) -> str:
        """Cgroup path under which an engine is told to put a system's containers."""
        return f"/{self.name}/{_plain(system)}/containers"

    @contextlib.contextmanager
    def inside(self, system: str) -> Iterator[None]:
        """This process, and so all it starts, belongs to the system's cgroup meanwhile."""
        self._move([root / _plain(system) / "processes" for root in self._roots])
        try:
            yield
        finally:
            for root, home in self._home.items():
                _enter(root.parent / home.lstrip("/"))

    def _move(self, directories: list[Path]) -> None:
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
            _fill_cpuset(directory)
            _enter(directory)

    def cpu_s(self, system: str) -> float:
        """Processor seconds so far of everything in the system's cgroup, this process's stays included."""
        for root in self._roots:
            directory = root / _plain(system)
            usage = directory / "cpuacct.usage"
            if usage.exists():
                return int(usage.read_text()) / 1e9
            stat = directory / "cpu.stat"
            if stat.exists() and "usage_usec" in (text := stat.read_text()):
                return int(text.split("usage_usec", 1)[1].split()[0]) / 1e6
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    # -- end

    def __exit__(self, *_exc: object) -> None:
        for attempt in range(2):
            self._kill_all()
            _unmount_below(self.work)
            shutil.rmtree(self.work, ignore_errors=attempt == 0)
            if not self.work.exists():
                break
        for root in self._roots:
            for directory in sorted(_directories(root), key=lambda path: -len(path.parts)):
                cgroup.remove_directory(str(directory))

    def _kill_all(self) -> None:
        """Whatever still lives in the cgroups; this process left them."""
        deadline = time.monotonic() + _KILL_S
        while pids := {pid for root in self._roots for pid in _members(root)} - {os.getpid()}:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {sorted(pids)} of the benchmark do not end")
            time.sleep(0.02)


def _plain(system: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in system)


def _hierarchies() -> Iterator[tuple[Path, list[str]]]:
    """(mount point, controllers or 'v2') of every cgroup hierarchy mounted here."""
    seen: set[str] = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        point, kind, options = left.split()[4], right.split()[0], right.split()[-1]
        if kind in ("cgroup", "cgroup2") and point not in seen:
            seen.add(point)
            yield Path(point), ["v2"] if kind == "cgroup2" else options.split(",")[1:]


def _own_cgroups() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _enter(directory: Path) -> None:
    syscalls.write_setting(str(directory / "cgroup.procs"), str(os.getpid()))


def _fill_cpuset(directory: Path) -> None:
    """A new v1 cpuset is empty and takes no process, cpuset(7)."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        chain = [directory.parent.parent, directory.parent, directory]
        for path in chain:
            setting = path / name
            if setting.exists() and not setting.read_text().strip():
                setting.write_text((path.parent / name).read_text())


def _directories(root: Path) -> list[Path]:
    return [Path(path) for path, _, _ in os.walk(root)]


def _members(root: Path) -> Iterator[int]:
    for directory in _directories(root):
        with contextlib.suppress(OSError):
            yield from (int(line) for line in (directory / "cgroup.procs").read_text().split())


def _unmount_below(directory: Path) -> None:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((p for p in points if Path(p).is_relative_to(directory)), reverse=True):
        with contextlib.suppress(OSError):  # went away with the one above it
            syscalls.umount_detach(point)
