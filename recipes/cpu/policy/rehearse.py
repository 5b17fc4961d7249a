"""Rehearses RL on the demo policy in one process: does GRPO raise its resolve rate, and with which settings?

The real agent loop over pretend sandboxes, sampling and training in plain torch: no vLLM, no Ray, no SkyRL,
no tests. It answers in minutes what a full run answers in a quarter of an hour, and nothing else; the
training of record is `launch/train.py`.

    python -m recipes.cpu.policy.rehearse --steps 20 --lr 1e-4 --seed 0
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.cpu.policy.evaluate import Attempt, Subject, attempt_all, describe, subjects, summarise
from recipes.cpu.policy.sampler import TorchPolicy, load
from recipes.swe.agent import AgentConfig
from recipes.swe.chat import ChatCodec
from recipes.swe.tasks import LOCAL_TASKS
from recipes.swe.types import Trajectory
from sandbox.cache import EnvCache

MICRO_BATCH = 16


def advantages(attempts: Sequence[Attempt]) -> list[float]:
    """GRPO's: reward less the mean of its task's attempts, over their standard deviation."""
    import torch

    values = torch.zeros(len(attempts))
    for name in {attempt.instance_id for attempt in attempts}:
        places = [i for i, attempt in enumerate(attempts) if attempt.instance_id == name]
        rewards = torch.tensor([float(attempts[i].resolved) for i in places])
        values[places] = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    return values.tolist()


def row(trajectory: Trajectory) -> tuple[list[int], list[bool]]:
    """The conversation's ids, and which of them were sampled."""
    ids: list[int] = []
    mask: list[bool] = []
    for turn in trajectory.turns:
        shown = turn.prompt_ids[len(ids) :]
        ids += [*shown, *turn.response_ids]
        mask += [False] * len(shown) + [True] * len(turn.response_ids)
    return ids, mask


def update(model: Any, optimizer: Any, attempts: Sequence[Attempt], max_norm: float) -> float:
    """One on-policy step (token mean over the whole batch); returns the gradient's norm."""
    import torch

    scored = [(row(a.trajectory), value) for a, value in zip(attempts, advantages(attempts), strict=True)]
    total = sum(sum(mask) for (_, mask), _ in scored)
    scored = sorted((pair for pair in scored if pair[1] != 0), key=lambda pair: len(pair[0][0]))
    optimizer.zero_grad(set_to_none=True)
    for start in range(0, len(scored), MICRO_BATCH):
        part = scored[start : start + MICRO_BATCH]
        width = max(len(ids) for (ids, _), _ in part)
        ids = torch.zeros((len(part), width), dtype=torch.long)
        weight = torch.zeros((len(part), width))
        for index, ((one, mask), value) in enumerate(part):
            ids[index, : len(one)] = torch.tensor(one)
            weight[index, : len(one)] = torch.tensor(mask, dtype=torch.float) * value
        scores = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[:, :-1], dim=-1)
        chosen = scores.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        (-(chosen * weight[:, 1:]).sum() / total).backward()
    if not scored:
        return 0.0
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return float(norm)


async def rehearse(arguments: argparse.Namespace) -> list[float]:
    """Train; returns the resolve rate of every step."""
    import torch

    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)
    cache = EnvCache(arguments.cache_dir)
    on = subjects(arguments.cache_dir / LOCAL_TASKS, cache)
    model, tokenizer = load(arguments.policy or arguments.cache_dir / "policy" / "cpu_tiny")
    codec = ChatCodec(tokenizer)
    policy = TorchPolicy(model, pad=tokenizer.pad_token_id, end=codec.end_id)
    config = AgentConfig.load(arguments.agent)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.0)
    rates: list[float] = []
    left: list[Subject] = []
    for step in range(arguments.steps):
        if len(left) < arguments.prompts:
            left = rng.sample(on, len(on))
        picked, left = left[: arguments.prompts], left[arguments.prompts :]
        attempts = await attempt_all(policy, codec, picked, config, samples=arguments.rollouts)
        norm = update(model, optimizer, attempts, arguments.max_norm)
        report = summarise(attempts)
        rates.append(report.resolve_rate)
        print(f"{step:3d} gradient {norm:.2f} {describe(report)}", flush=True)
    if arguments.judged_samples:
        report = summarise(await attempt_all(policy, codec, on, config, samples=arguments.judged_samples))
        print(f"end {describe(report)}")
    return rates


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.cpu.policy.rehearse", description=__doc__)
    parser.add_argument("--cache-dir", type=Path, default=Path(".cache"))
    parser.add_argument("--policy", type=Path, help="policy folder (default: below the cache)")
    parser.add_argument("--agent", type=Path, default=Path("configs/agent/demo.yaml"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=8, help="tasks a step")
    parser.add_argument("--rollouts", type=int, default=8, help="attempts a task")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--judged-samples", type=int, default=4, help="attempts a task at the end")
    parser.add_argument("--seed", type=int, default=0)
    rates = asyncio.run(rehearse(parser.parse_args(argv)))
    third = min(3, len(rates))
    print(f"first {third} steps {sum(rates[:third]) / third:.3f}, last {sum(rates[-third:]) / third:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
