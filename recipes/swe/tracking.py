"""Where the numbers of a step go: SkyRL's tracker, the run's own file, a line for the person who watches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyrl.train.utils.callbacks import CallbackInput, TrainingCallback, TrainingControl
from skyrl.train.utils.tracking import Tracking

from recipes.report.metrics import FILE_NAME, MetricsFile
from recipes.report.progress import progress_line
from recipes.swe.console import say


class RunTracking(Tracking):
    """SkyRL's tracker; the run's own metrics file and the progress line get every step as well."""

    def __init__(self, *, run_dir: Path, total_steps: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metrics_file = MetricsFile(run_dir / FILE_NAME)
        self._total_steps = total_steps
        self._ended = False

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """Log one step."""
        self.metrics_file.append(step, data)
        say(progress_line(step, self._total_steps, data))
        if self.backend != "console":
            super().log(data, step=step, commit=commit)

    def finish(self) -> None:
        """End the tracker, its background process included. Called more than once by SkyRL."""
        super().finish()
        if self.backend == "wandb" and not self._ended:
            self._ended = True
            import wandb

            wandb.teardown()


class DropRepeatedSteps(TrainingCallback):
    """After a resume, takes the steps that will be repeated out of the metrics file."""

    def on_train_start(self, trainer: Any, callback_input: CallbackInput, control: TrainingControl) -> None:
        trainer.tracker.metrics_file.keep_until(callback_input.global_step)
