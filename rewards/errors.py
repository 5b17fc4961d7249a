"""The grader's own failures. They are never a reward: the rollout is retried or left out."""


class GraderError(Exception):
    """Grading could not be carried out (our fault, the machine's or the task's, not the policy's)."""
