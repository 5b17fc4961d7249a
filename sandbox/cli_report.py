"""`ls`, `gc`, `probe` and `conformance`: commands that tell about this machine."""

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from pathlib import Path

from sandbox.cli_options import UsageError
from sandbox.mini import default_state_dir

_OK, _FAILED, _UNUSABLE = 0, 1, 3


def _print(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def ls(options: argparse.Namespace) -> int:
    """Owners and their sandboxes."""
    from sandbox.listing import live_owners

    owners = live_owners(options.state_dir or default_state_dir())
    if options.json:
        _print(json.dumps([dataclasses.asdict(owner) for owner in owners], indent=2))
        return _OK
    if not owners:
        _print("no sandbox of yours is open")
    for owner in owners:
        used = [sandbox for sandbox in owner.sandboxes if not sandbox.spare]
        spare = len(owner.sandboxes) - len(used)
        made_ahead = f", {spare} made ahead" if spare else ""
        _print(f"owner {owner.pid}  {_age(owner.age_s)}  {len(used)} open{made_ahead}  {owner.command[:80]}")
        for sandbox in used:
            _print(
                f"  {sandbox.name or '-'}  pid {sandbox.pid}  {_age(sandbox.age_s)}  "
                f"{sandbox.processes} processes  {sandbox.memory_bytes / (1 << 20):.1f} MiB  "
                f"{sandbox.cpu_s:.2f} s cpu"
            )
    return _OK


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"


def gc(options: argparse.Namespace) -> int:
    """Remove what the dead left."""
    from sandbox.gc import collect

    removed = collect(options.state_dir)
    if removed.processes or removed.cgroups or removed.directories:
        _print(
            f"removed: {removed.directories} directories of owners that no longer run, "
            f"{removed.cgroups} cgroups; killed {removed.processes} processes"
        )
    else:
        _print("nothing was left behind")
    return _OK


async def probe(options: argparse.Namespace) -> int:
    """One line a facility, and what to change; then the mode that is used, and what is lost in it."""
    from sandbox.probe import probe as try_all

    findings = await asyncio.to_thread(try_all, options.layers or Path.cwd())
    missing = [finding for finding in findings if finding.required and not finding.ok]
    if options.json:
        _print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
        return _UNUSABLE if missing else _OK
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = "yes" if finding.ok else ("NO" if finding.required else "no")
        _print(f"{finding.name:{width}}  {mark:3}  {finding.detail}")
        if not finding.ok:
            _print(f"{'':{width}}       for: {finding.use}; to change: {finding.fix}")
    usable = await _say_mode() and not missing
    _print("sandboxes can be opened here" if usable else "no sandbox can be opened here")
    return _OK if usable else _UNUSABLE


async def _say_mode() -> bool:
    """Whether a mode works that need not be allowed."""
    from sandbox.errors import SandboxError
    from sandbox.fallback import open_backend

    try:
        async with open_backend(allow_weak=True) as (_, report):
            for line in report.lines():
                _print(line)
            if report.weak:
                _print("it has to be allowed: `run --allow-weak -- CMD`")
            return not report.weak
    except SandboxError as error:
        _print(f"no mode works: {error}")
        return False


async def conformance(options: argparse.Namespace) -> int:
    """Run the suite; nothing else is printed than one line a check, as it comes."""
    from sandbox.conformance import CHECKS, Outcome, outcomes
    from sandbox.mini import MiniBackend

    unknown = set(options.checks) - {check.name for check in CHECKS}
    if unknown:
        raise UsageError(f"no such check: {', '.join(sorted(unknown))}; run it without names to see all")
    started = time.monotonic()
    seen: list[Outcome] = []
    async with MiniBackend(state_dir=options.state_dir) as backend:
        async for outcome in outcomes(backend, options.checks):
            seen.append(outcome)
            _print(f"{'ok    ' if outcome.passed else 'FAILED' if outcome.problem else 'no    '} {outcome}")
            sys.stdout.flush()
    passed = sum(outcome.passed for outcome in seen)
    _print(f"{passed} of {len(seen)} checks passed in {time.monotonic() - started:.1f} s")
    return _FAILED if any(outcome.problem for outcome in seen) else _OK
