"""What runs inside a guest of `tests/kernels/run.py`, as its root: everything that depends on the kernel.

Not imported by anything: the guest starts it by path. Each step is a process of its own with a time limit,
so one that hangs costs no other its result. An ordinary user is tried with and without a delegated cgroup.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_DELEGATED = _CGROUPS / "delegated"
_PYTHON = Path("/tmp/python")
_USER = 65534
_STEP_S = float(os.environ.get("STEP_S", "400"))
"""Time limit of a step; emulation on a busy machine needs more."""

_LIMITS = """
import asyncio
from pathlib import Path
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits, SandboxSpec

HOG = "x = []\\nwhile True: x.append(bytearray(b'x' * (1 << 20)))"
FORKS = '''
import os, time
n = 0
try:
    while n < 200:
        n += 1
        os.fork() or time.sleep(9)
except OSError as error:
    print("refused at", n, error)
'''
SETTINGS = ("memory.max", "memory.swap.max", "pids.max", "cpu.weight")

async def main():
    async with MiniBackend() as backend:
        print("found:", {name: value for name, value in backend.facts.items() if name != "hello"})
        spec = SandboxSpec(limits=Limits(memory_bytes=96 * MIB, pids=20, cpu_weight=30))
        async with await backend.open(spec) as sandbox:
            for base in backend.facts["cgroup_directories"]:
                print({name: (Path(base) / "s1" / name).read_text().strip() for name in SETTINGS})
            print("memory:", await sandbox.exec(["python3", "-c", HOG], timeout_s=90))
            print("pids:", await sandbox.exec(["python3", "-c", FORKS], timeout_s=60))
            print("usage:", await sandbox.usage())

asyncio.run(main())
"""

_COMMANDS = {
    "probe": ["-m", "sandbox", "probe", "--layers", "/tmp"],
    "run": ["-m", "sandbox", "run", "--", "sh", "-c", "cat /proc/self/cgroup; id -u"],
    "limits": ["-c", _LIMITS],
    "conformance": ["-m", "sandbox", "conformance"],
    # What depends on the kernel most, for when emulation is too slow for all.
    "essential": [
        "-m",
        "sandbox",
        "conformance",
        "close_is_idempotent",
        "isolation_basics",
        "limits_hold",
        "loopback_works",
        "layers_are_shared_unchanged",
        "diff_is_a_git_patch",
        "session_survives_timeout",
    ],
    "gc": ["-m", "sandbox", "gc"],
}


def _step(name: str, arguments: Sequence[str], *, user: bool = False, cgroup: Path | None = None) -> None:
    def enter() -> None:
        if cgroup:
            (cgroup / "cgroup.procs").write_text("0")
        if user:
            os.setgroups([])
            os.setresgid(_USER, _USER, _USER)
            os.setresuid(_USER, _USER, _USER)

    started = time.monotonic()
    home = "/tmp/user" if user else "/tmp"
    try:
        status = subprocess.run(
            [_PYTHON / "bin" / Path(sys.executable).resolve().name, *arguments],
            env={
                "PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1",
                "LD_LIBRARY_PATH": f"{_PYTHON}/lib",
            },
            stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=_STEP_S, check=False,
            preexec_fn=enter,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        status = "timed out"
    print(f"== {name}: status {status} after {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    """What the command line names, or all: WHO, or WHO:COMMAND."""
    steps = sys.argv[1:] or ["root", "delegated", "user"]
    # The interpreter may lie in a home directory that nobody else may enter.
    _PYTHON.mkdir()
    subprocess.run(["mount", "--bind", sys.base_prefix, _PYTHON], check=True)
    Path("/tmp/user").mkdir()
    os.chown("/tmp/user", _USER, _USER)
    inner = _DELEGATED / "inner"
    inner.mkdir(parents=True)
    for path in (_DELEGATED, inner):
        for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(path / name, _USER, _USER)
    for step in steps:
        who, _, name = step.partition(":")
        for command in [name] if name else [each for each in _COMMANDS if each != "essential"]:
            cgroup = inner if who == "delegated" else None
            _step(f"{who}: {command}", _COMMANDS[command], user=who != "root", cgroup=cgroup)
        print("cgroups left:", [str(path) for path in _CGROUPS.rglob("minisandbox-*")], flush=True)


if __name__ == "__main__":
    main()
