"""A backend per test, with its own state directory."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox.mini import MiniBackend


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A state directory that other users can pass through."""
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
async def backend(usable: None, state_dir: Path) -> AsyncIterator[MiniBackend]:
    async with MiniBackend(state_dir=state_dir) as entered:
        yield entered
