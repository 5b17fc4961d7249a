"""Does slow opening of sandboxes lengthen a step? The same loop with instant and with slow opening.

    python -m benchmarks.overlap [--opening S] [--steps N] [--no-overlap]

SkyRL's real training loop and real rollout workers (benchmarks.loop) with fake sandboxes, a policy, tests and
an update that sleep: a step of about fifteen seconds, far shorter than a real one, so that one second of
opening would show. Twice: rollouts whose ends are spread, and rollouts that all end, and want a sandbox to be
graded in, at the same moment. Prints mean step times, what rollouts still waited in sandbox_start, and the
ratios; exit status 1 when one is above 1.05.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import ray

from benchmarks.loop import make_loop, start_ray
from benchmarks.paced import make_tasks
from recipes.report.metrics import FILE_NAME, read_metrics
from recipes.swe.fanout import Fanout

PROMPTS, SAMPLES = 4, 4
PACE = {"turns": 8, "turn_s": 1.5, "grade_s": 0.5}
UPDATE_S = 4.0
LIMIT = 1.05


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    step_s: float
    """Mean of all steps but the first, in which nothing could be opened ahead."""
    start_s: float
    """Mean that a rollout spent in sandbox_start, first step left out."""


def measure(opening_s: float, *, spread: bool, steps: int, overlap: bool) -> Measured:
    """Train `steps` steps; every run sees the same tasks and the same pace."""
    slots = PROMPTS * SAMPLES
    pace = {**PACE, "spread": spread, "opening_s": opening_s, "slots": slots, "overlap": overlap}
    with tempfile.TemporaryDirectory() as folder:
        fanout = Fanout("benchmarks.paced:open_paced_runner", {"pace": pace}, nodes=1, slots=slots)
        try:
            fanout.wait_ready()
            trainer, tracker = make_loop(
                Path(folder), fanout, make_tasks(PROMPTS * (steps + 1)), prompts=PROMPTS, samples=SAMPLES,
                steps=steps, update_s=UPDATE_S, overlap=overlap,
            )  # fmt: skip
            asyncio.run(trainer.train())
        finally:
            asyncio.run(fanout.close())
        metrics = read_metrics(Path(folder) / FILE_NAME)[1:]
    return Measured(
        statistics.fmean(step["timing/step"] for step in tracker.steps[1:]),
        statistics.fmean(one.metrics["generate/trajectory_time_sandbox_start_mean"] for one in metrics),
    )


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="overlap", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--opening", type=float, default=1.0, help="seconds that opening takes (1)")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--no-overlap", action="store_true", help="open when asked only, to compare")
    arguments = parser.parse_args(argv)
    start_ray()
    try:
        ratios = [
            compare(arguments.opening, spread=spread, steps=arguments.steps, overlap=not arguments.no_overlap)
            for spread in (True, False)
        ]
    finally:
        ray.shutdown()
    return 0 if max(ratios) <= LIMIT else 1


def compare(opening_s: float, *, spread: bool, steps: int, overlap: bool) -> float:
    """Print both runs; how many times as long a step takes with slow opening."""
    instant = measure(0.0, spread=spread, steps=steps, overlap=overlap)
    slow = measure(opening_s, spread=spread, steps=steps, overlap=overlap)
    print("ends are spread" if spread else "all end together")
    for name, one in (("instant", instant), (f"{opening_s:g} s", slow)):
        print(f"  opening {name:>8}: step {one.step_s:6.2f} s, sandbox_start {one.start_s:5.2f} s a rollout")
    ratio = slow.step_s / instant.step_s
    print(f"  a step takes {ratio:.3f} times as long (limit {LIMIT})", flush=True)
    return ratio


if __name__ == "__main__":
    sys.exit(main())
