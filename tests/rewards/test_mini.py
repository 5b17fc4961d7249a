"""The same grader in real sandboxes: the agent works in one, its diff is graded in fresh ones."""

import asyncio
import time
from dataclasses import replace

import pytest

from rewards.errors import GraderError
from rewards.grade import TIME_LIMIT, grade
from rewards.policy import PatchPolicy
from rewards.types import RewardResult
from sandbox.mini import MiniBackend
from sandbox.types import SandboxSpec
from tests.rewards.attacks import RUN
from tests.rewards.mini import MINI_SPEC
from tests.rewards.project import CORE_BUGGY, GOLD, edit

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIX = "sed -i 's/width + height/width * height/' /testbed/shapes/core.py\n"

SHELL_ATTACKS: dict[str, str] = {
    "01 conftest": "printf 'def pytest_pyfunc_call(pyfuncitem): return True\\n' > /testbed/conftest.py",
    "16 edited test": "sed -i 's/    assert area.*/    pass/' /testbed/tests/test_area.py",
    "20 environment": (
        "mkdir -p /tmp/p && echo 'def pytest_pyfunc_call(pyfuncitem): return True' > /tmp/p/plug.py\n"
        "export PYTEST_ADDOPTS='-p plug' PYTHONPATH=/tmp/p"
    ),
    "22 replaced pytest": (
        "P=$(python -c 'import pytest; print(pytest.__file__)')\n"
        "echo 'import os; os._exit(1)' > $P; printf '#!/bin/sh\\nexit 0\\n' > /opt/venv/bin/pytest"
    ),
    "23 pth in the venv": (
        "S=$(python -c 'import site; print(site.getsitepackages()[0])')\n"
        "echo 'def pytest_pyfunc_call(pyfuncitem): return True' > $S/plug.py\n"
        "echo \"import os; os.environ['PYTEST_PLUGINS']='plug'\" > $S/zz.pth"
    ),
    "26 git hook": (
        "mkdir -p /testbed/.git/hooks; printf '#!/bin/sh\\ntouch /x\\n' > /testbed/.git/hooks/post-checkout"
    ),
    "runner planted": "mkdir -p /opt/grader; echo 'raise SystemExit(1)' > /opt/grader/run.py",
    "test replaced by a link": "cd /testbed; rm tests/test_area.py; ln -s /dev/null tests/test_area.py",
    "tests directory moved": "cd /testbed; mv tests old; mkdir tests; touch tests/test_area.py",
    "fifo and device": "mkfifo /testbed/tests/pipe /testbed/pytest.py; true",
    "daemon that waits": (
        "nohup sh -c 'while :; do touch /testbed/conftest.py; sleep 0.05; done' >/dev/null 2>&1 &"
    ),
}  # fmt: skip


async def work(backend: MiniBackend, layers: SandboxSpec, script: str) -> str:
    """What an agent that runs `script` leaves behind."""
    async with await backend.open(layers) as sandbox:
        session = await sandbox.open_session()
        done = await session.run(script, timeout_s=20)
        assert done.exit_status == 0, done.text
        return await sandbox.diff("/testbed")


async def judge(
    backend: MiniBackend, layers: SandboxSpec, patch: str, *, policy: PatchPolicy | None = None
) -> RewardResult:
    async with await backend.open(layers) as sandbox:
        return await grade(MINI_SPEC, patch, sandbox, policy=policy or PatchPolicy())


async def test_fix_made_in_a_sandbox_earns_one(backend: MiniBackend, layers: SandboxSpec) -> None:
    patch = await work(backend, layers, FIX)
    result = await judge(backend, layers, patch)
    assert result.reasons == ()
    assert result.reward == 1.0


@pytest.mark.parametrize("name", SHELL_ATTACKS)
async def test_attack_from_the_agents_shell(name: str, backend: MiniBackend, layers: SandboxSpec) -> None:
    patch = await work(backend, layers, SHELL_ATTACKS[name])
    assert (await judge(backend, layers, patch)).reward == 0.0
    beside_fix = await work(backend, layers, FIX + SHELL_ATTACKS[name])
    result = await judge(backend, layers, beside_fix)
    assert result.reasons == ()
    assert result.reward == 1.0


@pytest.mark.parametrize("name", RUN)
async def test_attack_in_product_code(name: str, backend: MiniBackend, layers: SandboxSpec) -> None:
    policy = PatchPolicy(lint=name.startswith(("13", "06g", "06h")))
    try:
        result = await judge(backend, layers, RUN[name], policy=policy)
    except GraderError as error:
        assert name == "14d killed" and error.repeated is not None
        result = error.repeated
    assert (result.reward, result.resolved) == (0.0, False)
    assert result.reasons


async def test_hang_that_forks_and_ignores_signals_ends_in_time(
    backend: MiniBackend, layers: SandboxSpec
) -> None:
    hang = (
        "    import os, signal, time\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    os.fork()\n"
        "    os.setsid() if os.getpid() != os.getpgid(0) else None\n    time.sleep(600)"
    )
    patch = edit("shapes/core.py", CORE_BUGGY.replace("    return width + height", hang))
    started = time.monotonic()
    async with await backend.open(layers) as sandbox:
        spec = replace(MINI_SPEC, timeout_s=4)
        result = await grade(spec, patch, sandbox, policy=PatchPolicy(lint=False))
    assert (result.reward, result.reasons) == (0.0, (TIME_LIMIT,))
    assert time.monotonic() - started < 15


async def test_many_at_once(backend: MiniBackend, layers: SandboxSpec) -> None:
    patches = [GOLD, RUN["04 forged lines at exit"]] * 4
    results = await asyncio.gather(*(judge(backend, layers, patch) for patch in patches))
    assert [result.reward for result in results] == [1.0, 0.0] * 4
