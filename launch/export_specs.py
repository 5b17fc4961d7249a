"""Writes how every task of a data set would be built and graded, as JSON lines, and builds nothing:
`python launch/export_specs.py DATASET [--output FILE]`. DATASET is a .jsonl, .json or .parquet file, a folder
of parquet files, or an id of the hub (the only one that needs a network).

The lines are plain rows (docs/datasets.md): they can be looked at, edited, and prepared like any data set.
Exit status: 0 done, also when rows were bad (they are named on standard error); 1 every row was bad; 2 the
data set or a file of overrides cannot be read; 130 interrupted.
"""

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # launch/ itself there would shadow modules

from launch.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED, OK
from recipes.swe.dataset_types import BadRow, SourceTask
from recipes.swe.datasets import ADAPTERS, read_tasks
from recipes.swe.datasets_custom import to_row
from recipes.swe.datasets_profiles import ProfileError, load_profiles
from recipes.swe.datasets_read import DataSource, SourceError

MAX_BAD_ROWS_SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="launch/export_specs.py", description=__doc__)
    parser.add_argument("dataset", help="file, folder or hub id")
    parser.add_argument("--split", default="train", help="of the hub or a folder (default train)")
    parser.add_argument("--revision", default="", help="of the hub; default: the newest")
    parser.add_argument("--adapter", default="auto", choices=["auto", *ADAPTERS])
    parser.add_argument("--overrides", type=Path, action="append", default=[], metavar="FILE.yaml")
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="default: standard output")
    options = parser.parse_args(arguments)
    source = DataSource(options.dataset, options.split, options.revision)
    try:
        profiles = load_profiles(options.overrides)
        tasks = read_tasks(source, profiles, adapter=options.adapter)
        with contextlib.ExitStack() as stack:
            out: TextIO = sys.stdout
            if options.output is not None:
                out = stack.enter_context(options.output.open("w", encoding="utf-8"))
            counts = export(tasks, out)
    except (SourceError, ProfileError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"[export] {counts['good']} tasks, {counts['bad']} bad rows", file=sys.stderr)
    return FAILED if counts["bad"] and not counts["good"] else OK


def export(tasks: Iterable[SourceTask | BadRow], out: TextIO) -> Counter[str]:
    """Writes a line for each task and names bad rows on standard error; numbers of both."""
    counts: Counter[str] = Counter()
    for task in tasks:
        if isinstance(task, BadRow):
            counts["bad"] += 1
            if counts["bad"] <= MAX_BAD_ROWS_SHOWN:
                print(f"{task.row_id}: {task.reason}", file=sys.stderr)
            continue
        counts["good"] += 1
        out.write(json.dumps(to_row(task), ensure_ascii=False) + "\n")
    return counts


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
