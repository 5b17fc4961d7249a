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

_PR_SET_PDEATHSIG = 1


def _kill_group(_signum: int, _frame: object) -> None:
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
    os.killpg(os.getpgrp(), signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
