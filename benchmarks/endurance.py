"""Endurance of the sandbox: crashes in a row, echoes on an overloaded machine, a thousand live at once.

    python -m benchmarks.endurance kills  --count 10000   owner, helper, inits and commands die at random
    python -m benchmarks.endurance echoes --count 100000  no wrong result while overloaded ten times
    python -m benchmarks.endurance idle   --count 1000    all answer; memory of each; nothing left

Prints one JSON object; exit status 1 when something was wrong, lost or left. tests/sandbox/endurance runs
the same functions with small counts. It needs no quiet machine, and only its own descendants are killed.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sandbox import cgroup, gc, process
from sandbox.errors import SandboxError, SandboxLostError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, BindMount, Limits, Sandbox, SandboxSpec

_T = 60.0
_LIMITS = Limits(memory_bytes=128 * MIB, disk_bytes=16 * MIB, pids=64)
_REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Report:
    """What one run found; `problems` must be empty."""

    done: int = 0
    """Sandboxes opened, or echoes answered."""
    counts: Counter[str] = field(default_factory=Counter[str])
    """How often each thing happened: acknowledgements, kills by target, errors by kind."""
    problems: list[str] = field(default_factory=list[str])
    """Wrong results, lost acknowledgements, leftovers."""
    figures: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds, bytes and rates, named with their units."""

    def as_json(self) -> dict[str, object]:
        """For printing; of many problems the first fifty."""
        return {
            "done": self.done, "counts": dict(sorted(self.counts.items())), "figures": self.figures,
            "problems": len(self.problems), "first_problems": self.problems[:50],
        }  # fmt: skip


# -- what is left


def _stat_tree() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = process.stat_fields(path.name)
        if fields:
            children.setdefault(int(fields[1]), []).append(int(path.name))
    return children


def descendants(pid: int) -> Iterator[tuple[int, int]]:
    """(depth, pid) of all below `pid`: 1 helpers, 2 first processes, 3 and more what runs inside."""
    children = _stat_tree()
    queue = [(1, child) for child in children.get(pid, [])]
    while queue:
        depth, each = queue.pop()
        yield depth, each
        queue += [(depth + 1, child) for child in children.get(each, [])]


