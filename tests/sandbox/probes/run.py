"""Runs probes in one mode and judges them; starts itself as whom the mode asks for."""

import argparse
import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from sandbox import cgroup
from sandbox.errors import SandboxError, SandboxLostError
from tests.sandbox import ordinary_user
from tests.sandbox.probes import ALL
from tests.sandbox.probes.model import Mode, Probe, Verdict, judge, succeeded
from tests.sandbox.probes.world import World, build

_REPOSITORY = Path(__file__).resolve().parents[3]
_PROBE_LIMIT_S = 120.0
_BEGIN, _END = "<!-- probes: begin -->", "<!-- probes: end -->"

_DELEGATE = """
from sandbox import cgroup
# As systemd delegates: directories of the user's own, with this process in them.
for controller, places in cgroup.candidate_directories().items():
    for place in places:
        own = os.path.join(place, os.path.basename(target))
        try:
            os.mkdir(own)
            for name in ("", "cgroup.procs", "tasks", "cgroup.subtree_control"):
                path = os.path.join(own, name)
                if os.path.exists(path):
                    os.chown(path, uid, uid)
            syscalls.write_setting(os.path.join(own, "cgroup.procs"), str(os.getpid()))
            break
        except OSError:
            continue
"""


async def judge_probe(world: World, probe: Probe) -> Verdict:
    """Run one probe and look at everything that tells whether it worked."""
    try:
        async with asyncio.timeout(_PROBE_LIMIT_S):
            if probe.attack is not None:
                verdict = await probe.attack(world)
            else:
                await world.renew()
                result = await world.run(probe.script, timeout_s=probe.timeout_s)
                verdict = judge(result.output, probe.refusal)
                if any(token in result.output for token in world.tokens):
                    verdict = succeeded("a secret was read")
    except SandboxLostError as error:
        verdict = succeeded(f"the sandbox was lost: {error}")
    except Exception as error:  # noqa: BLE001 - a probe that cannot run is broken, whatever the reason
        verdict = Verdict("broken", f"{type(error).__name__}: {error}"[:500])
    if changed := world.damage():
        verdict = succeeded(f"changed outside: {', '.join(changed)}")
    if not await world.revive():
        verdict = succeeded(f"the sandbox's first process died ({verdict.detail})")
    return verdict


async def judge_together(world: World, probes: list[Probe]) -> dict[str, Verdict]:
    """Verdicts of the scripts from one process that forks for each: an interpreter start costs more than they
    do. Only refusals count, and only if nothing at all was damaged; anything else is run again alone."""
    scripts = [(probe.id, probe.script, probe.timeout_s) for probe in probes]
    timeout_s = sum(probe.timeout_s for probe in probes) + 60
    try:
        result = await world.run(f"run_batch({scripts!r})", timeout_s=timeout_s, output_limit_bytes=16 << 20)
        outputs = json.loads(result.output.splitlines()[-1])
    except (SandboxError, ValueError, IndexError):
        return {}
    damaged = bool(world.damage())
    if not await world.revive() or damaged or any(token in result.output for token in world.tokens):
        return {}
    verdicts = {probe.id: judge(outputs[probe.id].encode("latin1"), probe.refusal) for probe in probes}
    return {name: verdict for name, verdict in verdicts.items() if verdict.outcome == "refused"}


async def run_here(mode: Mode, wanted: list[str]) -> dict[str, dict[str, object]]:
    """Results of the probes in this process."""
    os.environ["PROBE_SECRET"] = secrets.token_hex(16)
    results: dict[str, dict[str, object]] = {}
    probes = [probe for probe in ALL if not wanted or probe.id in wanted]
    async with build(mode) as world:
        together = await judge_together(world, [probe for probe in probes if probe.attack is None])
        for probe in probes:
            started = time.monotonic()
            verdict = together.get(probe.id) or await judge_probe(world, probe)
            results[probe.id] = {**asdict(verdict), "seconds": round(time.monotonic() - started, 3)}
    return results


def run_mode(mode: Mode, wanted: list[str]) -> dict[str, dict[str, object]]:
    """Results of the probes in a child process that is who the mode asks for."""
    arguments = ["--here", mode, *wanted]
    if mode in ("root", "unshifted") and os.geteuid() != 0:
        raise PermissionError(f"mode {mode} needs root")
    if mode in ("root", "unshifted") or os.geteuid() != 0:
        command = [sys.executable, "-m", "tests.sandbox.probes", *arguments]
        return _read(subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True))
    with ordinary_user.home() as target:
        try:
            tests = target / "tests" / "sandbox"
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(_REPOSITORY / "tests/sandbox/probes", tests / "probes", ignore=ignored)
            for package in (tests.parent, tests):
                (package / "__init__.py").touch()
            shutil.copy(ordinary_user.__file__, tests)
            command = ordinary_user.command(target, "-m", "tests.sandbox.probes", *arguments, first=_DELEGATE)
            return _read(subprocess.run(command, capture_output=True, text=True))
        finally:
            for places in cgroup.candidate_directories().values():
                for place in places:
                    if (Path(place) / target.name).is_dir():
                        cgroup.remove_directory(str(Path(place) / target.name))


def _read(done: "subprocess.CompletedProcess[str]") -> dict[str, dict[str, object]]:
    if done.returncode != 0:
        raise RuntimeError(f"the probes could not run: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(results: dict[Mode, dict[str, dict[str, object]]]) -> str:
    """The table of docs/security.md."""
    modes = list(results)
    lines = [f"| probe | what is tried | {' | '.join(modes)} |", "|---|---|" + "---|" * len(modes)]
    for mode in modes:
        counts = Counter(str(result["outcome"]) for result in results[mode].values())
        lines.insert(0, f"{mode}: {', '.join(f'{count} {name}' for name, count in counts.items())}\n")
    for kind in dict.fromkeys(probe.kind for probe in ALL):
        for probe in (each for each in ALL if each.kind == kind):
            cells: list[str] = []
            for mode in modes:
                result = results[mode].get(probe.id)
                outcome = "-" if result is None else str(result["outcome"])
                cells.append(
                    f"**{outcome}**: {probe.known.get(mode, '')}" if outcome == "succeeded" else outcome
                )
            lines.append(f"| {kind}: {probe.id} | {probe.tries} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_between_markers(path: Path, text: str) -> None:
    """Replace what stands between the two markers of a page."""
    before, begin, rest = path.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{path} has no markers {_BEGIN} and {_END}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sandbox.probes", description=__doc__)
    parser.add_argument("--modes", default="root,user,unshifted", help="comma-separated; the columns")
    parser.add_argument("--here", metavar="MODE", help="run one mode in this process and print JSON")
    parser.add_argument("--write", type=Path, help="put the table into this file, between its markers")
    parser.add_argument("--details", action="store_true", help="each probe's result, not the table")
    parser.add_argument("--kinds", default="", help="comma-separated: only probes of these kinds")
    parser.add_argument("probes", nargs="*", help="ids; all when none is given")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    options.probes += [probe.id for probe in ALL if probe.kind in kinds]
    if options.here:
        sys.stdout.write(json.dumps(asyncio.run(run_here(options.here, options.probes))) + "\n")
        return
    results = {mode: run_mode(mode, options.probes) for mode in options.modes.split(",")}
    if options.details:
        for mode, each in results.items():
            for name, result in each.items():
                sys.stdout.write(
                    f"{mode} {name} {result['outcome']} {result['seconds']} {result['detail']}\n"
                )
        return
    if options.write:
        write_between_markers(options.write, table(results))
        return
    sys.stdout.write(table(results) + "\n")
