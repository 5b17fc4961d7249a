"""Exit statuses of the commands, one meaning each."""

OK = 0
FAILED = 1
"""It started and failed."""
BAD_CONFIG = 2
"""The configuration or something it names is wrong; nothing was loaded or changed."""
UNUSABLE_MACHINE = 3
"""The kernel (or Python) of this machine cannot do it; the message says what to change."""
INTERRUPTED = 130
"""Ctrl-C."""
TERMINATED = 143
"""SIGTERM."""
