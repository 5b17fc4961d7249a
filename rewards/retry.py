"""The one place where a grading is tried again: a fresh sandbox for each try.

A fault that is ours for sure stays an error, however often it happens: it is no reward, and the rollout is
left out. A fault that the judged code could have caused (it can kill or stop the runner, fill the disk, eat
the memory) earns one more grading; when that ends in such a way again, it is the code's doing and counts as
the 0 that it looked like, unless a control shows that the task ends so without any patch. So a policy that
breaks the runner pays with a 0, and costs one extra grading.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from rewards.errors import GraderError
from rewards.types import GradingSandbox, RewardResult

COUNTED_AS_0 = "_counted_as_0"
CONTROL_FAILED = "control_failed"
"""Names among the counted faults, beside the kinds."""


async def grade_with_retry[S: GradingSandbox](
    open_sandbox: Callable[[], AbstractAsyncContextManager[S]],
    grade_once: Callable[[S], Awaitable[RewardResult]],
    *,
    attempts: int = 2,
    faults: Counter[str] | None = None,
    control: Callable[[], Awaitable[None]] | None = None,
) -> RewardResult:
    """The verdict of the first grading that gives one. `grade_once` calls `rewards.grade.grade`.

    `faults` counts every fault by kind, and verdicts of repeated faults as `<kind>_counted_as_0`. `control`
    is called before such a verdict; it raises GraderError when the task ends like that without the patch.
    Raises GraderError when the last attempt fails by our fault, and whatever `open_sandbox` raises."""
    doubtful = 0
    for attempt in range(1, attempts + 1):
        try:
            async with open_sandbox() as sandbox:
                result = await grade_once(sandbox)
            return replace(result, gradings=attempt) if attempt > 1 else result
        except GraderError as error:
            _note(faults, error.kind)
            doubtful += error.repeated is not None
            if attempt == attempts:
                if error.repeated is None or doubtful < 2:
                    raise
                if control is not None:
                    await _controlled(control, faults)
                _note(faults, f"{error.kind}{COUNTED_AS_0}")
                return replace(error.repeated, gradings=attempt)
    raise ValueError("attempts must be at least 1")


async def _controlled(control: Callable[[], Awaitable[None]], faults: Counter[str] | None) -> None:
    try:
        await control()
    except GraderError:
        _note(faults, CONTROL_FAILED)
        raise


def _note(faults: Counter[str] | None, name: str) -> None:
    if faults is not None:
        faults[name] += 1
