"""Every command ends quietly when nobody reads its output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.entry import BROKEN_PIPE, run_command
from tests.launch.runner import ROOT

COMMANDS = [
    [f"launch/{path.name}", "--help"]
    for path in sorted((ROOT / "launch").glob("*.py"))
    if "run_command(main" in path.read_text() and path.name != "entry.py"
]
COMMANDS.append(["launch/doctor.py", "--recipe", "cpu_demo"])


def with_closed_pipe(arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            cwd=ROOT,
            timeout=90,
        )
    finally:
        os.close(writer)


def test_every_command_is_tried():
    tried = {arguments[0] for arguments in COMMANDS}
    commands = {
        f"launch/{name}.py"
        for name in ("train", "doctor", "prepare", "report", "cleanup", "make_policy", "cache", "eval")
    }
    assert commands <= tried


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_closed_pipe_is_no_traceback(arguments: list[str]):
    ended = with_closed_pipe(arguments)
    assert ended.stderr.decode() == ""
    assert ended.returncode == (0 if "--help" in arguments else BROKEN_PIPE)


def test_a_command_that_meets_errors_of_the_disk_still_ends_quietly(tmp_path: Path):
    """`launch/cache.py` tells of every OSError; a closed pipe is one."""
    ended = with_closed_pipe(["launch/cache.py", "ls", "--cache-dir", str(tmp_path)])
    assert (ended.returncode, ended.stderr) == (BROKEN_PIPE, b"")


def test_what_a_broken_pipe_is_without_it():
    ended = with_closed_pipe(["-c", "print('text')"])
    assert b"BrokenPipeError" in ended.stderr


def test_statuses_pass_through():
    for status in (0, 3, "told"):

        def main(status: int | str = status) -> int:
            if isinstance(status, str):
                raise SystemExit(status)
            return status

        with pytest.raises(SystemExit) as ended:
            run_command(main)
        assert ended.value.code == status


@pytest.mark.parametrize("ending", ["return 3", "raise SystemExit(3)"])
def test_a_thread_left_behind_does_not_hold_up_the_end(ending: str):
    code = f"""
import threading, time
from launch.entry import run_command
def main():
    threading.Thread(target=time.sleep, args=(3600,)).start()
    print("done")
    {ending}
run_command(main, wait_for_threads=False)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "done\n", "")
