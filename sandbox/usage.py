"""What a sandbox has used, read from its cgroups by the owner, cgroups(7).

Nothing is sampled: the kernel keeps the counters. Figures that a kernel does not keep are None.
"""

import os
from collections.abc import Mapping

from sandbox.types import Usage


def read_usage(directories: Mapping[str, str]) -> Usage:
    """From the directories of `Cgroups.directories`. Blocks for a few file reads."""
    memory, processor = directories.get("memory"), directories.get("cpuacct")
    peak = oom = cpu = None
    if memory:
        peak = _number(memory, "memory.peak")
        if peak is None:
            peak = _number(memory, "memory.max_usage_in_bytes")
        oom = _field(memory, "memory.events", "oom_kill")
        if oom is None:
            oom = _field(memory, "memory.oom_control", "oom_kill")
    if processor:
        nanoseconds = _number(processor, "cpuacct.usage")
        microseconds = _field(processor, "cpu.stat", "usage_usec")
        if nanoseconds is not None:
            cpu = nanoseconds / 1e9
        elif microseconds is not None:
            cpu = microseconds / 1e6
    return Usage(memory_peak_bytes=peak, cpu_s=cpu, oom_kills=oom)


def _text(directory: str, name: str) -> str | None:
    try:
        with open(os.path.join(directory, name), encoding="ascii") as file:
            return file.read()
    except OSError:
        return None  # this kernel keeps no such counter, or the sandbox is gone


def _number(directory: str, name: str) -> int | None:
    text = _text(directory, name)
    return int(text) if text else None


def _field(directory: str, name: str, key: str) -> int | None:
    for line in (_text(directory, name) or "").splitlines():
        found, _, value = line.partition(" ")
        if found == key:
            return int(value)
    return None
