"""A started deployment per test, with its own state directory, and SWE-ReX's local one to compare with."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.local import LocalDeployment

from sandbox.rex import MiniSandboxDeployment, MiniSandboxRuntime

# mini-swe-agent writes a configuration directory and prints a banner when it is imported.
os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = tempfile.mkdtemp(prefix="mswea-")
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["SWE_REX_LOG_STREAM_LEVEL"] = "WARNING"


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rex-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
async def deployment(usable: None, state_dir: Path) -> AsyncIterator[MiniSandboxDeployment]:
    made = MiniSandboxDeployment(state_dir=state_dir)
    await made.start()
    yield made
    await made.stop()
    assert list(state_dir.iterdir()) == []


@pytest.fixture
def runtime(deployment: MiniSandboxDeployment) -> MiniSandboxRuntime:
    return deployment.runtime


def started(request: pytest.FixtureRequest, state_dir: Path) -> AbstractDeployment:
    """The deployment that a fixture's parameter names, to be started."""
    if request.param == "local":
        return LocalDeployment()
    request.getfixturevalue("usable")
    return MiniSandboxDeployment(state_dir=state_dir)


@pytest.fixture(params=["local", "mini"])
async def either(request: pytest.FixtureRequest, state_dir: Path) -> AsyncIterator[AbstractDeployment]:
    """The same test against SWE-ReX's local deployment and ours: what holds for both is the contract."""
    deployment = started(request, state_dir)
    await deployment.start()
    yield deployment
    await deployment.stop()
