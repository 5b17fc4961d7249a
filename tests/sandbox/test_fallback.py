"""The chosen mode, and that a weak one is never chosen silently: with user namespaces really off."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import fallback, landlock
from sandbox.mini import MiniBackend

_REPOSITORY = str(Path(fallback.__file__).resolve().parents[1])

# A nested user namespace in which no further one may be made, and no capability is kept: a locked-down pod.
_LOCKED_DOWN = """
import os, sys
sys.path.insert(0, sys.argv[1])
from sandbox import syscalls, namespaces
uid, gid = os.geteuid(), os.getegid()
syscalls.unshare(syscalls.CLONE_NEWUSER)
namespaces.write_maps("self", base=None, outside_uid=uid, outside_gid=gid)
syscalls.write_setting("/proc/sys/user/max_user_namespaces", "0")
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
for capability in range(41):
    syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
syscalls.drop_all_capabilities()
"""
_CHOOSE = """
import asyncio, json
from pathlib import Path
from sandbox import fallback
from sandbox.errors import SandboxError
from sandbox.types import SandboxSpec
async def main(allow):
    try:
        async with fallback.open_backend(state_dir=Path(sys.argv[2]), allow_weak=allow) as (backend, report):
            async with await backend.open(SandboxSpec()) as sandbox:
                text = (await sandbox.exec(["sh", "-c", "echo ran; touch /usr/x /tmp/x"], timeout_s=30)).text
            return [report.mode, report.weak, list(report.losses), list(report.passed_over), text]
    except SandboxError as error:
        return str(error)
print(json.dumps([asyncio.run(main(False)), asyncio.run(main(True))]))
"""


async def test_best_mode_is_reported(backend: MiniBackend) -> None:
    report = fallback.report_of(backend)
    assert not report.weak
    assert report.mode == (
        "shifted" if backend.facts["shifted"] else "unshifted" if os.geteuid() == 0 else "user"
    )
    assert bool(report.losses) == (report.mode != "shifted" or "memory" not in backend.facts["controllers"])
    assert report.lines()[0] == f"mode {report.mode}, files by {backend.facts['mode']}"


@pytest.mark.skipif(
    landlock.abi() < landlock.SCOPE_ABI, reason="this kernel's Landlock keeps no signals inside"
)
def test_weak_mode_only_when_allowed(state_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOCKED_DOWN + _CHOOSE, _REPOSITORY, str(state_dir)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused, (mode, weak, losses, passed_over, text) = json.loads(done.stdout)
    assert "has to be allowed expressly" in refused
    assert (mode, weak) == ("landlock", True)
    assert len(losses) > 4 and passed_over and passed_over[0].startswith("MiniSandbox:")
    assert text.startswith("ran\n") and text.count("Permission denied") + text.count("denied") >= 2
    assert not Path("/tmp/x").exists()
