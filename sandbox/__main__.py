"""`python -m sandbox`, and the `minisandbox` command: see `sandbox.cli`."""

import signal
import sys


def main() -> int:
    """The exit status."""
    # Until the event loop takes signals over, Ctrl-C ends the process quietly instead of with a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sandbox import cli  # late: this takes most of the start-up time

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
