"""Endurance with small counts; `python -m benchmarks.endurance` takes the full ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import endurance

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("usable")]
_REPOSITORY = Path(endurance.__file__).resolve().parent.parent

_FEW_DESCRIPTORS = """
import asyncio, resource, sys, tempfile
from pathlib import Path
hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 48), hard))
from sandbox.errors import SandboxError
from sandbox.mini import MiniBackend
from sandbox.types import SandboxSpec

async def main():
    opened = []
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        async with MiniBackend(state_dir=Path(name)) as backend:
            try:
                for _ in range(60):
                    async with asyncio.timeout(20):
                        opened.append(await backend.open(SandboxSpec()))
            except SandboxError as error:
                print("error", error)
            if opened:
                await opened.pop().close()
                result = await opened[0].exec(["echo", "on"], timeout_s=20)
                assert result.output == b"on\\n", result
            print("opened", len(opened) + 1)

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_random_kills_lose_and_leave_nothing(seed: int) -> None:
    report = endurance.kills(150, seed=seed, owner_life_s=3.0)
    assert report.problems == []
    assert report.done >= 150
    assert report.counts["journal"] > 100
    assert sum(count for name, count in report.counts.items() if name.startswith("killed")) > 5


async def test_no_wrong_echo_on_an_overloaded_machine() -> None:
    report = await endurance.echoes(5_000)
    assert report.problems == []
    assert report.done == 5_000


async def test_many_live_sandboxes_answer_and_leave_nothing() -> None:
    report = await endurance.idle(250)
    assert report.problems == []
    assert report.done == 250


@pytest.mark.parametrize("hard", [48, 4096], ids=["too-few", "soft-limit-raised"])
def test_too_few_descriptors_is_a_clear_error(hard: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FEW_DESCRIPTORS, str(hard)],
        cwd=_REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    if hard == 48:
        assert "descriptors" in done.stdout or "open files" in done.stdout, done.stdout
    else:
        assert "opened 60" in done.stdout, done.stdout
    assert "never retrieved" not in done.stderr and os.strerror(24) not in done.stderr, done.stderr
