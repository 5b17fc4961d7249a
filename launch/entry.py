"""How every command of launch/ ends: with its exit status, and quietly when nobody reads its output any more.

`launch/train.py --help | head` closes the pipe early. Python would then print a traceback, or a complaint at
shutdown; SIGPIPE itself stays ignored, since it would kill a run whose terminal went away. A help text that
was read in part is a success, a run whose output broke off is not.
"""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

BROKEN_PIPE = 141
"""What a shell reports of a program that SIGPIPE ended (128 + 13)."""


def run_command(main: Callable[[], int], *, wait_for_threads: bool = True) -> NoReturn:
    """Run a command and exit with its status.

    Without `wait_for_threads` nothing runs after `main`: threads that libraries left behind cannot hold up
    the end (a training interrupted while Ray started its workers once hung there for ever)."""
    try:
        try:
            status: int | str | None = main()
        except SystemExit as ended:  # argparse, after --help or a wrong argument
            status = ended.code
        sys.stdout.flush()
    except BrokenPipeError:
        status = 0 if {"-h", "--help"} & set(sys.argv[1:]) else BROKEN_PIPE
        # What is still in the buffer is flushed once more at shutdown, and must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if wait_for_threads:
        sys.exit(status)
    if isinstance(status, str):
        print(status, file=sys.stderr)
    sys.stderr.flush()
    os._exit(1 if isinstance(status, str) else status or 0)
