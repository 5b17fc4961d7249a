"""For all tests: bytecode is written (else imports of the training stack take over a minute), and whether
sandboxes can open here."""

import os
import sys

import pytest

from sandbox.probe import unusable_reason

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(scope="session")
def usable() -> None:
    """Skip, with the reason, on a machine where no sandbox can open."""
    reason = unusable_reason()
    if reason:
        pytest.skip(reason)
