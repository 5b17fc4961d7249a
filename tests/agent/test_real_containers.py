"""The whole agent in containers: the tests of `test_real_sandbox`, with nothing changed but the backend."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.container import ContainerBackend
from tests.agent.test_real_sandbox import (  # noqa: F401 - fixtures and tests are collected from here
    cache,
    test_rollouts_end_to_end,
    test_tools_in_a_real_sandbox,
    test_without_a_fix_it_is_not_solved,
)
from tests.sandbox import engines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[Any, tuple[str, ...]]]:
    try:
        with engines.engine(request.param) as command:
            yield request.param, command
    except engines.UnusableError as error:
        pytest.skip(f"{request.param}: {error}")


@pytest.fixture
async def backend(engine: tuple[Any, tuple[str, ...]], tmp_path: Path) -> AsyncIterator[ContainerBackend]:
    name, command = engine
    async with ContainerBackend(name, program=command, state_dir=tmp_path / "state") as opened:
        yield opened
