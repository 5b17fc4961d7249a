"""Where the numbers of a step go: SkyRL's tracker, the run's own file, a line for the person who watches.

With W&B every step's metrics, now and then a table of sample trajectories, and at the end one artifact with
`rollouts.parquet`, all of it offline too. A failing tracker is a warning: the run's own files are complete
without it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loguru import logger
from skyrl.train.utils.callbacks import CallbackInput, TrainingCallback, TrainingControl
from skyrl.train.utils.tracking import Tracking

from recipes.report.metrics import FILE_NAME, MetricsFile
from recipes.report.progress import progress_line
from recipes.report.recorder import RolloutRecorder
from recipes.report.samples import COLUMNS, sample_row
from recipes.swe.console import say
from recipes.swe.task_loader import TaskLoader

SAMPLES_KEY = "samples/rollouts"
"""W&B's name of the table of sample trajectories."""
STEP_KEY = "trainer/global_step"
"""What everything is drawn against."""


class RunTracking(Tracking):
    """SkyRL's tracker; the run's own metrics file and the progress line get every step as well."""

    def __init__(
        self,
        *,
        run_dir: Path,
        total_steps: int,
        recorder: RolloutRecorder,
        samples_every_steps: int = 0,
        more_metrics: Sequence[Callable[[], Mapping[str, float]]] = (),
        **kwargs: Any,
    ) -> None:
        """`samples_every_steps`: a table of sample trajectories that often, 0 for none. `more_metrics` are
        asked for each step's further numbers."""
        super().__init__(**kwargs)
        self.metrics_file = MetricsFile(run_dir / FILE_NAME)
        self.recorder = recorder
        self._total_steps = total_steps
        self._samples_every_steps = samples_every_steps
        self._more_metrics = tuple(more_metrics)
        self._sampled_step: int | None = None
        self._ended = False
        self._line: dict[str, Any] = {}
        if self.backend == "wandb":
            self.logger.define_metric("*", step_metric=STEP_KEY)

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """Log one step."""
        data = {STEP_KEY: step, **data}
        for more in self._more_metrics:
            data |= more()
        self.metrics_file.append(step, data)
        self._line |= data
        if commit:  # the asynchronous loop logs a step in two parts
            say(progress_line(step, self._total_steps, self._line))
            self._line = {}
        if self.backend == "console":
            return
        if self.backend == "wandb" and self._samples_due(step):
            data[SAMPLES_KEY] = self._samples_table()
        super().log(data, step=step, commit=commit)

    def finish(self) -> None:
        """Merge the rows of all rollouts and end the tracker. Called more than once by SkyRL."""
        if self._ended:
            return
        self._ended = True
        try:
            merged = self.recorder.finish()
        except OSError as error:  # its parts are there, and launch/report.py merges them
            logger.warning(f"rollouts.parquet was not written: {error}")
            merged = None
        if self.backend == "wandb" and merged is not None:
            self._log_artifact(merged)
        super().finish()
        if self.backend == "wandb":
            import wandb

            wandb.teardown()  # its background process, too

    def __del__(self) -> None:
        """Nothing. SkyRL's ends the tracker here; while the interpreter is going down that never returns."""

    def _samples_due(self, step: int) -> bool:
        """Whether this step's table is still to be logged; a step may be logged in two parts."""
        every = self._samples_every_steps
        if every <= 0 or step == self._sampled_step or (step % every and step > 1):
            return False
        self._sampled_step = step
        return True

    def _samples_table(self) -> Any:
        import wandb

        rows: list[Any] = [list(sample_row(sample)) for sample in self.recorder.take_samples()]
        return wandb.Table(columns=list(COLUMNS), data=rows, allow_mixed_types=True)

    def _log_artifact(self, path: Path) -> None:
        import wandb

        artifact = wandb.Artifact(f"rollouts-{self.logger.run.id}", type="rollouts")
        artifact.add_file(str(path), name=path.name)
        try:
            self.logger.log_artifact(artifact)
        except (OSError, wandb.Error) as error:
            logger.warning(f"the artifact of {path} was not logged: {error}")


class DropRepeatedSteps(TrainingCallback):
    """After a resume: the steps that will be repeated leave the run's files, and the order of tasks learns
    what became of the last batch before the checkpoint."""

    def __init__(self, order: TaskLoader | None = None) -> None:
        """`order`: None when SkyRL orders the tasks."""
        self._order = order

    def on_train_start(self, trainer: Any, callback_input: CallbackInput, control: TrainingControl) -> None:
        trainer.tracker.metrics_file.keep_until(callback_input.global_step)
        trainer.tracker.recorder.keep_until(callback_input.global_step)
        if self._order is not None and callback_input.global_step > 0:
            self._order.read_outcomes(callback_input.global_step)
