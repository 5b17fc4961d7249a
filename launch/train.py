"""Trains: `python launch/train.py +recipe=cpu_demo`, or with `dry_run=true` says what it would take.

Order matters here: the configuration is checked whole (exit 2), then the kernel or engine (exit 3), then what
dead runs left behind is removed, and only then is anything heavy loaded and the training started
(recipes.swe.experiment). Whatever way it ends, processes and temporary folders of the run are gone
when this command returns; after a SIGKILL the next start sees to it.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # launch/ itself there would shadow modules

from launch.cleanup import RUN_VARIABLE, TEMP_PARENTS, clean_up, end_run, make_run_id, temp_folder
from launch.config_compose import ConfigError
from launch.config_validate import load_config, missing_here
from launch.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED, OK, TERMINATED, UNUSABLE_MACHINE
from launch.run_registry import RunPlan, plan_run, save_config, write_owner
from launch.sandbox_check import sandbox_fault
from launch.tracker import tracker_environment
from recipes.report.metrics import FILE_NAME


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    overrides = sys.argv[1:] if argv is None else argv
    if any(argument in ("-h", "--help") for argument in overrides):
        from launch.train_help import help_text

        print(help_text())
        return OK
    try:
        return _checked_run(overrides)
    except ConfigError as error:
        print(f"launch/train.py: {len(error.errors)} error(s) in the configuration:", file=sys.stderr)
        for line in error.errors:
            print(f"  - {line}", file=sys.stderr)
        return BAD_CONFIG


def _checked_run(overrides: list[str]) -> int:
    config = load_config(overrides, inputs_must_exist=True)
    if config["dry_run"]:
        from launch.dry_run import dry_run_text

        print(dry_run_text(config))
        return OK
    missing = missing_here(config)
    if missing:
        raise ConfigError(missing)
    unusable = sandbox_fault(config)
    if unusable is not None:
        print(f"launch/train.py: this machine cannot open sandboxes: {unusable}", file=sys.stderr)
        if config["sandbox"]["kind"] == "mini":
            print("python launch/doctor.py shows all that was tried", file=sys.stderr)
        return UNUSABLE_MACHINE
    plan = plan_run(Path(config["paths"]["runs_dir"]), config["run_name"], config["resume"], config)
    if plan.run_name != config["run_name"] or plan.resume_step is not None:
        mode = "none" if plan.resume_step is None else "latest"
        overrides = [*overrides, f"run_name={plan.run_name}", f"skyrl.trainer.resume_mode={mode}"]
        config = load_config(overrides)
    return _run(config, plan)


def _run(config: dict[str, Any], plan: RunPlan) -> int:
    run_dir = Path(config["paths"]["run_dir"])
    run_id = make_run_id(plan.run_name)
    _say(str(clean_up((*TEMP_PARENTS, *_temp_parents(config)))))
    _say(f"{plan.note}; folder {run_dir}")
    folders = _open_run(config, run_id)
    signal.signal(signal.SIGTERM, _raise_terminated)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup(1)
        signal.signal(signal.SIGHUP, _raise_terminated)
    state, status = "failed", FAILED
    try:
        from recipes.swe.console import quiet

        quiet()  # before SkyRL is imported
        from recipes.swe.experiment import run

        run(config)
        state, status = "finished", OK
    except KeyboardInterrupt:
        state, status = "interrupted", INTERRUPTED
        _say("interrupted; the same command goes on from the last checkpoint")
    except _TerminatedError:
        state, status = "interrupted", TERMINATED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the clean-up is short and must not be cut
        end_run(run_id, folders)
        write_owner(run_dir, run_id, state)
        if state == "failed":
            _say(f"the training failed; logs: {run_dir / 'logs'}, trajectories: {run_dir / 'rollouts'}")
    if status == OK or (run_dir / FILE_NAME).exists():
        _report(run_dir)
    return status


def _temp_parents(config: dict[str, Any]) -> tuple[Path, Path]:
    return Path(config["paths"]["temp_dir"]), Path(config["paths"]["shm_dir"])


def _open_run(config: dict[str, Any], run_id: str) -> tuple[Path, ...]:
    """Make the run's folders, record it, and set the environment that its processes inherit.

    Returns the temporary folders, which take the place of their parents in `config`."""
    run_dir = Path(config["paths"]["run_dir"])
    save_config(run_dir, config)
    write_owner(run_dir, run_id, "running")
    temp_dir, shm_dir = (temp_folder(parent, run_id) for parent in _temp_parents(config))
    config["paths"] |= {"temp_dir": str(temp_dir), "shm_dir": str(shm_dir)}
    os.environ.update({RUN_VARIABLE: run_id, **tracker_environment(config)})
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # without bytecode, imports of workers take a minute
    return temp_dir, shm_dir


def _report(run_dir: Path) -> None:
    from recipes.report.make import make_report

    try:
        report = make_report(run_dir)
    except (FileNotFoundError, ValueError) as error:
        _say(f"no report: {error}")
    else:
        print(report.text)
        _say(f"picture: {report.picture}")


class _TerminatedError(BaseException):
    """SIGTERM or SIGHUP; not an Exception, so that nobody below takes it for a failure to retry."""


def _raise_terminated(_number: int, _frame: FrameType | None) -> None:
    raise _TerminatedError


def _say(text: str) -> None:
    print(f"[train] {text}", flush=True)


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main, wait_for_threads=False)
