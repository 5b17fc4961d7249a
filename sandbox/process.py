"""Naming processes by pid and start time, so that a recycled pid is never mistaken for the old one."""

import os


def stat_fields(pid: int | str) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the third (state) on; None when there is no such process."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        # The name in parentheses may hold anything, so split after the last one.
        return os.read(fd, 4096).rpartition(b") ")[2].split()
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)


def start_time(pid: int | str) -> int | None:
    """Clock ticks after boot at which it started; None when there is no such process, or only its zombie."""
    fields = stat_fields(pid)
    if not fields or len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def tag(pid: int) -> str:
    """`PID-STARTTIME`, unique until reboot."""
    return f"{pid}-{start_time(pid) or 0}"


def is_alive(tag_text: str) -> bool:
    """Whether the process that a tag names still runs."""
    pid, _, started = tag_text.partition("-")
    return pid.isdigit() and started.isdigit() and start_time(int(pid)) == int(started)
