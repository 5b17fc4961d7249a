"""Escape and interference probes: attacks as data, run inside real sandboxes, judged from outside.

`python -m tests.sandbox.probes` runs them and prints the table of docs/security.md.
"""

from tests.sandbox.probes import bombs, calls, kernel, objects
from tests.sandbox.probes.model import Probe

ALL: tuple[Probe, ...] = kernel.PROBES + objects.PROBES + calls.PROBES + bombs.PROBES
