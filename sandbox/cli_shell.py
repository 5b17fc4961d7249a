"""`shell`: a program on a terminal of its own inside a new sandbox, shown on the user's.

The user's terminal is switched to raw mode, so that Ctrl-C, Ctrl-Z and the rest act inside, and put back
whatever happens. Bytes are copied both ways and not interpreted, as ssh does.
"""

import argparse
import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

from sandbox import terminal
from sandbox.cli_copy import start_copy
from sandbox.cli_options import UsageError, command_of, spec_of
from sandbox.cli_run import report_refused
from sandbox.mini import MiniBackend

_PROMPT = r"[sandbox] \w\$ "


async def shell(options: argparse.Namespace) -> int:
    """Exit status of the program."""
    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError("shell needs a terminal; use `run -- CMD`")
    spec = spec_of(options)
    env = {"TERM": os.environ.get("TERM", "dumb"), "PS1": _PROMPT} | dict(spec.env)
    if options.allow_weak:
        raise UsageError("shell: the weak mode has no terminals; use `run --allow-weak -- CMD`")
    async with MiniBackend(state_dir=options.state_dir, mode=options.mode) as backend:
        async with await backend.open(spec) as sandbox:
            master = await sandbox.open_terminal()
            _follow_size(master)
            with _raw_mode():
                _, exited = await sandbox.spawn(
                    command_of(options) or ["bash"],
                    fds=(), targets=(), null=(), cwd=sandbox.workdir, env=env,
                    terminal=terminal.slave_path(master),
                )  # fmt: skip
                # A descriptor for each: the copy that ends first must not pull away the other's.
                shown = start_copy(master, 1, close_target=False)
                start_copy(0, os.dup(master), close_target=True)
                status = await exited
                await asyncio.wait({shown}, timeout=0.5)  # a job left behind may hold the terminal
    report_refused(sandbox)
    return status


@contextmanager
def _raw_mode() -> Generator[None]:
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stderr.write("\r")


def _follow_size(master: int) -> None:
    """Give the terminal inside the size of the user's, now and whenever that changes."""
    own = os.dup(master)

    def copy() -> None:
        size = os.get_terminal_size(0)
        try:
            terminal.set_size(own, size.lines, size.columns)
        except OSError:
            return  # it ended

    copy()
    asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, copy)