def leftovers(state_dir: Path, mark: str, owners: list[int]) -> list[str]:
    """Processes, cgroups and state directories of these owners; waits a moment for what is just ending."""
    deadline = time.monotonic() + 10
    while True:
        found = _leftovers(state_dir, mark, owners)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _leftovers(state_dir: Path, mark: str, owners: list[int]) -> list[str]:
    found: list[str] = []
    tags = [f"{cgroup.PREFIX}{owner}-" for owner in owners]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line, groups = (path / "cmdline").read_bytes(), (path / "cgroup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ours = str(state_dir).encode() in line or mark.encode() in line
        if int(path.name) != os.getpid() and (ours or any(tag in groups for tag in tags)):
            found.append(f"process {path.name}: {line[:80]!r}")
    for places in cgroup.candidate_directories().values():
        for place in places:
            found += [str(path) for tag in tags for path in Path(place).glob(f"{tag}*")]
    temporary = state_dir.parent / "tmp"
    found += [str(path) for place in (state_dir, temporary) if place.is_dir() for path in place.iterdir()]
    mounts = Path("/proc/self/mountinfo").read_text()
    if str(state_dir) in mounts:
        found.append("a mount on the host")
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        if str(state_dir) in backing.read_text():
            found.append(str(backing))
    return found


# -- kills


async def _use(backend: MiniBackend, journal: Path, number: str, mark: str, log: int) -> None:
    """One sandbox's life. Each acknowledgement is logged before the next step; wrong results too."""

    def note(kind: str, text: str = "") -> None:
        os.write(log, f"{kind}\t{number}\t{text.replace('\n', ' ')}\n".encode())

    spec = SandboxSpec(limits=_LIMITS, binds=(BindMount(journal, "/journal", writable=True),), workdir="/tmp")
    try:
        async with await backend.open(spec) as sandbox:
            note("opened")
            await _work(sandbox, number, mark, note)
    except SandboxError as error:
        note(
            "lost" if isinstance(error, SandboxLostError) else "not opened",
            f"{type(error).__name__}: {error}",
        )
    except Exception as error:  # noqa: BLE001 - anything else is a finding
        note("ODD", f"{type(error).__name__}: {error}".replace("\n", " "))


async def _work(sandbox: Sandbox, number: str, mark: str, note: "object") -> None:
    assert callable(note)
    session = await sandbox.open_session()
    await session.run(f"(setsid sleep {mark} &) ; sleep {mark} & disown", timeout_s=_T)
    for step in range(4):
        line = f"{number}.{step}"
        result = await sandbox.exec(["sh", "-c", f"echo {line} >> /journal/{os.getpid()}"], timeout_s=_T)
        if result.exit_status == 0:
            note("journal", line)
        result = await session.run(f"x={line}; echo $x", timeout_s=_T)
        if result.exit_status == 0:
            note("echo" if result.output == line.encode() + b"\n" else "WRONG", f"{line} {result.output!r}")
        await sandbox.write_file(f"/testbed/{line}", line.encode() + b"\n")
        note("written", line)
        if step == 3:
            patch = await sandbox.diff("/testbed")
            missing = [s for s in range(4) if f"+{number}.{s}" not in patch.splitlines()]
            note("WRONG" if missing else "patch", f"patch lacks {missing}" if missing else "")


async def _kill_below(log: int, mean_s: float) -> None:
    """SIGKILL a random descendant of this owner now and then."""
    while True:
        await asyncio.sleep(random.expovariate(1 / mean_s))
        by_depth: dict[int, list[int]] = {}
        for depth, pid in descendants(os.getpid()):
            by_depth.setdefault(min(depth, 4), []).append(pid)
        # Helpers rarely: their death takes all sandboxes along.
        wanted = random.choices((1, 2, 3, 4), weights=(1, 8, 8, 8))[0]
        if victims := by_depth.get(wanted):
            try:
                os.kill(random.choice(victims), signal.SIGKILL)
                os.write(log, f"killed\t-\tdepth {wanted}\n".encode())
            except ProcessLookupError:
                continue


async def own(state_dir: Path, journal: Path, log_path: Path, mark: str, count: int, at_once: int) -> None:
    """The owner that is killed and started again: `count` sandboxes, `at_once` at a time."""
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with MiniBackend(state_dir=state_dir) as backend:
        killer = asyncio.ensure_future(_kill_below(log, 0.15))
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                await _use(backend, journal, f"{os.getpid()}-{number}", mark, log)

        await asyncio.gather(*(worker() for _ in range(at_once)))
        killer.cancel()
    os.write(log, b"finished\t-\t\n")


def _read_log(path: Path, report: Report) -> set[str]:
    """Adds to the counts; gives the lines that must be in the journal."""
    journal: set[str] = set()
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, number, text = line.split("\t", 2)
        report.counts[f"{kind} {text}" if kind in ("killed", "lost", "not opened") else kind] += 1
        if kind in ("ODD", "WRONG"):
            report.problems.append(f"{kind} {number} {text}")
        if kind == "journal":
            journal.add(text)
    return journal


def kills(count: int, *, seed: int, at_once: int = 8, owner_life_s: float = 8.0) -> Report:
    """Owners are started, killed and started again until `count` sandboxes were opened. Blocks."""
    chance = random.Random(seed)
    report = Report()
    started = time.monotonic()
    owners: list[int] = []
    mark = f"86{os.getpid()}{seed}"
    with tempfile.TemporaryDirectory(prefix="endurance-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        root.chmod(0o711)
        state, journal = root / "state", root / "journal"
        for path in (state, journal, root / "tmp"):
            path.mkdir(mode=0o711)
        while report.done < count:
            log = root / f"log-{len(owners)}"
            owner = _start_owner(state, journal, log, mark, count - report.done, at_once)
            owners.append(owner.pid)
            try:
                owner.wait(timeout=chance.uniform(0.3, 2 * owner_life_s))
            except subprocess.TimeoutExpired:
                owner.kill()
                report.counts["killed owner"] += 1
            owner.wait()
            if owner.returncode not in (0, -signal.SIGKILL):
                report.problems.append(f"an owner ended with {owner.returncode}")
            gc.collect(state)
            acknowledged = _read_log(log, report)
            kept = (
                (journal / str(owner.pid)).read_text().split() if (journal / str(owner.pid)).exists() else []
            )
            report.problems += [f"lost: {line}" for line in sorted(acknowledged - set(kept))]
            report.problems += [f"left: {item}" for item in leftovers(state, mark, [owner.pid])]
            report.done = report.counts["opened"]
    report.figures["seconds"] = time.monotonic() - started
    report.figures["sandboxes_per_s"] = report.done / report.figures["seconds"]
    return report


def _start_owner(
    state: Path, journal: Path, log: Path, mark: str, count: int, at_once: int
) -> "subprocess.Popen[bytes]":
    arguments = [str(state), str(journal), str(log), mark, str(count), str(at_once)]
    command = [sys.executable, "-m", "benchmarks.endurance", "owner", *arguments]
    environment = {**os.environ, "TMPDIR": str(state.parent / "tmp")}  # looked at afterwards, see leftovers
    return subprocess.Popen(command, cwd=_REPOSITORY, env=environment)


# -- echoes


async def echoes(count: int, *, sandboxes: int = 8, overload: int = 10) -> Report:
    """`count` echoes through sessions while `overload` busy processes a core run."""
    report = Report()
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(overload * cores)]  # noqa: ASYNC220
    started = time.monotonic()
    delays: list[float] = []
    numbers = iter(range(count))

    async def worker(sandbox: Sandbox) -> None:
        session = await sandbox.open_session()
        for number in numbers:
            begun = time.monotonic()
            result = await session.run(f"echo {number} $((number={number})) 'a\tb'", timeout_s=120)
            delays.append(time.monotonic() - begun)
            expected = f"{number} {number} a\tb\n".encode()
            if (result.output, result.exit_status, result.timed_out) != (expected, 0, False):
                report.problems.append(f"{number}: {result}")

    try:
        with tempfile.TemporaryDirectory(prefix="endurance-", ignore_cleanup_errors=True) as name:
            Path(name).chmod(0o711)
            async with MiniBackend(state_dir=Path(name)) as backend:
                spec = SandboxSpec(limits=_LIMITS)
                opened = [await backend.open(spec) for _ in range(sandboxes)]
                await asyncio.gather(*(worker(sandbox) for sandbox in opened))
    finally:
        for each in busy:
            each.kill()
        for each in busy:
            each.wait()
    delays.sort()
    report.done = len(delays)
    report.figures["seconds"] = time.monotonic() - started
    report.figures["median_ms"] = delays[len(delays) // 2] * 1000
    report.figures["p99_ms"] = delays[len(delays) * 99 // 100] * 1000
    return report


# -- idle


def _unshared_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


async def idle(count: int, *, at_once: int = 32) -> Report:
    """`count` sandboxes live at the same time: all answer, then all end."""
    report = Report()
    gate = asyncio.Semaphore(at_once)
    mark = f"87{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="endurance-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        async with MiniBackend(state_dir=Path(name)) as backend:
            free = _available_bytes()

            async def open_one() -> Sandbox:
                async with gate:
                    return await backend.open(SandboxSpec(limits=_LIMITS))

            async def ask(number: int, sandbox: Sandbox) -> None:
                async with gate:
                    result = await sandbox.exec(["echo", str(number)], timeout_s=_T)
                    if result.output != f"{number}\n".encode():
                        report.problems.append(f"{number}: {result}")

            started = time.monotonic()
            opened = await asyncio.gather(*(open_one() for _ in range(count)))
            report.figures["open_s"] = time.monotonic() - started
            started = time.monotonic()
            await asyncio.gather(*(ask(number, sandbox) for number, sandbox in enumerate(opened)))
            report.figures["answer_s"] = time.monotonic() - started
            inits = [pid for depth, pid in descendants(os.getpid()) if depth >= 2]
            report.figures["unshared_bytes_each"] = sum(map(_unshared_bytes, inits)) / max(1, len(inits))
            report.figures["machine_bytes_each"] = (free - _available_bytes()) / count
            started = time.monotonic()
            await asyncio.gather(*(sandbox.close() for sandbox in opened))
            report.figures["close_s"] = time.monotonic() - started
            report.done = len(opened)
        report.problems += [f"left: {item}" for item in leftovers(Path(name), mark, [os.getpid()])]
    return report


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.endurance",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "what", choices=("kills", "echoes", "idle", "owner"), help="owner is for kills itself"
    )
    parser.add_argument("--count", type=int, default=1000, help="sandboxes or echoes")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which owners are killed")
    parser.add_argument("--at-once", type=int, default=8, help="sandboxes used at the same time (kills)")
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "owner":
        state, journal, log, mark, count, at_once = options.rest
        asyncio.run(own(Path(state), Path(journal), Path(log), mark, int(count), int(at_once)))
        return 0
    if options.what == "kills":
        report = kills(options.count, seed=options.seed, at_once=options.at_once)
    elif options.what == "echoes":
        report = asyncio.run(echoes(options.count))
    else:
        report = asyncio.run(idle(options.count))
    sys.stdout.write(json.dumps(report.as_json(), indent=1) + "\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
