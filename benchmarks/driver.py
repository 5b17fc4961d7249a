"""What the driver itself costs: seconds of a step with 128 rollouts, and memory over 200 steps.

    python -m benchmarks.driver [--only overhead|memory] [--steps N] [--step-seconds S]

SkyRL's real training loop and real rollout workers (benchmarks.loop) with rollouts that are made up: 30 turns
and 16,000 tokens each for the overhead (with the whole history, and with the last 5 observations kept, where
nearly every turn is a row), and 150 turns; 10 turns and 1,500 tokens for the memory, where there are more
steps.
Overhead is the driver's processor time from a batch of prompts to SkyRL's GeneratorOutput, records on disk
included, where rollouts take none; it is compared with a step of `--step-seconds`, by default the 300 that
the slowest rollouts take. What SkyRL does with the output is only told (wall times). Memory is the resident
set after a tenth of the steps, and its growth until the end. Exit status 1 when overhead is above 1 % or
growth above 5 %.
"""

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray

from benchmarks.loop import TimedTracking, make_loop, start_ray
from benchmarks.paced import make_tasks
from recipes.swe.fanout import Fanout
from recipes.swe.trainers import SyncTrainer

PROMPTS, SAMPLES = 16, 8
LARGE = {"turns": 30, "tokens": 16_000, "seconds": 0.0}
ELIDED = {**LARGE, "keep_last": 5}
LONG = {"turns": 150, "tokens": 16_000, "seconds": 0.0}
SMALL = {"turns": 10, "tokens": 1_500, "seconds": 0.0}
OVERHEAD_LIMIT, GROWTH_LIMIT = 0.01, 0.05


@dataclass(slots=True)
class Watch:
    """What is read from the driver's process after each step."""

    cpu_s: list[float] = field(default_factory=list[float])
    rss_bytes: list[int] = field(default_factory=list[int])

    def look(self, _step: int = 0) -> None:
        """After a step."""
        gc.collect()
        self.rss_bytes.append(psutil.Process().memory_info().rss)

    def around(self, trainer: SyncTrainer) -> None:
        """Time `generate` of each step, which is all of ours: SkyRL makes tensors of what it returns."""
        generate = trainer.generate

        async def timed(batch: Any) -> Any:
            started = time.process_time()
            try:
                return await generate(batch)
            finally:
                self.cpu_s.append(time.process_time() - started)

        trainer.generate = timed


def run(made_up: dict[str, Any], *, steps: int) -> tuple[Watch, TimedTracking]:
    """Train `steps` steps of 128 rollouts."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        fanout = Fanout(
            "benchmarks.paced:open_made_up_runner", {"made_up": made_up}, nodes=1, slots=PROMPTS * SAMPLES
        )
        try:
            fanout.wait_ready()
            tasks = make_tasks(PROMPTS * 100)
            trainer, tracker = make_loop(
                Path(folder), fanout, tasks, prompts=PROMPTS, samples=SAMPLES, steps=steps, update_s=0.0,
                step_wise="keep_last" in made_up,
            )  # fmt: skip
            tracker.on_step = watch.look
            watch.around(trainer)
            asyncio.run(trainer.train())
        finally:
            asyncio.run(fanout.close())
    return watch, tracker


def overhead(what: str, made_up: dict[str, Any], *, steps: int, step_s: float) -> bool:
    """Print the overhead; whether it is within the limit."""
    watch, tracker = run(made_up, steps=steps)
    cpu_s = statistics.median(watch.cpu_s[1:])
    timers = {
        name.removeprefix("timing/"): statistics.median(step.get(name, 0.0) for step in tracker.steps[1:])
        for name in tracker.steps[-1]
    }
    share = cpu_s / step_s
    print(f"128 rollouts of {what}: {cpu_s:.2f} s of the driver's processor a step")
    print(f"  {share:.2%} of a step of {step_s:g} s (limit {OVERHEAD_LIMIT:.0%})")
    print(f"  resident {max(watch.rss_bytes) >> 20} MiB")
    print("  wall time: " + "  ".join(f"{name} {value:.2f} s" for name, value in sorted(timers.items())))
    return share <= OVERHEAD_LIMIT


def memory(steps: int) -> bool:
    """Print the growth; whether it is within the limit."""
    watch, _ = run(SMALL, steps=steps)
    rss, warm = watch.rss_bytes, max(1, steps // 10)
    window = max(1, steps // 20)
    before, after = max(rss[warm : warm + window]), max(rss[-window:])
    growth = after / before - 1
    print(f"driver: {before >> 20} MiB after {warm} steps, {after >> 20} MiB after {steps}: {growth:+.1%}")
    print("  every tenth: " + " ".join(str(size >> 20) for size in rss[:: max(1, steps // 10)]))
    return growth <= GROWTH_LIMIT


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="driver", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["overhead", "memory"])
    parser.add_argument("--steps", type=int, default=200, help="steps of the memory run (200)")
    parser.add_argument("--step-seconds", type=float, default=300.0)
    arguments = parser.parse_args(argv)
    start_ray()
    good = True
    try:
        if arguments.only != "memory":
            for what, made_up in (
                ("30 turns and 16,000 tokens", LARGE),
                ("the same, the last 5 observations kept", ELIDED),
                ("150 turns and 16,000 tokens", LONG),
            ):
                good &= overhead(what, made_up, steps=3, step_s=arguments.step_seconds)
        if arguments.only != "overhead":
            good &= memory(arguments.steps)
    finally:
        ray.shutdown()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
