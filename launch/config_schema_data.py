"""What the configuration may say about which tasks are trained on and which are only evaluated.

Part of `launch.config_schema`; only a description, as there.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from launch.config_check import Above, Between

Count = Annotated[int, Between(1)]
Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True, slots=True)
class CurriculumSection:
    """Tasks by difficulty, as measured in earlier runs."""

    rates: list[str]
    """Run folders, rollouts.parquet files, or what `python -m recipes.report.solve_rates` wrote."""
    order: Literal["random", "easy_first", "hard_first", "middle_first", "weighted"]
    """Order within a pass; middle_first: nearest to a solve rate of one half; weighted: shuffled, those near
    one half tend to come early."""
    min_rate: Share
    """Leave out tasks that were solved less often, share of rollouts; tasks never measured stay."""
    max_rate: Share
    """Leave out tasks that were solved more often, share of rollouts."""


@dataclass(frozen=True, slots=True)
class SkipSection:
    """Tasks that teach nothing now."""

    solved_epochs: Annotated[int, Between(0)]
    """Skip a task that all its rollouts solved in the last so many epochs; 0: never."""
    unsolved_epochs: Annotated[int, Between(0)]
    """Skip a task that no rollout solved in the last so many epochs; 0: never."""
    retry_after_epochs: Annotated[int, Between(0)]
    """A skipped task comes back after so many epochs; 0: never."""


@dataclass(frozen=True, slots=True)
class EvalSection:
    """Evaluation during training, on tasks that are not trained on."""

    every_steps: Annotated[int, Between(0)]
    """Steps from one evaluation to the next, and after the last step; 0: no evaluation."""
    before_train: bool
    """Evaluate once before the first step, too."""
    path: str | None
    """File of tasks to evaluate on, which are then not trained on; null: held out of data.path."""
    tasks: Annotated[int, Between(0)]
    """Tasks to hold out, or to take of eval.path (0: all of it)."""
    split_by: Literal["task", "repo"]
    """Hold out single tasks, or whole repositories."""
    split_seed: Annotated[int, Between(0)]
    """Which ones; keep it when runs are to be compared."""
    rollouts_per_task: Count
    """Attempts at each task."""
    batch_tasks: Count
    """Tasks evaluated at once."""
    temperature: Annotated[float, Between(0, 2)]
    """Sampling temperature."""
    top_p: Annotated[float, Above(0), Between(0, 1)]
    """Nucleus bound."""
