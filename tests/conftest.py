"""For all tests: bytecode is written (else imports of the training stack take over a minute)."""

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
