"""The guard: its whole group dies with its owner, and when it is told to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
# A command that starts a child in the same group, makes a named semaphore, and never ends.
COMMAND = """
import multiprocessing, subprocess, sys, time
lock = multiprocessing.get_context("spawn").Lock()  # a name, and a resource tracker
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, lock._semlock.name, flush=True)
time.sleep(600)
"""
# An owner that starts the guard as the server does, and never ends.
OWNER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "recipes.cpu.guard", *sys.argv[1:]], start_new_session=True)
time.sleep(600)
"""


def start_owner() -> tuple[subprocess.Popen[str], psutil.Process]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, sys.executable, "-c", COMMAND],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    child, _semaphore = owner.stdout.readline().split()
    return owner, psutil.Process(int(child))


def group_of(child: psutil.Process) -> list[psutil.Process]:
    group = os.getpgid(child.pid)
    return [p for p in psutil.process_iter() if _same_group(p.pid, group)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # its owner, still there, does not reap
    except psutil.NoSuchProcess:
        return False


def _same_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False


@pytest.mark.parametrize("how", ["owner killed", "guard told to stop", "command killed"])
def test_the_group_is_gone(how: str) -> None:
    owner, child = start_owner()
    members = group_of(child)
    guard = next(p for p in members if "recipes.cpu.guard" in p.cmdline())
    assert len(members) >= 3
    try:
        if how == "owner killed":
            owner.send_signal(signal.SIGKILL)
        elif how == "guard told to stop":
            guard.terminate()
        else:
            child.parent().kill()
        deadline = time.monotonic() + 8
        while (alive := [p for p in members if _runs(p)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive == []
    finally:
        owner.kill()
        owner.wait()


def test_semaphores_of_killed_processes_are_unlinked() -> None:
    before = set(os.listdir("/dev/shm"))
    owner, child = start_owner()
    assert {n for n in os.listdir("/dev/shm") if n.startswith("sem.mp-")} - before
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    psutil.wait_procs([child], timeout=8)
    deadline = time.monotonic() + 5
    while (left := {n for n in os.listdir("/dev/shm") if n.startswith("sem.mp-")} - before) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert not left
