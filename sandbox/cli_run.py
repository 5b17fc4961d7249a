"""`run`: one command in a new sandbox.

Programs inside get pipes of ours, never the caller's own descriptors: a terminal or a file of this machine
must not be reachable from inside.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.cli_copy import start_copy
from sandbox.cli_options import UsageError, command_of, spec_of
from sandbox.fallback import open_backend
from sandbox.instance import MiniSandbox
from sandbox.mini import MiniBackend
from sandbox.weak import LandlockBackend

_TIMED_OUT = 124


async def run(options: argparse.Namespace) -> int:
    """Exit status for the caller."""
    spec = spec_of(options)
    if not command_of(options):
        raise UsageError("nothing to run: `run [OPTIONS] -- CMD`")
    patch, outputs = "", list[asyncio.Future[None]]()
    try:
        async with _opened_backend(options) as backend:
            async with await backend.open(spec) as sandbox:
                for source, target in options.upload:
                    await sandbox.upload(Path(source), target)
                status = await _command(sandbox, options, outputs)
                if options.diff:
                    patch = await sandbox.diff(options.diff)
                for source, target in options.download:
                    await sandbox.download(source, Path(target))
    finally:
        # What the command left running held its output open until here.
        await asyncio.gather(*outputs)
    report_refused(sandbox)
    if options.diff_to:
        options.diff_to.write_text(patch, encoding="utf-8", errors="surrogateescape")
    elif patch:
        sys.stdout.buffer.write(patch.encode("utf-8", "surrogateescape"))
    return status


@asynccontextmanager
async def _opened_backend(options: argparse.Namespace) -> AsyncGenerator[MiniBackend | LandlockBackend]:
    """MiniSandbox; with `--allow-weak`, where that cannot open, the weak mode, with a word of warning."""
    if not options.allow_weak:
        async with MiniBackend(state_dir=options.state_dir, mode=options.mode) as mini:
            yield mini
        return
    async with open_backend(state_dir=options.state_dir, allow_weak=True, mode=options.mode) as pair:
        backend, report = pair
        if report.weak:
            sys.stderr.write("minisandbox: WEAKER: Landlock, no full sandbox; `probe` tells what is lost\n")
        yield backend


async def _command(
    sandbox: MiniSandbox, options: argparse.Namespace, outputs: list[asyncio.Future[None]]
) -> int:
    out_read, out_write = sandbox.make_pipe()
    err_read, err_write = sandbox.make_pipe()
    theirs, targets = [out_write, err_write], [1, 2]
    in_write = -1
    if not os.isatty(0):
        in_read, in_write = sandbox.make_pipe()
        theirs.insert(0, in_read)
        targets.insert(0, 0)
    outputs += [start_copy(out_read, 1, close_target=False), start_copy(err_read, 2, close_target=False)]
    try:
        _, exited = await sandbox.spawn(
            command_of(options),
            fds=tuple(theirs),
            targets=tuple(targets),
            null=() if in_write >= 0 else (0,),
            cwd=sandbox.workdir,
        )
    finally:
        for fd in theirs:
            os.close(fd)
    if in_write >= 0:
        start_copy(0, in_write, close_target=True)
    await asyncio.wait({exited}, timeout=options.timeout)
    if not exited.done():
        sys.stderr.write(f"minisandbox: timed out after {options.timeout:g} s\n")
        return _TIMED_OUT
    return exited.result()


def report_refused(sandbox: MiniSandbox) -> None:
    """Tell what the allow-list kept programs from."""
    for refusal in sandbox.refused:
        times = f", {refusal.times} times" if refusal.times > 1 else ""
        sys.stderr.write(f"minisandbox: network: {refusal.reason}{times}\n")
