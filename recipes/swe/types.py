"""Vocabulary of a rollout: what the agent is given, what is recorded, what comes back.

One `Rollout` is everything the driver learns of one attempt. It crosses process borders, so it
holds only plain data. A bad rollout is data: `failure` is set, nothing is raised.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from recipes.swe.shared_ids import TokenIds
from rewards.types import RewardResult, TestSpec
from sandbox.types import EnvSpec

EndReason = Literal["submitted", "turn_limit", "context", "time", "format"]
"""How the agent's own work ended; all of these are graded and trained on."""

FailureKind = Literal["cache", "sandbox", "provider", "grader", "node", "deadline", "internal"]
"""What failed, see docs/failures.md: never the policy. `internal` is a programming error of ours."""

STAGES = ("env_prep", "sandbox_start", "llm", "env", "grade", "cleanup")
"""Stages of a rollout, in order; they never overlap and sum to its wall time."""

WAITS = ("slot", "model", "grading_slot")
"""What a rollout waits for under load: never counted against the agent."""


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """One task, ready to run."""

    instance_id: str
    """Unique id, SWE-smith style."""
    repo: str
    """Repository name as in the dataset row."""
    problem_statement: str
    """What the agent is told."""
    env: EnvSpec
    """Environment to open."""
    tests: TestSpec
    """Tests that decide the reward."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy server sampled for one call."""

    token_ids: tuple[int, ...]
    """Sampled ids, the end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability (nats) of each sampled id."""
    stop_reason: Literal["stop", "length"]
    """`stop`: the end-of-turn token was sampled; `length`: the token limit was hit."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy call and the observation it led to."""

    prompt_ids: TokenIds
    """Exact ids sent to the server. With full history each prompt extends the last one, and shares its ids on
    the driver."""
    response_ids: tuple[int, ...]
    """Exact ids sampled."""
    logprobs: tuple[float, ...]
    """As sampled, one per response id."""
    stop_reason: Literal["stop", "length"]
    """Why sampling stopped."""
    response: str
    """The response as text, for people and for the parser; never tokenised again."""
    action: str
    """The parsed tool call as text; empty when malformed."""
    observation: str
    """What the agent was shown next; empty on the last turn."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of the agent's work."""

    turns: tuple[Turn, ...]
    """In order; may be empty only in a failed rollout."""
    patch: str
    """git-format diff of the work tree, read from the upper layer."""
    end: EndReason
    """Why the agent stopped."""
    left_out: tuple[tuple[str, str], ...] = ()
    """(path, reason) of changes that are not in the patch: too large, too many, neither file nor link."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An infrastructure fault."""

    kind: FailureKind
    """Boundary that failed."""
    message: str
    """One line for a person."""
    elsewhere: bool = False
    """The fault is its node's (disk, cache, sandboxes do not open): another worker may succeed."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What the driver sends out for one rollout."""

    trajectory_id: str
    """Unique in the run: instance id, repetition and step."""
    task: TaskInstance
    """The task."""
    temperature: float = 1.0
    """Sampling temperature."""
    top_p: float = 1.0
    """Nucleus bound."""
    seed: int | None = None
    """Sampling seed of this rollout, for repeatable runs."""
    may_move: bool = False
    """Another worker can take it: a failure with `elsewhere` comes back at once instead of a retry here."""
    done: Trajectory | None = None
    """The agent's work when only the grading is left to do, after a move."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What comes back."""

    trajectory_id: str
    """Of the request."""
    instance_id: str
    """Of the task."""
    trajectory: Trajectory | None
    """None when it failed before the agent finished."""
    reward: RewardResult | None
    """None when it failed before or in grading."""
    stage_times_s: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds per stage, keys from STAGES."""
    failure: Failure | None = None
    """Set when the rollout must not be trained on."""
    attempts: int = 1
    """2 when the first attempt failed and was retried."""
    waits_s: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds spent waiting, keys from WAITS; those of `slot` lie before the stages, the others within."""
    cache_hit: bool | None = None
    """True when the environment was ready on the node, False when it was built or fetched; None: unknown."""
    gate_wait_s: float = 0.0
    """Seconds of env_prep spent waiting for the gate in front of extraction."""
    memory_peak_bytes: int | None = None
    """Highest memory of the agent's sandbox, its files included; None when this machine cannot tell."""
    cpu_s: float | None = None
    """Processor seconds of the agent's sandbox; None when this machine cannot tell."""
    quarantined: bool = False
    """True when a suspicious verdict must not be trained on (`reward.suspicious=quarantine`)."""
    grading_faults: dict[str, int] = field(default_factory=dict[str, int])
    """Faults of grading by kind, see `rewards.retry`; none when the verdict was known before."""


def is_healthy(rollout: Rollout) -> bool:
    """Whether the rollout may be trained on."""
    return (
        rollout.failure is None
        and not rollout.quarantined
        and rollout.reward is not None
        and rollout.trajectory is not None
        and len(rollout.trajectory.turns) > 0
    )


class Policy(Protocol):
    """Token-in/token-out access to the served policy."""

    async def sample(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        """Raises ProviderError when the server cannot answer."""
        ...
