"""Dynamic sampling by groups: a step is filled with groups that GRPO can learn from.

SkyRL's two kinds with its own keys, `skyrl.trainer.algorithm.dynamic_sampling`: `filter` samples further
batches until enough groups have different rewards, `replace` puts copies of such groups where the others
were. Here a group is judged by its healthy rollouts and moved whole, so that failed rollouts are no variance
and trajectories of several rows stay together; the choice depends on the batches alone, so a repeated step
makes it again. A batch with no such group is no error, and at `max_sample_batches` the step is filled up with
groups of equal rewards, which move nothing, instead of ending the run; it ends only when there is no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from skyrl.train.generators.base import GeneratorOutput, TrajectoryID
from skyrl.train.generators.utils import slice_generator_output

Kind = Literal["filter", "replace"]


class NothingToLearnError(RuntimeError):
    """All groups of all batches of a step have equal rewards."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one prompt."""

    uid: str
    """Its name."""
    output: GeneratorOutput
    """Its rows."""
    useful: bool
    """Whether its healthy trajectories have different rewards."""


@dataclass(slots=True)
class SamplingRound:
    """What the batches of one step have brought so far."""

    batches: int = 0
    """Batches sampled."""
    useful: list[Group] = field(default_factory=list[Group])
    """Groups to train on, in the order in which they came."""
    flat: list[Group] = field(default_factory=list[Group])
    """The others."""
    metrics: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])
    """Metrics of each batch."""

    def add(self, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        """Note a batch."""
        self.batches += 1
        self.metrics.append(dict(metrics))
        known = {group.uid for group in (*self.useful, *self.flat)}
        for group in groups:
            if group.uid in known:  # a new epoch began meanwhile
                group = _copy(group, self.batches)
            (self.useful if group.useful else self.flat).append(group)

    def choose(self, kind: Kind, *, wanted: int, most_batches: int, least_share: float) -> list[Group] | None:
        """The groups of the step, or None to sample another batch. Raises NothingToLearnError."""
        last = most_batches > 0 and self.batches >= most_batches
        if last and not self.useful:
            raise NothingToLearnError(
                f"in {self.batches} batches no group of rollouts had different rewards: "
                "the tasks are too hard or too easy, see data.curriculum and data.skip"
            )
        if kind == "filter":
            if len(self.useful) < wanted and not last:
                return None
            return [*self.useful, *reversed(self.flat)][:wanted]
        count = len(self.useful) + len(self.flat)
        if len(self.useful) <= least_share * count and not last:
            self.useful, self.flat = [], []  # SkyRL's `replace` keeps nothing of a batch that it gives up
            return None
        missing = range(1, count - len(self.useful) + 1)
        return [*self.useful, *(_copy(self.useful[i % len(self.useful)], i) for i in missing)]

    def combined_metrics(self) -> dict[str, float]:
        """The metrics of all batches as one step's, and how many there were."""
        names = {name for metrics in self.metrics for name in metrics}
        joined = {name: _join(name, [m[name] for m in self.metrics if name in m]) for name in sorted(names)}
        return joined | {"environment/num_sampled_batches": float(self.batches)}


def groups_of(output: GeneratorOutput, uids: Sequence[str], left_out: Sequence[bool]) -> list[Group]:
    """The groups of a batch in the order of their first rows."""
    rows: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        rows.setdefault(uid, []).append(row)
    last = output.get("is_last_step") or [True] * len(uids)
    rewards = output["rewards"]
    groups: list[Group] = []
    for uid, indices in rows.items():
        counted = {_scalar(rewards[row]) for row in indices if last[row] and not left_out[row]}
        groups.append(
            Group(uid, slice_generator_output(output, indices, preserve_metrics=False), len(counted) > 1)
        )
    return groups


def joined(groups: Sequence[Group]) -> tuple[GeneratorOutput, list[str]]:
    """One output of groups, and the uid of each row."""
    fields: dict[str, Any] = {}
    for name, first in groups[0].output.items():
        values = [group.output[name] for group in groups]  # type: ignore[literal-required]
        if first is None:
            fields[name] = None
        elif isinstance(first, dict):
            fields[name] = {key: [item for value in values for item in value[key]] for key in first}
        else:
            fields[name] = [item for value in values for item in value]
    uids = [group.uid for group in groups for _ in group.output["response_ids"]]
    return GeneratorOutput(**fields), uids  # type: ignore[typeddict-item]


def _copy(group: Group, number: int) -> Group:
    """The same group under a name of its own, so that the two are not taken for one of twice the size."""
    uid = f"{group.uid}#copy{number}"
    output = GeneratorOutput(**group.output)  # type: ignore[typeddict-item]
    ids = output.get("trajectory_ids")
    if ids is not None:
        output["trajectory_ids"] = [TrajectoryID(uid, one.repetition_id) for one in ids]
    return Group(uid, output, group.useful)


def _scalar(reward: float | list[float]) -> float:
    return float(sum(reward)) if isinstance(reward, list) else float(reward)


def _join(name: str, values: Sequence[float]) -> float:
    """By the rule of docs/metrics.md; percentiles and deviations are averaged."""
    last = name.rsplit("/", 1)[-1]
    if last.startswith("num_"):
        return float(sum(values))
    if last.startswith("min_") or last.endswith("_min"):
        return float(min(values))
    if last.startswith("max_") or last.endswith("_max"):
        return float(max(values))
    return float(sum(values) / len(values))
