"""Whose fault an exception is, decided in one place.

Each boundary raises its own errors; `classify` turns them into a `Failure`, which takes the rollout out
of training. What it does not know (a TypeError, a failed assertion) is a programming error and must
propagate: hiding it as bad luck would waste a run. Retrying is the caller's business.
"""

from collections.abc import Mapping
from types import MappingProxyType

from recipes.swe.types import Failure, FailureKind
from rewards.errors import GraderError
from sandbox.errors import CacheError, SandboxError


class ProviderError(Exception):
    """The policy server could not answer (unreachable, timed out, refused, or answered nonsense)."""


INFRASTRUCTURE = (CacheError, SandboxError, ProviderError, GraderError, OSError)
"""Exceptions that are failures of ours. TimeoutError and ConnectionError are OSErrors."""

_BY_TYPE: tuple[tuple[type[Exception], FailureKind], ...] = (
    (CacheError, "cache"),  # Before its base class SandboxError.
    (SandboxError, "sandbox"),
    (ProviderError, "provider"),
    (GraderError, "grader"),
)
_TIMEOUT_BY_STAGE: Mapping[str, FailureKind] = MappingProxyType({"llm": "provider"})


def classify(error: BaseException, *, stage: str) -> Failure | None:
    """The failure that `error` stands for when raised in `stage`; None for a programming error."""
    for kind_of_error, kind in _BY_TYPE:
        if isinstance(error, kind_of_error):
            return Failure(kind, one_line(error))
    if isinstance(error, TimeoutError):
        return Failure(_TIMEOUT_BY_STAGE.get(stage, "node"), f"timed out in stage {stage}: {one_line(error)}")
    if isinstance(error, OSError):
        return Failure("node", f"in stage {stage}: {one_line(error)}")
    return None


def one_line(error: BaseException, *, limit_chars: int = 500) -> str:
    """The exception as one short line, with its type."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"
