"""Runs one command in a process group that dies with its owner.

`python -m recipes.cpu.guard COMMAND...` starts COMMAND in the guard's own process group. When the
process that started the guard dies (also by SIGKILL), or the guard is told to stop, the whole group is
killed: vLLM's engine outlives a SIGTERM to its parent and would keep gigabytes. Standard library only,
so that it is up before its owner can die.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_TRACKER_GRACE_S = 3.0


def _members() -> dict[int, bytes]:
    """Command lines of the other processes of our group, by id."""
    found: dict[int, bytes] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.getpgid(int(name)) == os.getpgrp():
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue  # It ended meanwhile.
    return {pid: command for pid, command in found.items() if command}


def _kill_group(_signum: int = 0, _frame: object = None) -> None:
    """Kill the group, ourselves included. Python's resource trackers, which unlink the semaphores of
    those killed, end by themselves once these are gone; they get a moment for it."""
    deadline = time.monotonic() + _TRACKER_GRACE_S
    while (members := _members()) and time.monotonic() < deadline:
        for pid, command in members.items():
            if b"resource_tracker" not in command:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        time.sleep(0.02)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Run `argv` until it ends or the owner dies."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _kill_group)
    owner = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != owner or owner == 1:
        return 1
    child = subprocess.Popen(argv)
    status = child.wait()
    # Whatever the command left in the group must not outlive it.
    sys.stderr.write(f"guard: {argv[0]} ended with status {status}\n")
    sys.stderr.flush()
    _kill_group()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
