"""The command line: `python -m sandbox run|shell|ls|gc|probe|conformance`.

Parses, runs one command and turns errors into one line and an exit status. What the commands do is in
`sandbox.cli_run`, `sandbox.cli_shell` and `sandbox.cli_report`; docs/sandbox.md is the user's page.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NoReturn

from sandbox import cli_options
from sandbox.cli_options import UsageError
from sandbox.errors import SandboxError, SandboxUnavailableError

OK, FAILED, USAGE, UNUSABLE, TIMED_OUT, OWN_FAILURE = 0, 1, 2, 3, 124, 125

_EPILOG = """\
exit status of run and shell: the command's own; 124 it timed out; 125 minisandbox itself failed;
126, 127 the command cannot be run, is not there. Of all: 2 wrong usage, 3 this machine cannot open
sandboxes (see `probe`), 128+N ended by signal N (Ctrl-C: 130). Messages of ours begin "minisandbox:".
"""

Command = Callable[[argparse.Namespace], Awaitable[int]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    try:
        options = _parser().parse_args(arguments)
        status = asyncio.run(_until_signal(options.command, options))
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _say(error, USAGE)
    except SandboxUnavailableError as error:
        return _say(f"{error} (`python -m sandbox probe` tells more)", UNUSABLE)
    except BrokenPipeError:
        # `| head` had enough. The interpreter flushes once more on its way out, so give it somewhere to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (SandboxError, OSError, ValueError) as error:
        return _say(error, OWN_FAILURE)


def _say(what: object, status: int) -> int:
    sys.stderr.write(f"minisandbox: {what}\n")
    return status


async def _until_signal(command: Command, options: argparse.Namespace) -> int:
    """Run `command`; a signal cancels it, which closes its sandbox on the way out."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(command(options))
    caught: list[int] = []

    def on_signal(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not caught:
            raise
        return 128 + caught[0]


class _Parser(argparse.ArgumentParser):
    """One line about what is wrong instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"minisandbox: {message} (see `{self.prog} --help`)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="minisandbox", description="Container-free sandboxes.", epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, summary: str, command: Command) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(command=command)
        return sub

    run = add("run", "run one command in a new sandbox, its output as it comes", _run)
    cli_options.add_sandbox(run)
    cli_options.add_run(run)
    shell = add("shell", "an interactive shell, or another program, on a terminal in a new sandbox", _shell)
    cli_options.add_sandbox(shell)
    cli_options.add_command(shell, "what to run (default: bash)")
    ls = add("ls", "your live sandboxes and the processes that own them", _ls)
    ls.add_argument("--json", action="store_true", help="for programs")
    gc = add("gc", "remove whatever owners that no longer run left behind", _gc)
    probe = add("probe", "what this machine can do for sandboxes, found out by trying", _probe)
    probe.add_argument("--json", action="store_true", help="for programs")
    probe.add_argument("--layers", type=Path, metavar="DIR", help="where layers will lie (default: here)")
    conformance = add("conformance", "check on real sandboxes that all works as promised", _conformance)
    conformance.add_argument("checks", nargs="*", metavar="CHECK", help="only these (default: all)")
    for sub in (run, shell, ls, gc, conformance):
        sub.add_argument(
            "--state-dir",
            type=Path,
            metavar="DIR",
            help="where owners leave their names (default: below /tmp)",
        )
    return parser


# Imported late: `--help`, `ls` and `gc` need nothing of what opens sandboxes.


async def _run(options: argparse.Namespace) -> int:
    from sandbox.cli_run import run

    return await run(options)


async def _shell(options: argparse.Namespace) -> int:
    from sandbox.cli_shell import shell

    return await shell(options)


async def _ls(options: argparse.Namespace) -> int:
    from sandbox.cli_report import ls

    return ls(options)


async def _gc(options: argparse.Namespace) -> int:
    from sandbox.cli_report import gc

    return gc(options)


async def _probe(options: argparse.Namespace) -> int:
    from sandbox.cli_report import probe

    return await probe(options)


async def _conformance(options: argparse.Namespace) -> int:
    from sandbox.cli_report import conformance

    return await conformance(options)
