"""The run's own metrics file: one JSON object a line, `{"step": n, "wall_time_s": t, "metrics": {...}}`.

W&B gets the same numbers; this file needs no account and is what reports are made from. It is
append-only while a run lasts. A resumed run first drops the lines of steps that it will repeat, so
that each step appears once. It does not buffer: a killed run loses at most the line being written,
and a torn last line is ignored when read and dropped when the next is written.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

FILE_NAME = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The numbers of one trainer step."""

    step: int
    """Trainer step, from 1; 0 is an evaluation before training."""
    wall_time_s: float
    """Unix time at which the step was logged, in seconds."""
    metrics: Mapping[str, float]
    """Metric name to value; only finite numbers."""


class MetricsFile:
    """Appends steps to `metrics.jsonl`."""

    def __init__(self, path: Path) -> None:
        """`path`: the file; its folder is made."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add one step. What is not a finite number is left out."""
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        line = json.dumps({"step": step, "wall_time_s": round(time.time(), 3), "metrics": numbers})
        with self._path.open("a+b") as file:
            _drop_torn_line(file)
            file.write(line.encode() + b"\n")

    def keep_until(self, step: int) -> None:
        """Drop every line of a later step (a resumed run repeats them)."""
        if not self._path.exists():
            return
        kept = [line for line in read_metrics(self._path) if line.step <= step]
        replacement = self._path.with_suffix(".tmp")
        with replacement.open("w", encoding="utf-8") as file:
            for line in kept:
                record = {"step": line.step, "wall_time_s": line.wall_time_s, "metrics": dict(line.metrics)}
                file.write(json.dumps(record) + "\n")
        replacement.replace(self._path)


def read_metrics(path: Path) -> list[StepMetrics]:
    """All steps of a metrics file in order. Lines of one step are merged (later values win)."""
    merged: dict[int, StepMetrics] = {}
    for record in _records(path):
        step = int(record["step"])
        before = merged[step].metrics if step in merged else {}
        merged[step] = StepMetrics(step, float(record["wall_time_s"]), {**before, **record["metrics"]})
    return [merged[step] for step in sorted(merged)]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield cast(dict[str, Any], json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):  # torn by a kill
                return
            raise ValueError(f"{path}:{number}: not JSON: {error}") from error


def _drop_torn_line(file: BinaryIO) -> None:
    """Cut off what a kill left of the last line: a whole line ends with a newline."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return
    file.seek(size - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, (str, bytes, bool)) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
