"""In what order tasks come, which are skipped for a while, and how hard each was found to be.

A pass goes once over the tasks that are not skipped; passes follow each other without a break, and no batch
holds a task twice. Everything is decided at the start of a pass from the seed, the number of the pass and the
outcomes of batches at least two before the one being made: a look ahead of one batch and a resume from a
checkpoint change nothing. A task that all rollouts of its last visits solved, or none, teaches GRPO nothing;
it can be skipped, and tried again later. It knows no data loader and no trainer.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from recipes.swe.types import Rollout, is_healthy

OrderName = Literal["random", "easy_first", "hard_first", "middle_first", "weighted"]
ORDERS: tuple[str, ...] = get_args(OrderName)
BINS = 10
"""Solve rates are told apart in so many steps; within one, tasks are shuffled."""
LAG = 2
"""Outcomes of the last batches that are not yet used: one being trained on, one being made ahead."""
UNKNOWN_RATE = 0.5


@dataclass(frozen=True, slots=True)
class OrderConfig:
    """What is configured; the defaults shuffle and skip nothing."""

    seed: int = 0
    """Of the shuffles."""
    order: OrderName = "random"
    """random; by solve rate: easy_first, hard_first, middle_first (nearest to one half); weighted: shuffled,
    tasks near one half tend to come early."""
    skip_solved_visits: int = 0
    """Skip a task whose rollouts all solved it in each of its last so many visits; 0: never."""
    skip_unsolved_visits: int = 0
    """Skip a task that no rollout solved in its last so many visits; 0: never."""
    retry_after_passes: int = 0
    """A skipped task comes back after so many passes; 0: never."""

    @property
    def is_default(self) -> bool:
        """Whether nothing but a shuffle is wanted."""
        return self.order == "random" and not self.skip_solved_visits and not self.skip_unsolved_visits


@dataclass(slots=True)
class Visit:
    """One time that a task was handed out."""

    batch: int
    """Number of its batch, from 1."""
    solved: int = 0
    """Healthy rollouts that solved it."""
    healthy: int = 0
    """Rollouts that count."""
    known: bool = False
    """Whether its rollouts have ended."""


@dataclass(slots=True)
class TaskOrder:
    """The order of one run. `state` and `load` make it survive a checkpoint."""

    names: Sequence[str]
    """Instance ids of all tasks."""
    batch_size: int
    """Tasks of a batch."""
    config: OrderConfig
    """What is wanted."""
    rates: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """(solved, healthy) rollouts of earlier runs by instance id."""
    batches: int = 0
    """Batches made so far."""
    passes: int = 0
    """Passes begun so far."""
    _queue: list[str] = field(default_factory=list[str])
    _visits: dict[str, list[Visit]] = field(default_factory=dict[str, list[Visit]])
    _skipped: dict[str, int] = field(default_factory=dict[str, int])
    """Skipped task to the first pass that was without it."""

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ValueError("two tasks have the same instance id")
        if len(self.names) < self.batch_size:
            raise ValueError(f"{len(self.names)} tasks do not fill a batch of {self.batch_size}")

    def next_batch(self) -> list[str]:
        """The next batch of instance ids, all different."""
        self.batches += 1
        batch: list[str] = []
        later: list[str] = []
        while len(batch) < self.batch_size:
            if not self._queue:
                self._begin_pass()
            name = self._queue.pop(0)
            (later if name in batch else batch).append(name)
        self._queue = later + self._queue
        for name in batch:
            # What never got an outcome (its prompt was cut from the batch) must not wait for this one's.
            visits = [v for v in self._visits.get(name, ()) if v.known or v.batch > self.batches - LAG]
            self._visits[name] = [*visits, Visit(self.batches)][-(self._kept_visits + LAG) :]
        return batch

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Note the outcomes of a batch; of what was not handed out here nothing is noted."""
        groups: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout.instance_id, []).append(rollout)
        for name, group in groups.items():
            healthy = [rollout for rollout in group if is_healthy(rollout)]
            solved = sum(rollout.reward is not None and rollout.reward.resolved for rollout in healthy)
            self.note(name, solved, len(healthy))

    def note(self, name: str, solved: int, healthy: int) -> None:
        """The outcome of the earliest visit of a task that is still without one."""
        visit = next((visit for visit in self._visits.get(name, ()) if not visit.known), None)
        if visit is not None:
            visit.solved, visit.healthy, visit.known = solved, healthy, True

    def unknown(self) -> list[str]:
        """Tasks handed out whose outcome was not noted yet."""
        return [name for name, visits in self._visits.items() if any(not visit.known for visit in visits)]

    def metrics(self) -> dict[str, float]:
        """What is skipped, for the step's metrics."""
        rules = [self._reason(name) for name in self._skipped]
        return {
            "data/num_tasks_skipped_solved": float(rules.count("solved")),
            "data/num_tasks_skipped_unsolved": float(rules.count("unsolved")),
            "data/num_tasks_active": float(len(self.names) - len(self._skipped)),
            "data/pass_mean": float(self.passes),
        }

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "batches": self.batches,
            "passes": self.passes,
            "queue": list(self._queue),
            "skipped": dict(self._skipped),
            "visits": {
                name: [(v.batch, v.solved, v.healthy, v.known) for v in visits]
                for name, visits in self._visits.items()
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; tasks that are no longer there are left out."""
        names = set(self.names)
        self.batches, self.passes = int(state["batches"]), int(state["passes"])
        self._queue = [name for name in state["queue"] if name in names]
        self._skipped = {name: first for name, first in state["skipped"].items() if name in names}
        self._visits = {
            name: [Visit(*values) for values in visits]
            for name, visits in state["visits"].items()
            if name in names
        }

    @property
    def _kept_visits(self) -> int:
        return max(self.config.skip_solved_visits, self.config.skip_unsolved_visits, 1)

    def _begin_pass(self) -> None:
        self.passes += 1
        active: list[str] = []
        for name in self.names:
            if self._is_skipped(name):
                self._skipped.setdefault(name, self.passes)
            else:
                self._skipped.pop(name, None)
                active.append(name)
        if len(active) < self.batch_size:  # Those that were left out longest are let in again.
            for name in sorted(self._skipped, key=lambda name: (self._skipped[name], self._dice(name))):
                if len(active) == self.batch_size:
                    break
                del self._skipped[name]
                active.append(name)
        self._queue = sorted(active, key=self._place)

    def _is_skipped(self, name: str) -> bool:
        if self._reason(name) is None:
            return False
        retry, since = self.config.retry_after_passes, self._skipped.get(name)
        return not (retry and since is not None and self.passes - since >= retry)

    def _reason(self, name: str) -> str | None:
        """Why a task would be skipped, from the outcomes that may be used."""
        usable = [
            visit
            for visit in self._visits.get(name, ())
            if visit.known and visit.healthy and visit.batch <= self.batches - LAG
        ]
        for count, reason in (
            (self.config.skip_solved_visits, "solved"),
            (self.config.skip_unsolved_visits, "unsolved"),
        ):
            last = usable[-count:] if count else []
            wanted = [visit.solved == (visit.healthy if reason == "solved" else 0) for visit in last]
            if count and len(last) == count and all(wanted):
                return reason
        return None

    def _place(self, name: str) -> tuple[float, float]:
        """Where a task stands in the pass being made: smaller is earlier."""
        dice, order = self._dice(name), self.config.order
        if order == "random":
            return (0.0, dice)
        solved, healthy = self.rates.get(name, (0, 0))
        rate = solved / healthy if healthy else UNKNOWN_RATE
        if order == "weighted":  # Efraimidis and Spirakis: the k-th smallest of -log(u)/w
            return (0.0, -math.log(dice) / (rate * (1 - rate) + 0.01))
        distance = {"easy_first": 1 - rate, "hard_first": rate, "middle_first": abs(rate - 0.5)}[order]
        return (round(distance * BINS), dice)

    def _dice(self, name: str) -> float:
        """A number in (0, 1) for a task in this pass, the same on every machine."""
        text = f"{self.config.seed}/{self.passes}/{name}"
        return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") + 1) / (2**64 + 1)
