"""The tasks in the form that SkyRL's data loaders want."""

from collections.abc import Sequence
from typing import Any

from recipes.swe.types import TaskInstance


class TaskDataset:
    """The tasks as SkyRL's data loader wants them; a row's uid is the instance id."""

    def __init__(self, tasks: Sequence[TaskInstance]) -> None:
        self._tasks = list(tasks)
        self.loader: Any = None
        """What makes its batches when that is not left to SkyRL; see `recipes.swe.task_loader`."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        task = self._tasks[index]
        return {
            "prompt": [{"role": "user", "content": task.problem_statement}],
            "env_class": "swe",
            "env_extras": {"instance_id": task.instance_id},
            "uid": task.instance_id,
        }

    def collate_fn(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A batch is the list of its rows."""
        return rows
