"""Makes (or makes again) the report of a run folder: report.png and summary.txt."""

from dataclasses import dataclass
from pathlib import Path

from recipes.report.figure import draw_report
from recipes.report.rows import merge_parts
from recipes.report.series import load_series
from recipes.report.summary import summary_text

PICTURE = "report.png"
SUMMARY = "summary.txt"


@dataclass(frozen=True, slots=True)
class Report:
    """What was made."""

    picture: Path
    """The PNG."""
    summary: Path
    """The summary as a file."""
    text: str
    """The summary as text."""


def make_report(run_dir: Path) -> Report:
    """Read the run's metrics and rollouts and write its report beside them; rows that a killed run left in
    parts are merged.

    Raises FileNotFoundError when the folder holds no metrics, ValueError when they hold no step."""
    series = load_series(run_dir)
    if not series.steps:
        raise ValueError(f"{run_dir} has no finished step to report on")
    merge_parts(run_dir)
    picture, summary = run_dir / PICTURE, run_dir / SUMMARY
    draw_report(series, run_dir.name, picture)
    text = summary_text(series, run_dir)
    summary.write_text(text, encoding="utf-8")
    return Report(picture, summary, text)
