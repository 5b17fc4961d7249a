"""Which sandboxes live on this machine, told from the state directories, /proc and the cgroups.

Asks no helper, so it works whatever state one is in, and changes nothing. Only owners of the calling user
are seen, since state directories are private to a user.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sandbox import cgroup, process
from sandbox.start import SANDBOX_NAME, SPARE_NAME

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SANDBOX, _SPARE = SANDBOX_NAME.decode(), SPARE_NAME.decode()


@dataclass(frozen=True, slots=True)
class LiveSandbox:
    """One sandbox."""

    name: str
    """Name of its cgroup directory, or '' without cgroups."""
    spare: bool
    """The helper made it ahead, and nobody uses it yet."""
    pid: int
    """Its first process, as seen from outside."""
    age_s: float
    """Seconds since that process started."""
    processes: int
    """How many run inside, the first one included."""
    memory_bytes: int
    """Memory charged to it; without a cgroup the sum of its processes' resident memory."""
    cpu_s: float
    """Processor time; without a cgroup that of the processes alive."""


@dataclass(frozen=True, slots=True)
class LiveOwner:
    """One process that has a backend open."""

    pid: int
    """The owner."""
    command: str
    """Its command line."""
    age_s: float
    """Seconds since the owner started."""
    helper_pid: int
    """Its helper; 0 when not known."""
    sandboxes: tuple[LiveSandbox, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    started: int
    ticks: int
    resident_bytes: int


def live_owners(state_dir: Path) -> tuple[LiveOwner, ...]:
    """Owners that run, oldest first. Blocks for a scan of /proc."""
    try:
        directories = [path for path in state_dir.iterdir() if path.is_dir()]
    except OSError:
        return ()  # nobody opened anything yet
    table = _processes()
    owners = [_owner(path, table) for path in directories if _is_live(path)]
    return tuple(sorted(owners, key=lambda owner: -owner.age_s))


def _is_live(path: Path) -> bool:
    tag = path.name.partition(".")[0]
    return tag.count("-") == 2 and process.is_alive(tag)


def _owner(path: Path, table: dict[int, _Process]) -> LiveOwner:
    record = _record(path)
    pid = process.pid_of(path.name)
    helper_tag = str(record.get("helper", ""))
    helper = process.pid_of(helper_tag) if helper_tag and process.is_alive(helper_tag) else 0
    children = [each for each, seen in table.items() if helper and seen.parent == helper]
    sandboxes = [
        _sandbox(child, name == _SPARE, table, record.get("cgroups", []))
        for child in children
        if (name := _text(Path(f"/proc/{child}/comm"))) in (_SANDBOX, _SPARE)
    ]
    return LiveOwner(
        pid=pid,
        command=_command(pid),
        age_s=_age(table.get(pid)),
        helper_pid=helper,
        sandboxes=tuple(sorted(sandboxes, key=lambda sandbox: -sandbox.age_s)),
    )


def _record(path: Path) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads((path / "owner.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}  # it is only starting


def _sandbox(init: int, spare: bool, table: dict[int, _Process], cgroups: list[str]) -> LiveSandbox:
    members = _tree(init, table)
    name = _cgroup_name(init)
    memory, cpu = _from_cgroups(cgroups, name) if name else (None, None)
    seen = [table[pid] for pid in members]
    return LiveSandbox(
        name=name,
        spare=spare,
        pid=init,
        age_s=_age(table.get(init)),
        processes=len(members),
        memory_bytes=sum(each.resident_bytes for each in seen) if memory is None else memory,
        cpu_s=sum(each.ticks for each in seen) / _TICKS if cpu is None else cpu,
    )


def _processes() -> dict[int, _Process]:
    table: dict[int, _Process] = {}
    for name in os.listdir("/proc"):
        fields = process.stat_fields(name) if name.isdigit() else None
        if fields and fields[0] not in (b"Z", b"X"):
            table[int(name)] = _Process(
                parent=int(fields[1]),
                started=int(fields[19]),
                ticks=int(fields[11]) + int(fields[12]),
                resident_bytes=int(fields[21]) * _PAGE,
            )
    return table


def _tree(root: int, table: dict[int, _Process]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, seen in table.items():
        children.setdefault(seen.parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def _age(seen: _Process | None) -> float:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, now - seen.started / _TICKS) if seen else 0.0


def _command(pid: int) -> str:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")


def _cgroup_name(pid: int) -> str:
    """Last part of its cgroup's path, where the part before is an owner's."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        parts = line.split(":", 2)[2].split("/")
        if len(parts) > 1 and parts[-2].startswith(cgroup.PREFIX):
            return parts[-1]
    return ""


def _from_cgroups(bases: list[str], name: str) -> tuple[int | None, float | None]:
    memory: int | None = None
    cpu: float | None = None
    for base in bases:
        for file in ("memory.current", "memory.usage_in_bytes"):
            text = _text(Path(base, name, file))
            memory = int(text) if text else memory
        text = _text(Path(base, name, "cpuacct.usage"))
        cpu = int(text) / 1e9 if text else cpu
        for line in _text(Path(base, name, "cpu.stat")).splitlines():
            if line.startswith("usage_usec "):
                cpu = int(line.split()[1]) / 1e6
    return memory, cpu


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
