"""For all tests: bytecode is written (else imports of the training stack take over a minute), Ctrl-C has its
usual meaning, and whether sandboxes can open here."""

import os
import signal
import sys

import pytest
from hypothesis import settings

from sandbox.probe import unusable_reason

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
settings.register_profile("busy", deadline=None)  # a busy machine is slow at times
settings.load_profile("busy")
# A job in a script's background starts with SIGINT ignored, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def usable() -> None:
    """Skip, with the reason, on a machine where no sandbox can open."""
    reason = unusable_reason()
    if reason:
        pytest.skip(reason)
