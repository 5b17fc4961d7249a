"""Runs every attack on every target and writes what came of it, as docs/reward.md shows it.

    python -m tests.rewards.table [--every] [--attacks REGEX] [--targets REGEX] [--jobs N] [--no-lint]
        [--per-kind N] [--json FILE]

Also the right fix, alone and beside innocent debris, on every prepared task. Takes about a second a pair.
"""

import argparse
import asyncio
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Sequence
from pathlib import Path

from rewards.errors import GraderError
from rewards.types import RewardResult
from sandbox.mini import MiniBackend
from tests.rewards.catalogue import Attack, catalogue, recorded
from tests.rewards.targets import Target, attack, real_targets, small_target

Outcome = tuple[str, str, str, str]
"""(attack id, target, what stopped it or `REWARD`, first reason)."""


def stopped_by(result: RewardResult) -> str:
    """The first defence that would have been enough, weakest last."""
    if result.reward:
        return "REWARD"
    if not result.tests_passed and not any(reason.startswith("suspicious") for reason in result.reasons):
        if any(word in " ".join(result.reasons) for word in ("the test", "canar", "equals anything")):
            return "runner"
        return "dropped" if result.dropped_paths else "tests"
    return "tests and lint" if not result.tests_passed else "lint only"


async def _told(outcome: Awaitable[Outcome], progress: Path | None) -> Outcome:
    """Written as it comes, so that an interrupted run has not run for nothing."""
    done = await outcome
    if progress is not None:
        with progress.open("a") as file:
            file.write(json.dumps(done) + "\n")
    return done


async def _one(
    backend: MiniBackend, target: Target, tried: Attack, slots: asyncio.Semaphore, lint: bool
) -> Outcome:
    async with slots:
        try:
            result = await attack(backend, target, tried.script, lint=lint)
        except GraderError as error:
            return tried.id, target.name, "ERROR", f"{error.kind}: {error}"
        except Exception as error:  # noqa: BLE001 - a table of everything that happened
            return tried.id, target.name, "ERROR", repr(error)
        return tried.id, target.name, stopped_by(result), "; ".join(result.reasons)[:200]


async def run(
    targets: Sequence[Target],
    attacks: Sequence[Attack],
    jobs: int,
    progress: Path | None = None,
    *,
    lint: bool = True,
) -> list[Outcome]:
    """All pairs that are not in `progress` yet; recorded attacks on markupsafe only."""
    lines = progress.read_text().splitlines() if progress is not None and progress.exists() else []
    known: list[Outcome] = [tuple(json.loads(line)) for line in lines]
    seen = {outcome[:2] for outcome in known}
    slots = asyncio.Semaphore(jobs)
    async with MiniBackend() as backend:
        pairs = [
            (target, tried)
            for tried in attacks
            for target in targets
            if (tried.kind != "recorded" or "markupsafe" in target.name)
            and (tried.id, target.name) not in seen
        ]
        ran = [_told(_one(backend, target, tried, slots, lint), progress) for target, tried in pairs]
        return [*known, *await asyncio.gather(*ran)]


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: a line per kind of attack."""
    kinds: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        kinds[outcome[0].split(": ", 1)[0]].append(outcome)
    lines = [
        "| kind | attacks | gradings | reward 0 | reward 1 | not judged | stopped by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind, group in kinds.items():
        how = Counter(stopped for _, _, stopped, _ in group if stopped not in ("REWARD", "ERROR"))
        names = len({name for name, _, _, _ in group})
        earned = sum(stopped == "REWARD" for _, _, stopped, _ in group)
        text = ", ".join(f"{key} {count}" for key, count in how.most_common())
        unjudged = sum(stopped == "ERROR" for _, _, stopped, _ in group)
        nothing = len(group) - earned - unjudged
        lines.append(f"| {kind} | {names} | {len(group)} | {nothing} | {earned} | {unjudged} | {text} |")
    return "\n".join(lines)


def sample(attacks: Sequence[Attack], number: int) -> list[Attack]:
    """All recorded attacks, and `number` of each other kind, spread over its list."""
    kinds: dict[str, list[Attack]] = defaultdict(list)
    for item in attacks:
        kinds[item.kind].append(item)
    chosen: list[Attack] = []
    for kind, group in kinds.items():
        step = max(len(group) // number, 1)
        chosen += group if kind == "recorded" else group[::step][:number]
    return chosen


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--every", action="store_true", help="every prepared task, not one a project")
    parser.add_argument("--attacks", default="", help="only those whose id matches")
    parser.add_argument("--targets", default="", help="only those whose name matches")
    parser.add_argument("--per-kind", type=int, default=0, help="that many own attacks of each kind; 0: all")
    parser.add_argument("--no-lint", action="store_true", help="what stops them without the lint")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="outcomes, a line each; those in it are not run again")
    options = parser.parse_args()
    attacks = [item for item in (*recorded(), *catalogue()) if re.search(options.attacks, item.id)]
    if options.per_kind:
        attacks = sample(attacks, options.per_kind)
    with tempfile.TemporaryDirectory() as folder:
        targets = [small_target(Path(folder)), *real_targets(every=options.every)]
        targets = [target for target in targets if re.search(options.targets, target.name)]
        outcomes = asyncio.run(run(targets, attacks, options.jobs, options.json, lint=not options.no_lint))
    for outcome in outcomes:
        if outcome[2] in ("REWARD", "ERROR"):
            print(*outcome, sep=" | ")
    print(table(outcomes))


if __name__ == "__main__":
    main()
