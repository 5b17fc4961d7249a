"""Writes down every rollout of a run as it comes in, and keeps a few of them for the tracker's table.

A step may come in several batches (one group at a time in the asynchronous trainer, several rounds in
dynamic sampling, batches of an evaluation); the first batch that this process writes of a step replaces
what an earlier attempt left, later ones are added. Files are written in a thread, one batch at a time,
before the batch is handed on: what was trained on is always on disk.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from recipes.report.rows import Phase, keep_parts_until, merge_parts, write_part
from recipes.report.samples import Sample, pick_samples
from recipes.report.trajectories import write_rollouts
from recipes.swe.types import Rollout


class Observer(Protocol):
    """Is told of every batch of rollouts."""

    async def observe(self, phase: Phase, step: int, rollouts: Sequence[Rollout]) -> None:
        """Called once a batch, before it is trained on."""
        ...


@dataclass(slots=True)
class RolloutRecorder:
    """The files of one run. Belongs to one process."""

    run_dir: Path
    """Folder of the run."""
    samples_kept: int = 4
    """Rollouts of a step kept for the table."""
    _written: dict[tuple[Phase, int], tuple[int, int]] = field(
        default_factory=dict[tuple[Phase, int], tuple[int, int]]
    )
    """(batches, rollouts) written so far of each step."""
    _samples: list[Sample] = field(default_factory=list[Sample])
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def observe(self, phase: Phase, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write one batch; returns when it is on disk."""
        async with self._lock:
            await asyncio.to_thread(self.write, phase, step, rollouts)

    def write(self, phase: Phase, step: int, rollouts: Sequence[Rollout]) -> None:
        """The same in this thread."""
        batches, before = self._written.get((phase, step), (0, 0))
        folder = self.run_dir if phase == "train" else self.run_dir / phase
        write_rollouts(folder, step, rollouts, before=before)
        write_part(self.run_dir, phase, step, batches, rollouts)
        self._written[(phase, step)] = (batches + 1, before + len(rollouts))
        self._samples = pick_samples([*self._samples, *_samples_of(phase, step, rollouts)], self.samples_kept)

    def take_samples(self) -> list[Sample]:
        """A few rollouts of what was written since the last call, for the tracker's table."""
        samples, self._samples = self._samples, []
        return samples

    def keep_until(self, step: int) -> None:
        """Forget rows of later steps: a resumed run repeats them."""
        keep_parts_until(self.run_dir, step)

    def finish(self) -> Path | None:
        """Merge the rows into one file; None when there were none."""
        return merge_parts(self.run_dir)


def _samples_of(phase: Phase, step: int, rollouts: Sequence[Rollout]) -> list[Sample]:
    return [Sample(phase, step, rollout) for rollout in rollouts]
