"""Evaluates a policy: `python launch/eval.py policy=cpu_tiny agent=demo model=runs/cpu_demo-seed0`.

Same agent, sandboxes and grader as in training. Writes runs/<run_name>/eval.json, eval.txt and every rollout,
as a row of rollouts.parquet and as text. Exit status: 0 done, 1 failed or nothing could be judged, 2 the
configuration is wrong, 3 no sandbox can be opened on this machine, 130 interrupted; what had ended by then is
reported.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # launch/ itself there would shadow modules

import yaml

from launch.cleanup import RUN_VARIABLE, TEMP_PARENTS, clean_up, end_run, make_run_id, temp_folder
from launch.config_compose import ConfigError
from launch.config_eval import load_eval_config
from launch.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED, OK, UNUSABLE_MACHINE
from launch.run_registry import plan_run, save_config, saved_config, write_owner
from launch.sandbox_check import sandbox_fault
from launch.tracker import tracker_environment
from recipes.cpu.server import ServerError
from recipes.report.evaluation import Evaluation, evaluate_rows, evaluation_text
from recipes.report.recorder import RolloutRecorder
from recipes.report.rows import read_rows
from recipes.report.trajectories import verdict
from recipes.swe.types import Rollout, TaskInstance


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    overrides = sys.argv[1:] if argv is None else argv
    if any(argument in ("-h", "--help") for argument in overrides):
        print(__doc__)
        return OK
    try:
        config = load_eval_config(overrides)
        tasks = load_eval_tasks(config)
    except ConfigError as error:
        print(f"launch/eval.py: {len(error.errors)} error(s) in the configuration:", file=sys.stderr)
        for line in error.errors:
            print(f"  - {line}", file=sys.stderr)
        return BAD_CONFIG
    _say(
        f"{len(tasks)} tasks x {config['rollouts_per_task']} rollouts of {config['model']}, "
        f"{config['sandbox']['max_concurrent']} at once"
    )
    if config["dry_run"]:
        print(yaml.safe_dump(config, sort_keys=False))
        return OK
    unusable = sandbox_fault(config)
    if unusable is not None:
        print(f"launch/eval.py: this machine cannot open sandboxes: {unusable}", file=sys.stderr)
        return UNUSABLE_MACHINE
    from recipes.swe.checkpoint_model import find_model, tokenizer_fault

    fault = tokenizer_fault(find_model(config["model"]))
    if fault is not None:
        print(f"launch/eval.py: model: {fault}", file=sys.stderr)
        return BAD_CONFIG
    return _run(config, tasks)


def load_eval_tasks(config: Mapping[str, Any]) -> list[TaskInstance]:
    """The tasks to evaluate on. Raises ConfigError."""
    from recipes.report.solve_rates import SolveRatesError
    from recipes.swe.task_selection import training_tasks
    from recipes.swe.task_sets import TaskSetError, load_task_sets
    from recipes.swe.tasks import TaskFileError

    try:
        if config["held_out_of"] is not None:
            trained = saved_config(Path(config["held_out_of"]))
            tasks = list(load_task_sets({**trained, "reward": config["reward"]}).held_out)
        else:
            tasks = training_tasks(config["data"], timeout_s=config["reward"]["timeout_s"])
    except (TaskFileError, TaskSetError, SolveRatesError, KeyError, OSError) as error:
        raise ConfigError([f"data: {' '.join(str(error).split())}"]) from error
    if not tasks:
        raise ConfigError(["data: no tasks to evaluate on"])
    return tasks


def _run(config: dict[str, Any], tasks: list[TaskInstance]) -> int:
    paths = config["paths"]
    name = plan_run(Path(paths["runs_dir"]), config["run_name"], False, config).run_name
    run_dir = Path(paths["runs_dir"]) / name
    config["run_name"], paths["run_dir"] = name, str(run_dir)
    save_config(run_dir, config)
    run_id = make_run_id(name)
    write_owner(run_dir, run_id, "running")
    clean_up((*TEMP_PARENTS, Path(paths["temp_dir"])))
    temp_dir = temp_folder(Path(paths["temp_dir"]), run_id)
    paths["temp_dir"] = str(temp_dir)
    os.environ.update({RUN_VARIABLE: run_id, **tracker_environment(config, "eval")})
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    recorder = RolloutRecorder(run_dir)
    state, status = "failed", FAILED
    try:
        _evaluate(config, tasks, recorder, temp_dir)
        state, status = "finished", OK
    except KeyboardInterrupt:
        state, status = "interrupted", INTERRUPTED
        _say("interrupted; this is what had ended")
    except ServerError as error:
        print(f"launch/eval.py: {error}", file=sys.stderr)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the clean-up is short and must not be cut
        end_run(run_id, (temp_dir,))
        write_owner(run_dir, run_id, state)
    judged = _report(config, run_dir, recorder)
    return status if judged or status != OK else FAILED


def _evaluate(
    config: dict[str, Any], tasks: list[TaskInstance], recorder: RolloutRecorder, temp_dir: Path
) -> None:
    from recipes.swe.checkpoint_model import servable_model
    from recipes.swe.evaluate import EvalPlan, evaluate, served

    plan = EvalPlan(
        tasks=tasks,
        rollouts_per_task=config["rollouts_per_task"],
        temperature=config["temperature"],
        top_p=config["top_p"],
        seed=config["seed"],
    )
    model = servable_model(config["model"], temp_dir)
    _say("starting the server" if config["serve"]["url"] is None else f"using {config['serve']['url']}")
    with served(config, model) as (url, model_name):
        asyncio.run(
            evaluate(config, plan, recorder, url=url, model_name=model_name, model=model, progress=_progress)
        )


def _progress(rollout: Rollout, done: int, whole: int) -> None:
    ended = f"failed ({rollout.failure.kind})" if rollout.failure else verdict(rollout)
    _say(f"{done:>{len(str(whole))}}/{whole}  {ended:<9}  {rollout.instance_id}")


def _report(config: Mapping[str, Any], run_dir: Path, recorder: RolloutRecorder) -> bool:
    """Write and print what came out, and tell W&B. False when nothing could be judged."""
    merged = recorder.finish()
    rows = read_rows(run_dir)
    if merged is None or rows is None:
        _say("no rollout ended")
        return False
    evaluation = evaluate_rows(rows, confidence=config["confidence"])
    about = {name: config[name] for name in ("model", "held_out_of", "temperature", "top_p", "seed")}
    record = {**about, "tasks_file": config["data"]["path"], **evaluation.as_json()}
    (run_dir / "eval.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    text = evaluation_text(evaluation, f"Evaluation of {config['model']}")
    (run_dir / "eval.txt").write_text(text, encoding="utf-8")
    print(text)
    _say(f"folder {run_dir}")
    if config["logger"]["backend"] == "wandb":
        _log(config, evaluation, merged)
    return evaluation.pass_at_1 is not None


def _log(config: Mapping[str, Any], evaluation: Evaluation, merged: Path) -> None:
    """One W&B run of job type eval."""
    import wandb

    logger = config["logger"]
    run = wandb.init(
        project=logger["project"], name=config["run_name"], config=dict(config), tags=logger["tags"]
    )
    low, high = evaluation.interval or (None, None)
    figures = {
        "eval/pass_at_1": evaluation.pass_at_1,
        "eval/pass_at_1_low": low,
        "eval/pass_at_1_high": high,
        "eval/tasks_judged": evaluation.tasks_judged,
        "eval/num_failed": sum(evaluation.failures.values()),
        **{f"eval/pass_at_{k}": value for k, value in evaluation.pass_at_k.items()},
    }
    run.log({name: value for name, value in figures.items() if value is not None})
    artifact = wandb.Artifact(f"rollouts-{run.id}", type="rollouts")
    artifact.add_file(str(merged), name=merged.name)
    run.log_artifact(artifact)
    run.finish()


def _say(text: str) -> None:
    print(f"[eval] {text}", flush=True)


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
