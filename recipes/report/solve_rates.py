"""How often each task was solved, from the recorded rollouts of earlier runs: the input of a curriculum.

    python -m recipes.report.solve_rates runs/cpu_demo-seed0 more/rollouts.parquet --out rates.parquet

`data.curriculum.rates` takes such a file, or run folders and `rollouts.parquet` files as they are. Failed and
quarantined rollouts say nothing about a task and are not counted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from recipes.report.rows import read_rows


class SolveRatesError(ValueError):
    """A file holds no solve rates and no rollouts."""


def load_rates(paths: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """Instance id to (solved, counted) rollouts, all paths together. Raises SolveRatesError."""
    frames = [_rates_of(path) for path in paths]
    if not frames:
        return {}
    total = pl.concat(frames).group_by("instance_id").agg(pl.col("solved").sum(), pl.col("counted").sum())
    return {name: (solved, counted) for name, solved, counted in total.sort("instance_id").iter_rows()}


def _rates_of(path: Path) -> pl.DataFrame:
    """Columns instance_id, solved, counted."""
    try:
        rows = read_rows(path) if path.is_dir() else pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise SolveRatesError(f"{path}: {' '.join(str(error).split())[:200]}") from error
    if rows is None:
        raise SolveRatesError(f"{path}: holds no recorded rollouts")
    if {"instance_id", "solved", "counted"} <= set(rows.columns):
        return rows.select("instance_id", pl.col("solved").cast(pl.Int64), pl.col("counted").cast(pl.Int64))
    needed = {"instance_id", "resolved", "failure", "quarantined"}
    if not needed <= set(rows.columns):
        raise SolveRatesError(f"{path}: has no column {', '.join(sorted(needed - set(rows.columns)))}")
    counted = rows.filter(
        pl.col("failure").is_null() & ~pl.col("quarantined") & pl.col("resolved").is_not_null()
    )
    return counted.group_by("instance_id").agg(
        pl.col("resolved").sum().cast(pl.Int64).alias("solved"), pl.len().cast(pl.Int64).alias("counted")
    )


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", nargs="+", type=Path, help="run folder, or parquet file")
    parser.add_argument("--out", type=Path, required=True, help="parquet file to write")
    arguments = parser.parse_args(argv)
    try:
        rates = load_rates(arguments.source)
    except SolveRatesError as error:
        print(f"solve_rates: {error}", file=sys.stderr)
        return 2
    rows = [(name, solved, counted, solved / counted) for name, (solved, counted) in rates.items()]
    schema = {"instance_id": pl.String, "solved": pl.Int64, "counted": pl.Int64, "rate": pl.Float64}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(arguments.out)
    mean = sum(row[3] for row in rows) / len(rows) if rows else 0.0
    print(f"{len(rows)} tasks, mean solve rate {mean:.3f}, written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
