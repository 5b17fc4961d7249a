"""`python -m tests.sandbox.probes`."""

from tests.sandbox.probes.run import main

main()
