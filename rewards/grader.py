"""The one way from a task and a patch to a verdict, for training, evaluation, validation and the command.

Kept verdicts first (`GradeCache`, over a `VerdictStore` where one is given), then a grading in fresh
sandboxes with its one retry. A verdict of 0 that only stands because a fault happened twice is controlled:
the task is run once without the patch under the same limits, and where that ends in a fault too, the limits
or the machine are to blame: an error, never a 0. It knows no sandbox: the caller opens them.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field

from rewards.cache import GradeCache
from rewards.errors import FaultKind, GraderError
from rewards.grade import grade, run_unpatched
from rewards.policy import PatchPolicy
from rewards.retry import grade_with_retry
from rewards.store import task_digest
from rewards.types import GradingSandbox, RewardResult, TestSpec

_OF_THE_LIMITS: frozenset[FaultKind] = frozenset({"memory", "disk"})
"""Ends of a control that are kept: another run would end the same way."""


@dataclass(frozen=True, slots=True)
class Case:
    """A task as the grader needs it."""

    tests: TestSpec
    """Its tests."""
    open_sandbox: Callable[[], AbstractAsyncContextManager[GradingSandbox]]
    """Opens a fresh sandbox of it, without network."""
    environment: str
    """Digest of what the sandbox is made of; part of the key of kept verdicts."""
    limits: str = ""
    """What the sandbox may use, as text; a control is made once for a task and its limits."""
    restore: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Trusted files, see `rewards.grade.grade`."""
    policy: PatchPolicy = field(default_factory=PatchPolicy)
    """What is left out of patches."""

    def digest(self) -> str:
        """Of everything that a verdict depends on but the patch and the grader."""
        restored = {path: hashlib.sha256(data).hexdigest() for path, data in self.restore.items()}
        rest = json.dumps([self.environment, restored, asdict(self.policy)], sort_keys=True)
        return task_digest(self.tests, rest)


async def grade_case(case: Case, patch: str, sandbox: GradingSandbox) -> RewardResult:
    """One grading by `rewards.grade.grade`. Raises GraderError."""
    return await grade(
        case.tests,
        patch,
        sandbox,
        restore=case.restore,
        policy=case.policy,
    )


class Grader:
    """Verdicts for one process and one event loop."""

    def __init__(
        self,
        *,
        attempts: int = 2,
        cache: GradeCache | None = None,
        once: Callable[[Case, str, GradingSandbox], Awaitable[RewardResult]] = grade_case,
        control: Callable[[Case, GradingSandbox], Awaitable[None]] | None = None,
    ) -> None:
        """`attempts` gradings before a fault is final; `once` and `control` are replaced by tests only."""
        if attempts < 1:
            raise ValueError("attempts must be at least 1")
        self._attempts = attempts
        self._cache = cache
        self._once = once
        self._control = control or _control
        self._controls: dict[tuple[str, str], GraderError | None] = {}
        self._controlling: dict[tuple[str, str], asyncio.Lock] = {}
        self.faults: Counter[str] = Counter()
        """Of all gradings so far, see `rewards.retry.grade_with_retry`."""

    async def judge(self, case: Case, patch: str, *, faults: Counter[str] | None = None) -> RewardResult:
        """The verdict on a patch. `faults` counts those of this call only; a kept verdict has none.

        Raises GraderError, and whatever opening a sandbox raises."""
        digest = case.digest()
        if self._cache is None:
            return await self._grade(case, patch, digest, faults)
        return await self._cache.get(digest, patch, lambda: self._grade(case, patch, digest, faults))

    async def _grade(self, case: Case, patch: str, digest: str, faults: Counter[str] | None) -> RewardResult:
        noted: Counter[str] = Counter()
        try:
            return await grade_with_retry(
                case.open_sandbox,
                lambda sandbox: self._once(case, patch, sandbox),
                attempts=self._attempts,
                faults=noted,
                control=lambda: self._unpatched(case, digest),
            )
        finally:
            self.faults.update(noted)
            if faults is not None:
                faults.update(noted)

    async def _unpatched(self, case: Case, digest: str) -> None:
        """Raises GraderError when the task ends in a fault without any patch."""
        key = (digest, case.limits)
        async with self._controlling.setdefault(key, asyncio.Lock()):
            if key not in self._controls:
                self._controls[key] = await self._run_control(case)
            known = self._controls[key]
        if known is not None:
            raise GraderError(str(known), known.kind)

    async def _run_control(self, case: Case) -> GraderError | None:
        """What is to be remembered. Raises GraderError for what another run may not repeat."""
        try:
            async with case.open_sandbox() as sandbox:
                await self._control(case, sandbox)
        except GraderError as error:
            known = GraderError(f"without any patch the task ends the same way: {error}", error.kind)
            if error.kind in _OF_THE_LIMITS:
                return known
            raise known from error
        return None


async def _control(case: Case, sandbox: GradingSandbox) -> None:
    await run_unpatched(case.tests, sandbox, restore=case.restore)
