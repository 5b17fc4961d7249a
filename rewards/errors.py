"""The grader's own failures. They are never a reward: the grading is retried or the rollout left out.

Some ends of a run can be our fault or the patched code's doing, and nothing tells which: the runner was
killed, or does not answer. Such an error carries the verdict that it becomes when it happens again in a
fresh sandbox (see `rewards.retry`), so that nobody can make a 0 disappear by breaking the runner.
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rewards.types import RewardResult

FaultKind = Literal[
    "sandbox", "start", "task", "patch", "runner_died", "unresponsive", "lost", "starved", "memory", "disk"
]
"""Ours for sure:
`sandbox`: a file or command call failed before any judged code ran;
`start`: the test command does not start;
`task`: its tests, trusted files or settings are wrong;
`patch`: it cannot be read or applied.
Ours or the judged code's, see `GraderError.repeated`:
`runner_died`: the runner ended without results;
`unresponsive`: it did not end at its deadline;
`lost`: the sandbox failed while judged code ran;
`starved`: a time limit, on a machine that was too busy to tell;
`memory`, `disk`: tests failed, and the sandbox had run out of it."""


class GraderError(Exception):
    """Grading could not be carried out (our fault, the machine's or the task's, not the policy's)."""

    def __init__(
        self, message: str, kind: FaultKind = "task", *, repeated: "RewardResult | None" = None
    ) -> None:
        """`repeated` is the verdict when such a fault happens again; None when it is ours for sure."""
        super().__init__(message)
        self.kind: FaultKind = kind
        self.repeated = repeated
