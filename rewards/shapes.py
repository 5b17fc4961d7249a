"""From a verdict to the number that is trained on. Pure functions, put together by `ShapeConfig`.

`binary` is the default and the only shape whose 1 means a fix; the others give a denser signal and can be
gamed in the ways that their docstrings say. A suspicious verdict is worth 0 whatever the shape, or is
quarantined: left out of the loss like a fault of ours, and counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rewards.types import RewardResult

ShapeName = Literal["binary", "fraction"]
SuspiciousPolicy = Literal["zero", "quarantine"]
SHAPE_KEYS = ("shape", "turn_penalty", "length_penalty", "format_bonus", "suspicious")
"""What `shape_config` reads."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What an attempt took, as far as a shape may ask."""

    turns: int
    """Policy calls."""
    max_turns: int
    """Most that were allowed."""
    tokens: int
    """Tokens sampled."""
    max_tokens: int
    """Most that were allowed."""
    well_formed: int
    """Turns whose call could be parsed."""


@dataclass(frozen=True, slots=True)
class ShapeConfig:
    """Which shape, and what is taken from it or added to it."""

    shape: ShapeName = "binary"
    """`binary` or `fraction`."""
    turn_penalty: float = 0.0
    """Taken from a positive reward at the turn limit, 0-1; proportionally less before."""
    length_penalty: float = 0.0
    """Taken from a positive reward at the token limit, 0-1; only for what goes beyond half of it."""
    format_bonus: float = 0.0
    """Added for turns that are all well formed, 0-1; proportionally less otherwise."""
    suspicious: SuspiciousPolicy = "zero"
    """What becomes of a verdict with suspicions."""

    def __post_init__(self) -> None:
        for name in ("turn_penalty", "length_penalty", "format_bonus"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie between 0 and 1, is {getattr(self, name)}")


def binary(result: RewardResult) -> float:
    """1 if resolved, else 0 (the rule of SWE-bench, Jimenez et al. 2024)."""
    return 1.0 if result.resolved else 0.0


def fraction(result: RewardResult, pass_to_pass: int) -> float:
    """share of FAIL_TO_PASS passed x share of PASS_TO_PASS kept; 1 only if resolved.

    Both factors are needed: without the second one, deleting the broken code path would pay. Special cases
    for single tests earn part of it."""
    if result.suspicions:
        return 0.0
    kept = 1.0 - result.p2p_broken / pass_to_pass if pass_to_pass else 1.0
    return result.f2p_fraction * max(0.0, kept)


def turn_aware(reward: float, effort: Effort, penalty: float) -> float:
    """reward x (1 - penalty x turns / max_turns): shorter ways to the same fix are worth more.

    It scales, so a failure stays 0 and giving up early gains nothing."""
    return (
        reward * (1.0 - penalty * min(1.0, effort.turns / effort.max_turns)) if effort.max_turns else reward
    )


def length_aware(reward: float, effort: Effort, penalty: float) -> float:
    """reward x (1 - penalty x s), s = max(0, 2 tokens / max_tokens - 1): a soft limit on length, after the
    soft overlong punishment of DAPO (Yu et al. 2025), which is subtracted there and scales here."""
    if not effort.max_tokens:
        return reward
    over = min(1.0, max(0.0, 2.0 * effort.tokens / effort.max_tokens - 1.0))
    return reward * (1.0 - penalty * over)


def with_format(reward: float, effort: Effort, bonus: float) -> float:
    """(1 - bonus) x reward + bonus x well_formed / turns: teaches the call format before the first fix.

    A policy can earn `bonus` without fixing anything: keep it small, and take it away later."""
    share = effort.well_formed / effort.turns if effort.turns else 0.0
    return (1.0 - bonus) * reward + bonus * share


def shaped(
    result: RewardResult, config: ShapeConfig, effort: Effort, *, pass_to_pass: int = 0
) -> float | None:
    """The number to train on; None when the verdict is quarantined. `pass_to_pass` is how many are listed."""
    if result.suspicions:
        return None if config.suspicious == "quarantine" else 0.0
    reward = binary(result) if config.shape == "binary" else fraction(result, pass_to_pass)
    reward = turn_aware(reward, effort, config.turn_penalty)
    reward = length_aware(reward, effort, config.length_penalty)
    return with_format(reward, effort, config.format_bonus) if config.format_bonus else reward


def shape_config(values: Mapping[str, object]) -> ShapeConfig:
    """From configuration. Raises ValueError naming what is unknown or wrong."""
    unknown = sorted(set(values) - set(SHAPE_KEYS))
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
    shape, suspicious = values.get("shape", "binary"), values.get("suspicious", "zero")
    if shape not in ("binary", "fraction") or suspicious not in ("zero", "quarantine"):
        raise ValueError(f"shape {shape!r} or suspicious {suspicious!r} is not known")
    numbers: dict[str, float] = {}
    for name in ("turn_penalty", "length_penalty", "format_bonus"):
        value = values.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, is {value!r}")
        numbers[name] = float(value)
    return ShapeConfig(shape=shape, suspicious=suspicious, **numbers)
