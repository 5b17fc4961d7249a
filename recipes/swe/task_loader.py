"""The batches of a training whose tasks are ordered or skipped by `recipes.swe.task_order`.

`TaskLoader` stands where SkyRL keeps its `StatefulDataLoader`: an epoch is as many batches as the whole data
set fills, however many tasks are skipped, so that SkyRL's arithmetic of steps and epochs stays true. Its
state goes into SkyRL's checkpoint. Outcomes that came after that state was taken are read back from the
recorded rollouts of the run. Without an order or skips to keep, SkyRL's own loader is used instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from recipes.report.rows import Phase, read_rows
from recipes.swe.dataset import TaskDataset
from recipes.swe.task_order import TaskOrder
from recipes.swe.types import Rollout


class TaskLoader:
    """Batches of rows, and an observer of what became of them."""

    def __init__(self, dataset: TaskDataset, order: TaskOrder, *, run_dir: Path) -> None:
        """`run_dir`: where rollouts are recorded."""
        self._rows = {dataset[index]["uid"]: dataset[index] for index in range(len(dataset))}
        self._order = order
        self._run_dir = run_dir
        self._batches_of_epoch = 0

    def __len__(self) -> int:
        return len(self._rows) // self._order.batch_size

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """The rest of the epoch; after its end, or at the start, a new one."""
        if self._batches_of_epoch >= len(self):
            self._batches_of_epoch = 0
        while self._batches_of_epoch < len(self):
            self._batches_of_epoch += 1
            yield [self._rows[name] for name in self._order.next_batch()]

    def state_dict(self) -> dict[str, Any]:
        """State after the batch that was made last."""
        return {"batches_of_epoch": self._batches_of_epoch, "order": self._order.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._batches_of_epoch = int(state["batches_of_epoch"])
        self._order.load(state["order"])

    async def observe(self, phase: Phase, step: int, rollouts: Sequence[Rollout]) -> None:
        """Note the outcomes of a batch (see `recipes.report.recorder.Observer`)."""
        if phase == "train":
            self._order.observe(rollouts)

    def metrics(self) -> dict[str, float]:
        """What is skipped."""
        return self._order.metrics()

    def read_outcomes(self, step: int) -> None:
        """After `load_state_dict` of the checkpoint of `step`: note what became of its batch, which had been
        handed out when the state was taken, and whose rollouts had not begun."""
        waiting = self._order.unknown()
        rows = read_rows(self._run_dir) if waiting else None
        if rows is None:
            return
        of_step = (pl.col("phase") == "train") & (pl.col("step") == step)
        healthy = pl.col("trained_on")
        outcomes = (
            rows.filter(of_step & pl.col("instance_id").is_in(waiting))
            .group_by("instance_id")
            .agg((pl.col("resolved") & healthy).sum().alias("solved"), healthy.sum().alias("healthy"))
        )
        for name, solved, count in outcomes.sort("instance_id").iter_rows():
            self._order.note(name, solved, count)
