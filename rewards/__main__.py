"""`python -m rewards`; see `rewards.cli`. Ends quietly when nobody reads its output any more."""

import os
import sys

from rewards.cli import main

if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        status = 141  # what a shell reports of a program that SIGPIPE ended
        # What is still in the buffer is flushed once more at shutdown, and must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
