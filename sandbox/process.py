"""Naming processes by pid and start time, so that a recycled pid is never mistaken for the old one; and what
this process may open."""

import errno
import os
import resource

_MANY_FILES = 1 << 20


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


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def tag(pid: int) -> str:
    """`PID-STARTTIME-PIDNAMESPACE`, unique until reboot."""
    return f"{pid}-{start_time(pid) or 0}-{_pid_namespace()}"


def pid_of(tag_text: str) -> int:
    """The pid in a tag."""
    return int(tag_text.partition("-")[0])


def is_alive(tag_text: str) -> bool:
    """Whether the process that a tag names still runs.

    What is no tag, or one of another container whose pids mean nothing here, counts as alive: not ours."""
    parts = tag_text.split("-")
    if len(parts) != 3 or not all(part.isdigit() for part in parts) or int(parts[2]) != _pid_namespace():
        return True
    return start_time(parts[0]) == int(parts[1])


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: some descriptors for each sandbox add up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Not to a thousand million, which containers allow: programs exist that close every possible one.
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def explain(error: OSError) -> str:
    """What an error of ours means where it is about descriptors, and what to do about it; else its text."""
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"no file descriptors left: this process may open {limit}; start it under a higher `ulimit -n`"
    if error.errno == errno.ENFILE:
        return "no file descriptors left on this machine: raise the sysctl fs.file-max"
    return str(error)
