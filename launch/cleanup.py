"""Finds what dead runs left behind and removes it: `python launch/cleanup.py`, and at every start.

Every run carries an id, `<run name>@<pid>@<start time of that pid>@<pid namespace>`, in its environment
as MINISANDBOX_RUN, and all its processes (Ray, vLLM, sandbox helpers) inherit it. So any process whose
id names an owner that is no longer alive is a leftover, whichever folder or clone it came from. Its
temporary folders hold the same id in a file. Sandboxes themselves are the sandbox package's own to
collect (`sandbox.gc`). Runs that are alive, of other users, or of other containers (their pids mean
nothing here, hence the namespace in the id) are never touched.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil

from sandbox.gc import collect

RUN_VARIABLE = "MINISANDBOX_RUN"
FOLDER_PREFIX = "msb-"
OWNER_FILE = "owner"
TEMP_PARENTS = (Path("/tmp"), Path("/dev/shm"))
"""Where runs make their temporary folders unless configured otherwise."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed."""

    processes: tuple[str, ...]
    """`pid name` of each process killed."""
    folders: tuple[Path, ...]
    """Folders removed."""
    sandbox_parts: int
    """Helpers, cgroups and folders of sandboxes removed."""

    def __str__(self) -> str:
        """One line for a person."""
        if not (self.processes or self.folders or self.sandbox_parts):
            return "nothing was left behind by dead runs"
        return (
            f"removed what dead runs left: {len(self.processes)} processes, "
            f"{self.sandbox_parts} parts of sandboxes, {len(self.folders)} folders"
        )


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is none or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def make_run_id(run_name: str, pid: int | None = None) -> str:
    """The id of a run owned by `pid` (this process unless given)."""
    owner = os.getpid() if pid is None else pid
    return f"{run_name}@{owner}@{start_ticks(owner)}@{_pid_namespace()}"


def is_alive(run_id: str) -> bool:
    """Whether the owner of a run id still runs. An id that cannot be read counts as alive: not ours."""
    parts = run_id.rsplit("@", 3)
    if len(parts) != 4 or not all(part.isdigit() for part in parts[1:]):
        return True
    if parts[3] != _pid_namespace():
        return True
    return start_ticks(int(parts[1])) == int(parts[2])


def _pid_namespace() -> str:
    """Number of this process's pid namespace."""
    return "".join(c for c in str(Path("/proc/self/ns/pid").readlink()) if c.isdigit())


def temp_folder(parent: Path, run_id: str) -> Path:
    """Make and return the temporary folder of a run below `parent`; clean-up finds it by its name."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    (folder / OWNER_FILE).write_text(run_id, encoding="utf-8")
    return folder


def clean_up(folders: Iterable[Path] = TEMP_PARENTS) -> Cleaned:
    """Remove everything that dead runs left: processes first, then sandboxes, then folders.

    `folders` are those in which runs make their temporary folders."""
    killed = _kill(lambda run_id: not is_alive(run_id))
    parts = _collect_sandboxes()
    removed: list[Path] = []
    for folder in dict.fromkeys(folders):
        for candidate in folder.glob(f"{FOLDER_PREFIX}*"):
            owner = candidate / OWNER_FILE
            if owner.is_file() and os.access(owner, os.R_OK) and not is_alive(owner.read_text("utf-8")):
                shutil.rmtree(candidate, ignore_errors=True)
                removed.append(candidate)
    return Cleaned(tuple(killed), tuple(removed), parts)


def end_run(run_id: str, folders: tuple[Path, ...]) -> Cleaned:
    """Kill what is left of this process's own run and remove its temporary folders."""
    killed = _kill(lambda other: other == run_id)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return Cleaned(tuple(killed), folders, _collect_sandboxes())


def _kill(condemned: Callable[[str], bool]) -> list[str]:
    """SIGKILL every process with a condemned run id, again until none is left (they may fork).

    Python's resource trackers go last: they unlink the shared memory of those killed before them."""
    killed: list[str] = []
    for _ in range(20):
        found = [process for process in _carriers() if condemned(_run_id(process) or "")]
        if not found:
            break
        workers = [process for process in found if not _is_resource_tracker(process)]
        for process in workers or found:
            try:
                killed.append(f"{process.pid} {process.name()}")
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(workers or found, timeout=3)
    return killed


def _carriers() -> list[psutil.Process]:
    mine = os.getpid()
    carriers = [process for process in psutil.process_iter() if process.pid != mine and _run_id(process)]
    # Our own resource tracker ends with us, and complains when it is killed before.
    return [process for process in carriers if not (_is_resource_tracker(process) and process.ppid() == mine)]


def _run_id(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(RUN_VARIABLE)
    except (psutil.Error, OSError):
        return None


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in part for part in process.cmdline())
    except psutil.Error:
        return False


def _collect_sandboxes() -> int:
    collected = collect()
    return collected.processes + collected.cgroups + collected.directories


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="cleanup", description=(__doc__ or "").splitlines()[0])
    parser.parse_args(argv)
    cleaned = clean_up()
    for line in (*cleaned.processes, *map(str, cleaned.folders)):
        print(f"removed {line}")
    print(cleaned)
    return 0


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
