"""What `launch/prepare.py` shows while it works: bars with rates and the time left, or lines."""

from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from recipes.swe.prepare_types import Event

_GOOD = ("passed", "passed in peace", "built", "valid")


class _RateColumn(ProgressColumn):
    """Steps a minute."""

    def render(self, task: Task) -> Text:
        """What rich shows."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed * 60:.1f}/min" if speed else "-/min", style="progress.data.speed")


class View:
    """Progress of one run. Use as a context."""

    def __init__(self, console: Console, *, environments: int, tasks: int, stressed: bool = False) -> None:
        """How many steps there are; `stressed`: tasks are run in peace first, and then under load."""
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _RateColumn())
        times = (
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
        )
        self._bars = Progress(*columns, *times, console=console, speed_estimate_period=300.0)
        self._bar = {
            "env": self._bars.add_task("environments", total=environments, note="", visible=environments > 0),
            "calm": self._bars.add_task("tasks in peace", total=tasks, note="", visible=stressed),
            "task": self._bars.add_task("tasks", total=tasks, note=""),
        }
        self._counts: Counter[str] = Counter()
        self._calm: set[str] = set()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        """Takes an event of the pipeline."""
        bar = self._bar[event.kind]
        if event.kind == "task":
            self._counts[event.status] += 1
            note = ", ".join(f"{count} {status}" for status, count in self._counts.most_common())
            self._bars.update(bar, advance=1, note=note)
            if event.name not in self._calm:  # it ended before, in peace
                self._bars.update(self._bar["calm"], advance=1)
        elif event.kind == "calm":
            self._calm.add(event.name)
            self._bars.update(bar, advance=1)
        else:
            self._bars.update(bar, advance=1)
        bad = event.status not in _GOOD
        if (bad or not self._console.is_terminal) and not (event.known and event.status in _GOOD):
            reason = f": {event.reason}" if event.reason and bad else ""
            line = f"[prepare] {event.name}: {event.status}{reason}".replace("\n", " ")
            self._bars.console.print(line[:500], markup=False, highlight=False, soft_wrap=True)
