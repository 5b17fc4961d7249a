"""Runs Python as an ordinary user, from root: over a copy of the package where that user may read it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sandbox

ORDINARY_ID = 65534
_REPOSITORY = Path(sandbox.__file__).resolve().parents[1]

_BECOME = """
import os, sys
sys.path.insert(0, sys.argv[1])
from sandbox import syscalls
prefix, target, uid = sys.argv[2], sys.argv[3], int(sys.argv[4])
{first}
# The interpreter may lie in a home directory that nobody may enter: bind it where everybody may.
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
syscalls.mount(prefix, target + "/python", None, 4096)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
os.chdir(target)
env = dict(PATH="/usr/bin:/bin", HOME=target + "/tmp", TMPDIR=target + "/tmp")
env["PYTHONDONTWRITEBYTECODE"] = "1"
env["LD_LIBRARY_PATH"] = target + "/python/lib"
python = target + "/python/bin/python%d.%d" % sys.version_info[:2]
os.execve(python, [python, *sys.argv[5:]], env)
"""


@contextmanager
def home() -> Iterator[Path]:
    """A directory that the user may read, holding `sandbox`, and `tmp`, which is the user's own."""
    target = Path(tempfile.mkdtemp(prefix="sandbox-ordinary-", dir="/tmp"))
    try:
        target.chmod(0o755)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_REPOSITORY / "sandbox", target / "sandbox", ignore=ignored)
        for name in ("python", "tmp"):
            (target / name).mkdir()
        os.chown(target / "tmp", ORDINARY_ID, ORDINARY_ID)
        yield target
    finally:
        shutil.rmtree(target)


def command(target: Path, *arguments: str, first: str = "") -> list[str]:
    """What starts Python with these arguments in the `home` of the user. `first`: statements that root runs
    before, with `syscalls`, `target` and `uid` at hand."""
    prefix = Path(sys.executable).resolve().parent.parent
    become = _BECOME.replace("{first}", first)
    python = [sys.executable, "-c", become, str(_REPOSITORY), str(prefix), str(target), str(ORDINARY_ID)]
    return [*python, *arguments]


def run(target: Path, *arguments: str, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments as the user, to its end."""
    return subprocess.run(command(target, *arguments), capture_output=True, text=True, timeout=timeout_s)
