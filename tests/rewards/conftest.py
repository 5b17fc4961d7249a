from pathlib import Path

import pytest

from tests.rewards.project import LocalSandbox, write_project


@pytest.fixture
def local(tmp_path: Path) -> LocalSandbox:
    write_project(tmp_path)
    return LocalSandbox(tmp_path)
