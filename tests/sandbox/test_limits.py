"""Each limit by exceeding it: a clear error inside, nothing noticed by a neighbour or the host."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.mini import MiniBackend
from tests.sandbox import limits

_REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("check", limits.CHECKS, ids=lambda check: check.__name__)
async def test_limit(check: limits.Check, backend: MiniBackend) -> None:
    await check(backend)


@pytest.mark.slow
@pytest.mark.usefixtures("usable")
@pytest.mark.skipif(os.geteuid() != 0, reason="hiding the cgroups needs a mount")
def test_limits_without_cgroups() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.limits", "hide"],
        cwd=_REPOSITORY, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)
    assert results.pop("controllers") == ""
    assert {name: problem for name, problem in results.items() if problem} == {}
