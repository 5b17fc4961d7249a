"""Whose fault an exception is, decided in one place; docs/failures.md is the table for users.

Each boundary raises its own errors; `classify` turns them into a `Failure`, which takes the rollout out
of training. What it does not know (a TypeError, a failed assertion) is a programming error of ours,
`internal`: one rollout never stops a step, but it is counted, logged with its traceback, and stops the run
when it is not one but many. Retrying is the caller's business, by `worth_retrying`.
"""

import errno
from collections.abc import Mapping
from types import MappingProxyType

from recipes.swe.types import Failure, FailureKind
from rewards.errors import GraderError
from sandbox.errors import CacheError, SandboxError, SandboxStartError


class ProviderError(Exception):
    """The policy server could not answer (unreachable, timed out, refused, or answered nonsense)."""


class DeadlineError(Exception):
    """Load on our side, not the agent's work, used up the time."""


_BY_TYPE: tuple[tuple[type[Exception], FailureKind], ...] = (
    (CacheError, "cache"),  # Before its base class SandboxError.
    (SandboxError, "sandbox"),
    (ProviderError, "provider"),
    (GraderError, "grader"),
    (DeadlineError, "deadline"),
)
_TIMEOUT_BY_STAGE: Mapping[str, FailureKind] = MappingProxyType({"llm": "provider"})
_SAME_EVERYWHERE = ("task", "patch")
"""Kinds of GraderError that are the task's or the patch's: another node grades it no better."""


def classify(error: Exception, *, stage: str) -> Failure:
    """The failure that `error` stands for when raised in `stage`."""
    for kind_of_error, kind in _BY_TYPE:
        if isinstance(error, kind_of_error):
            return Failure(kind, one_line(error), elsewhere=_is_the_nodes(error))
    if isinstance(error, TimeoutError):
        kind = _TIMEOUT_BY_STAGE.get(stage, "node")
        return Failure(kind, f"timed out in stage {stage}: {one_line(error)}", elsewhere=kind == "node")
    if isinstance(error, OSError):
        return Failure("node", f"in stage {stage}: {one_line(error)}", elsewhere=True)
    return Failure("internal", f"in stage {stage or 'start'}: {one_line(error)}")


def worth_retrying(failure: Failure) -> bool:
    """Whether another attempt may end better: grading has had its own, a programming error comes again."""
    return failure.kind not in ("grader", "internal")


def one_line(error: BaseException, *, limit_chars: int = 500) -> str:
    """The exception as one short line, with its type."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"


def _is_the_nodes(error: Exception) -> bool:
    """A lost sandbox is one sandbox; one that does not open, a bad cache, or a full disk is the node."""
    if isinstance(error, GraderError):
        return error.kind not in _SAME_EVERYWHERE
    cause = error.__cause__
    full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or isinstance(error, CacheError | SandboxStartError)
