"""What the makers of the demo policy hand to each other: settings, demonstrations, training rows."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Shape of the language model (Qwen2, tied embeddings, fp32)."""

    vocab_size: int = 1734
    """Entries of the tokenizer, bytes and special tokens included."""
    hidden_size: int = 128
    """Width."""
    intermediate_size: int = 512
    """Width of the MLPs."""
    layers: int = 2
    """Transformer blocks."""
    heads: int = 2
    """Attention heads of 64; vLLM's CPU attention wants a head size it knows."""
    context_tokens: int = 2048
    """Longest prompt plus response."""


@dataclass(frozen=True, slots=True)
class SftSettings:
    """Supervised training on the demonstrations."""

    steps: int = 750
    """Optimiser steps."""
    batch_size: int = 8
    """Distinct demonstrations a step."""
    lr: float = 1e-2
    """Peak learning rate of AdamW (embeddings, norms, biases): after a warm-up, then cosine."""
    matrix_lr_ratio: float = 4.0
    """Muon's learning rate for the hidden matrices, over AdamW's."""
    warmup_steps: int = 10
    """Steps of linear warm-up."""
    weight_decay: float = 0.01
    """Of both."""


@dataclass(frozen=True, slots=True)
class DemonstrationSettings:
    """How many demonstrations, and how good."""

    total: int = 800
    """Demonstrations over all tasks."""
    right_share: float = 0.38
    """Mean share that makes the right edit."""
    right_spread: float = 0.12
    """Tasks differ: a task's own share lies within this much of the mean."""
    wrong_edits: int = 3
    """Different wrong edits a task."""


@dataclass(frozen=True, slots=True)
class DemoTurn:
    """One response of the scripted agent and what the agent loop showed next."""

    response: str
    """The assistant's message, without its end token."""
    observation: str
    """The next user message as the agent loop wrote it; empty after the last response."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One scripted attempt at a task that really ran."""

    instance_id: str
    """Of the task."""
    system: str
    """System message."""
    user: str
    """First user message."""
    turns: tuple[DemoTurn, ...]
    """In order."""
    right: bool
    """True when the edit is the fix."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One demonstration as ids."""

    ids: tuple[int, ...]
    """The whole conversation."""
    mask: tuple[bool, ...]
    """True where the id is the assistant's (its end token included): the ids that are trained on."""
    weight: float = 1.0
    """How often this conversation was demonstrated, over the mean of all distinct ones."""


class Codec(Protocol):
    """The part of `recipes.swe.chat.ChatCodec` that is used here."""

    def initial(self, system: str, user: str) -> tuple[int, ...]: ...

    def continue_(self, observation: str, *, closed: bool) -> tuple[int, ...]: ...

    def encode_response(self, text: str) -> tuple[int, ...]: ...
