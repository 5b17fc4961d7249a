"""Makes the report of runs again: `python launch/report.py runs/cpu_demo-seed0 [more folders]`."""

import argparse
import sys
from pathlib import Path

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from launch.exit_codes import BAD_CONFIG, OK
from recipes.report.make import make_report


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="report", description=__doc__)
    parser.add_argument("run_dir", nargs="+", type=Path, help="folder of a run, holding metrics.jsonl")
    arguments = parser.parse_args(argv)
    status = OK
    for run_dir in arguments.run_dir:
        try:
            report = make_report(run_dir)
        except (FileNotFoundError, ValueError) as error:
            print(f"report: {run_dir}: {error}", file=sys.stderr)
            status = BAD_CONFIG
        else:
            print(report.text)
            print(f"picture: {report.picture}")
    return status


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
