"""The conformance suite: as the user who runs the tests, and from root also as an ordinary user."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sandbox import conformance
from sandbox.mini import MiniBackend

_REPOSITORY = Path(conformance.__file__).resolve().parents[1]
_ORDINARY_ID = 65534

_AS_ORDINARY_USER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from sandbox import syscalls
repository, prefix, target, uid = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
# The interpreter may lie in a home directory that nobody may enter: bind it where everybody may.
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
syscalls.mount(prefix, target + "/python", None, 4096)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
os.chdir(target)
env = {"PATH": "/usr/bin:/bin", "HOME": target + "/tmp", "TMPDIR": target + "/tmp"}
env["PYTHONDONTWRITEBYTECODE"] = "1"
env["LD_LIBRARY_PATH"] = target + "/python/lib"
python = target + "/python/bin/python%d.%d" % sys.version_info[:2]
os.execve(python, [python, target + "/run.py"], env)
"""

_RUN = """
import asyncio, json, os
from sandbox import conformance
from sandbox.mini import MiniBackend
from sandbox.probe import unusable_reason

async def main():
    async with MiniBackend() as backend:
        facts = {"uid": os.getuid(), "outside_uid": backend.facts["outside_uid"]}
        outcomes = await conformance.run_all(backend)
        return facts | {"results": {each.name: [each.problem, each.lacking] for each in outcomes}}

reason = unusable_reason()
print(json.dumps({"unusable": reason} if reason else asyncio.run(main())))
"""


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.name)
async def test_conformance(check: conformance.Check, backend: MiniBackend) -> None:
    await check(backend)


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite above already ran as an ordinary user")
def test_conformance_as_ordinary_user() -> None:
    target = Path(tempfile.mkdtemp(prefix="sandbox-ordinary-", dir="/tmp"))
    try:
        target.chmod(0o755)
        shutil.copytree(
            _REPOSITORY / "sandbox", target / "sandbox", ignore=shutil.ignore_patterns("__pycache__")
        )
        (target / "run.py").write_text(_RUN)
        for name in ("python", "tmp"):
            (target / name).mkdir()
        os.chown(target / "tmp", _ORDINARY_ID, _ORDINARY_ID)
        prefix = Path(sys.executable).resolve().parent.parent
        done = subprocess.run(
            [sys.executable, "-c", _AS_ORDINARY_USER, _REPOSITORY, prefix, target, str(_ORDINARY_ID)],
            capture_output=True, text=True, timeout=280,
        )  # fmt: skip
    finally:
        shutil.rmtree(target)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    if report.get("unusable"):
        pytest.skip(f"the kernel forbids it to ordinary users: {report['unusable']}")
    assert report["uid"] == report["outside_uid"] == _ORDINARY_ID
    assert {name: seen for name, seen in report["results"].items() if seen != ["", []]} == {}
