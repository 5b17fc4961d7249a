"""How good the demo policy is before RL: share of well-formed calls and resolve rate, task by task.

The real agent loop runs over pretend sandboxes (seconds) or real ones. In real ones the grader of the
training judges the patch by the task's tests. In pretend ones, where no test can run, the file must end up
exactly as it should be, which is stricter.
Run as a module to judge a finished policy:

    python -m recipes.cpu.policy.evaluate --cache-dir .cache --samples 8 [--real]
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from recipes.cpu.policy.demonstrations import LIMITS, DemonstrationError, task_source
from recipes.cpu.policy.plans import TaskSource
from recipes.cpu.policy.sampler import TorchPolicy, load
from recipes.cpu.policy.simulate import SimulatedSandbox
from recipes.swe.agent import AgentConfig, run_agent
from recipes.swe.chat import ChatCodec
from recipes.swe.grading import case_of, open_grader
from recipes.swe.tasks import LOCAL_TASKS, load_rows, to_task
from recipes.swe.types import TaskInstance, Trajectory
from sandbox.cache import EnvCache
from sandbox.types import Backend, Sandbox

CONCURRENT = 64
"""Attempts at once, so that sampling comes in large batches; with real sandboxes, sandboxes at once."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One task to judge on."""

    task: TaskInstance
    """The task."""
    source: TaskSource
    """Its file before and after the fix."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt and whether it is right."""

    instance_id: str
    """Of the task."""
    trajectory: Trajectory
    """What the agent did."""
    resolved: bool
    """Submitted, and right: by the tests, or in a pretend sandbox because the file is the fixed one."""


@dataclass(frozen=True, slots=True)
class Report:
    """Figures over all attempts."""

    attempts: int
    """How many."""
    well_formed: float
    """Share of responses with a call that could be run."""
    submitted: float
    """Share of attempts that submitted."""
    resolve_rate: float
    """Share of attempts that are right."""
    per_task: Mapping[str, float]
    """Resolve rate by instance id."""
    turns: float
    """Mean responses an attempt."""
    tokens: float
    """Mean length of an attempt's conversation in tokens."""

    @property
    def mixed_tasks(self) -> int:
        """Tasks that are solved sometimes and not always: the ones that GRPO learns from."""
        return sum(0 < rate < 1 for rate in self.per_task.values())


def subjects(path: Path, cache: EnvCache) -> list[Subject]:
    """The tasks of a file that can be judged: those whose fix touches one file."""
    found: list[Subject] = []
    for row in load_rows(path):
        try:
            found.append(Subject(to_task(row), task_source(row, cache)))
        except DemonstrationError:
            continue
    return found


async def attempt_all(
    policy: TorchPolicy,
    codec: ChatCodec,
    on: Sequence[Subject],
    config: AgentConfig,
    *,
    samples: int,
    backend: Backend | None = None,
    cache: EnvCache | None = None,
    concurrent: int = CONCURRENT,
) -> list[Attempt]:
    """`samples` attempts at every task, in real sandboxes when a backend and a cache are given."""
    gate = asyncio.Semaphore(concurrent)
    grader = open_grader(cache.root if cache is not None else None)

    async def one(subject: Subject) -> Attempt:
        async with gate:
            if backend is None or cache is None:
                return await _simulated(subject)
            env = await asyncio.to_thread(cache.ensure, subject.task.env)
            async with await backend.open(env.spec(LIMITS)) as sandbox:
                trajectory = await run_agent(sandbox, policy, codec, subject.task, config)
            case = case_of(subject.task.tests, env, backend, LIMITS)
            right = (await grader.judge(case, trajectory.patch)).resolved
            return _attempt(subject, trajectory, right)

    async def _simulated(subject: Subject) -> Attempt:
        sandbox = SimulatedSandbox({subject.source.path: subject.source.buggy})
        # It has what the agent uses, and nothing else of a sandbox.
        trajectory = await run_agent(cast(Sandbox, sandbox), policy, codec, subject.task, config)
        after = sandbox.files[subject.source.path].decode()
        return _attempt(subject, trajectory, after == subject.source.fixed)

    return list(await asyncio.gather(*(one(subject) for _ in range(samples) for subject in on)))


def summarise(attempts: Sequence[Attempt]) -> Report:
    """Figures of the attempts."""
    by_task: dict[str, list[bool]] = {}
    for attempt in attempts:
        by_task.setdefault(attempt.instance_id, []).append(attempt.resolved)
    turns = [turn for attempt in attempts for turn in attempt.trajectory.turns]
    lasts = [attempt.trajectory.turns[-1] for attempt in attempts if attempt.trajectory.turns]
    count = len(attempts)
    return Report(
        attempts=count,
        well_formed=sum(bool(turn.action) for turn in turns) / max(1, len(turns)),
        submitted=sum(attempt.trajectory.end == "submitted" for attempt in attempts) / count,
        resolve_rate=sum(attempt.resolved for attempt in attempts) / count,
        per_task={name: sum(results) / len(results) for name, results in by_task.items()},
        turns=len(turns) / count,
        tokens=sum(len(last.prompt_ids) + len(last.response_ids) for last in lasts) / count,
    )


def describe(report: Report) -> str:
    """One line for a person."""
    return (
        f"{report.attempts} attempts at {len(report.per_task)} tasks: "
        f"resolve rate {report.resolve_rate:.2f}, "
        f"{report.mixed_tasks} tasks solved sometimes, well-formed {report.well_formed:.3f}, "
        f"submitted {report.submitted:.2f}, {report.turns:.1f} turns and {report.tokens:.0f} tokens each"
    )


def _attempt(subject: Subject, trajectory: Trajectory, right: bool) -> Attempt:
    return Attempt(subject.task.instance_id, trajectory, right and trajectory.end == "submitted")


async def _main(arguments: argparse.Namespace) -> int:
    import torch

    torch.manual_seed(arguments.seed)
    cache = EnvCache(arguments.cache_dir)
    on = subjects(arguments.cache_dir / LOCAL_TASKS, cache)
    model, tokenizer = load(arguments.policy or arguments.cache_dir / "policy" / "cpu_tiny")
    codec = ChatCodec(tokenizer)
    policy = TorchPolicy(model, pad=tokenizer.pad_token_id, end=codec.end_id)
    config = AgentConfig.load(arguments.agent)
    if arguments.real:
        from sandbox.mini import MiniBackend

        async with MiniBackend() as backend:
            attempts = await attempt_all(
                policy,
                codec,
                on,
                config,
                samples=arguments.samples,
                backend=backend,
                cache=cache,
                concurrent=32,
            )
    else:
        attempts = await attempt_all(policy, codec, on, config, samples=arguments.samples)
    report = summarise(attempts)
    for name, rate in sorted(report.per_task.items(), key=lambda pair: pair[1]):
        print(f"{rate:.2f}  {name}")
    print(describe(report))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.cpu.policy.evaluate", description=__doc__)
    parser.add_argument("--cache-dir", type=Path, default=Path(".cache"))
    parser.add_argument("--policy", type=Path, help="policy folder (default: below the cache)")
    parser.add_argument("--agent", type=Path, default=Path("configs/agent/demo.yaml"))
    parser.add_argument("--samples", type=int, default=8, help="attempts a task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="real sandboxes instead of pretend ones")
    return asyncio.run(_main(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
