"""What a probe is, and how its outcome is judged. The attacks themselves are in the other modules."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.sandbox.probes.world import World

Mode = Literal["root", "user", "unshifted", "copies", "landlock"]
_LINE = re.compile(rb"^(refused|succeeded): ?(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one probe in one mode."""

    outcome: Literal["refused", "succeeded", "broken"]
    """`broken`: the probe itself failed, which proves nothing and fails its test."""
    detail: str
    """Errors met, or what succeeded."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One attack."""

    id: str
    """Unique, used in tests and in the table."""
    kind: str
    """What is attacked: files, processes, ..."""
    tries: str
    """What is tried, for people."""
    refusal: tuple[str, ...] = ()
    """Words of which each refusal must contain one: error names. Another refusal proves nothing."""
    script: str = ""
    """Python run inside (see `inside`); empty for attacks that need two sides."""
    attack: "Callable[[World], Awaitable[Verdict]] | None" = None
    """For attacks that need two sandboxes, or host-side calls."""
    timeout_s: float = 20.0
    """Limit of the script."""
    known: dict[Mode, str] = field(default_factory=dict[Mode, str])
    """Modes in which it is known to succeed, and why; never `root`. The table names them."""


def refused(detail: str) -> Verdict:
    """The attack failed as it should."""
    return Verdict("refused", detail)


def succeeded(detail: str) -> Verdict:
    """The attack worked."""
    return Verdict("succeeded", detail)


def judge(output: bytes, refusal: tuple[str, ...]) -> Verdict:
    """Read what a script printed."""
    lines = [(kind.decode(), text.decode("utf-8", "replace")) for kind, text in _LINE.findall(output)]
    if not lines:
        return Verdict("broken", f"no verdict: {output[-400:]!r}")
    won = [text for kind, text in lines if kind == "succeeded"]
    if won:
        return succeeded("; ".join(won)[:300])
    reasons = sorted({text for _, text in lines})
    odd = [text for text in reasons if not any(word in text for word in refusal)]
    if odd:
        return Verdict("broken", f"refused, but not as expected {refusal}: {odd}"[:400])
    return refused(", ".join(reasons)[:120])
