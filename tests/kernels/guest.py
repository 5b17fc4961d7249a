"""What runs inside a guest of `tests/kernels/run.py`, as its root: everything that depends on the kernel.

Not imported by anything: the guest starts it by path. Each step is a process of its own with a time limit,
so one that hangs costs no other its result. WHO is `root`; `disk`, which is root with everything on an ext4
image instead of a tmpfs; `user`, an ordinary one, and `delegated`, the same with a cgroup of his own.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_DELEGATED = _CGROUPS / "delegated"
_PYTHON = Path("/tmp/python")
_USER = 65534
_IMAGE, _DISK = "/tmp/ext4.img", "/run/disk"
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
    "probe": ["-m", "sandbox", "probe", "--layers", "@HOME@/layers"],
    "run": ["-m", "sandbox", "run", "--", "sh", "-c", "cat /proc/self/cgroup; id -u"],
    "limits": ["-c", _LIMITS],
    "conformance": ["-m", "sandbox", "conformance"],
    "landlock": ["tests/sandbox/landlock_attacks.py", "conformance"],
    "attacks": ["tests/sandbox/landlock_attacks.py", "attack"],
    "probes": ["-m", "tests.sandbox.probes", "--details", "--modes", "@MODE@"],
    # Those of one process at a time, which take seconds where the others take minutes.
    "walls": [
        "-m",
        "tests.sandbox.probes",
        "--details",
        "--modes",
        "@MODE@",
        "--kinds",
        "mounts,privileges,namespaces,kernel,files,processes,memory,devices,proc,sockets,ipc",
    ],
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


_ALWAYS = ("probe", "run", "limits", "conformance", "gc")


def _home(who: str) -> str:
    return {"root": "/tmp/root", "disk": _DISK}.get(who, "/tmp/user")


def _step(who: str, command: str) -> None:
    user = who in ("user", "delegated")
    home = _home(who)

    def enter() -> None:
        if who == "delegated":
            (_DELEGATED / "inner" / "cgroup.procs").write_text("0")
        if user:
            os.setgroups([])
            os.setresgid(_USER, _USER, _USER)
            os.setresuid(_USER, _USER, _USER)

    values = {"@HOME@": home, "@MODE@": "user" if user else "root"}
    arguments = [_filled(word, values) for word in _COMMANDS[command]]
    started = time.monotonic()
    try:
        status = subprocess.run(
            [_PYTHON / "bin" / Path(sys.executable).resolve().name, *arguments],
            env={
                "PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1",
                "LD_LIBRARY_PATH": f"{_PYTHON}/lib", "PYTHONPATH": str(Path.cwd()),
            },
            stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=_STEP_S, check=False,
            preexec_fn=enter,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        status = "timed out"
    print(f"== {who}: {command}: status {status} after {time.monotonic() - started:.0f} s", flush=True)


def _filled(word: str, values: dict[str, str]) -> str:
    for mark, value in values.items():
        word = word.replace(mark, value)
    return word


def _prepare(people: set[str]) -> None:
    # The interpreter may lie in a home directory that nobody else may enter.
    _PYTHON.mkdir()
    subprocess.run(["mount", "--bind", sys.base_prefix, _PYTHON], check=True)
    if "disk" in people:
        Path(_DISK).mkdir()
        Path(_IMAGE).touch()
        os.truncate(_IMAGE, 700 << 20)
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", _IMAGE], check=True)
        subprocess.run(["mount", "-o", "loop", _IMAGE, _DISK], check=True)
    inner = _DELEGATED / "inner"
    inner.mkdir(parents=True)
    for path in (_DELEGATED, inner):
        for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(path / name, _USER, _USER)
    for who in people:
        for place in (Path(_home(who)), Path(_home(who)) / "layers"):
            place.mkdir(exist_ok=True)
            if who not in ("root", "disk"):
                os.chown(place, _USER, _USER)


def main() -> None:
    """What the command line names, or much of it: WHO, or WHO:COMMAND."""
    steps = [step.partition(":") for step in sys.argv[1:] or ["root", "delegated", "user"]]
    _prepare({who for who, _, _ in steps})
    for who, _, name in steps:
        for command in [name] if name else _ALWAYS:
            _step(who, command)
        print("cgroups left:", [str(path) for path in _CGROUPS.rglob("minisandbox-*")], flush=True)


if __name__ == "__main__":
    main()
