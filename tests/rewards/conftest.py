from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.errors import SandboxUnavailableError
from sandbox.mini import MiniBackend
from sandbox.types import SandboxSpec
from tests.rewards.mini import make_layers
from tests.rewards.project import LocalSandbox, write_project


@pytest.fixture
def local(tmp_path: Path) -> LocalSandbox:
    write_project(tmp_path)
    return LocalSandbox(tmp_path)


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> SandboxSpec:
    return make_layers(tmp_path_factory.mktemp("layers"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[MiniBackend]:
    try:
        async with MiniBackend() as backend:
            yield backend
    except SandboxUnavailableError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
