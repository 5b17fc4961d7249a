"""Supervised training of the demo policy in plain torch, loss on the assistant's tokens only.

Rows are padded on the right and run without an attention mask: under causal attention no real
token sees the padding, and torch keeps its fast path. Everything is seeded.
"""

import math
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from recipes.cpu.policy.muon import Muon
from recipes.cpu.policy.types import Codec, Demonstration, SftSettings, TrainingRow

FINAL_SHARE = 0.02
"""Learning rate of the last step over the peak: the demonstrators' odds are learned at small steps."""


def encode(demonstration: Demonstration, codec: Codec) -> TrainingRow:
    """The conversation as the served policy will see it, built by the agent's own codec."""
    ids = list(codec.initial(demonstration.system, demonstration.user))
    mask = [False] * len(ids)
    last = len(demonstration.turns) - 1
    for index, turn in enumerate(demonstration.turns):
        response = codec.encode_response(turn.response)
        ids += response
        mask += [True] * len(response)
        if index < last:
            shown = codec.continue_(turn.observation, closed=True)
            ids += shown
            mask += [False] * len(shown)
    return TrainingRow(ids=tuple(ids), mask=tuple(mask))


def distinct(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Each different row once, weighted by how often it occurs (mean weight 1): the same gradient on
    average as the repeated rows give, for less work."""
    counts = Counter(rows)
    mean = len(rows) / len(counts)
    return [replace(row, weight=count / mean) for row, count in counts.items()]


def entropy_floor(rows: Sequence[TrainingRow]) -> float:
    """The lowest loss (nats a token) that any model can have on these rows: what is left when only the
    demonstrators' own choices at each point are uncertain."""
    follows: dict[tuple[int, ...], defaultdict[int, float]] = {}
    for row in rows:
        for place in _choices(row):
            follows.setdefault(row.ids[:place], defaultdict(float))[row.ids[place]] += row.weight
    total = sum(row.weight * sum(row.mask) for row in rows)
    nats = 0.0
    for counts in follows.values():
        whole = sum(counts.values())
        nats -= sum(count * math.log(count / whole) for count in counts.values() if count < whole)
    return nats / total


def _choices(row: TrainingRow) -> Iterator[int]:
    return (place for place, trained in enumerate(row.mask) if trained)


def learning_rate(step: int, settings: SftSettings) -> float:
    """Linear warm-up, then cosine down to a fraction of the peak. `step` counts from 0."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    span = max(1, settings.steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    return settings.lr * (FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress)))


def batches(rows: Sequence[TrainingRow], batch_size: int, *, seed: int) -> Iterator[list[TrainingRow]]:
    """Endless epochs of batches of rows of similar length (less padding), in random order."""
    rng = random.Random(seed)
    while True:
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].ids) // 16, rng.random()))
        chunks = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        rng.shuffle(chunks)
        for chunk in chunks:
            yield [rows[i] for i in chunk]


def batch_loss(model: Any, rows: Sequence[TrainingRow], pad: int) -> Any:
    """Weighted mean cross-entropy (nats a token) of the masked ids; logits are computed there only."""
    import torch
    import torch.nn.functional as functional

    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
        mask[index, : len(row.ids)] = torch.tensor(row.mask)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    chosen = mask[:, 1:]
    logits = model.lm_head(hidden[:, :-1][chosen])
    losses = functional.cross_entropy(logits, ids[:, 1:][chosen], reduction="none")
    weights = torch.tensor([row.weight for row in rows]).unsqueeze(1).expand_as(chosen)[chosen]
    return (losses * weights).sum() / weights.sum()


def train(
    model: Any,
    rows: Sequence[TrainingRow],
    settings: SftSettings,
    *,
    pad: int,
    seed: int,
    threads: int | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train in place; returns the loss of every step. `on_step(step, loss)` is called after each."""
    import torch

    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    torch.manual_seed(seed)
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers." in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers." not in name]
    muon = Muon(hidden, weight_decay=settings.weight_decay)
    adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=settings.weight_decay)
    losses: list[float] = []
    model.train()
    source = batches(rows, settings.batch_size, seed=seed)
    for step in range(settings.steps):
        rate = learning_rate(step, settings)
        for group in adam.param_groups:
            group["lr"] = rate
        loss = batch_loss(model, next(source), pad)
        model.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        muon.step(rate * settings.matrix_lr_ratio)
        losses.append(float(loss.detach()))
        if on_step is not None:
            on_step(step, losses[-1])
    model.eval()
    return losses
