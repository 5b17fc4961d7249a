"""The folder of a run: which one to use, whether to go on with it, and who owns it.

`runs/<name>/owner.json` says whose the run is and how it ended; `runs/<name>/config.yaml` is what it ran
with. With `resume=auto` an unfinished run of the same name and the same configuration goes on from its
last checkpoint, and a finished one stays as it is: the new run gets the next free name (`-2`, `-3`…).
Nothing in an existing run folder is ever deleted here.
"""

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from launch.cleanup import is_alive
from launch.config_compose import ConfigError

RunState = Literal["running", "finished", "failed", "interrupted"]
OWNER_FILE = "owner.json"
CONFIG_FILE = "config.yaml"
LATEST_FILE = "checkpoints/latest_ckpt_global_step.txt"
"""SkyRL's own marker of the last whole checkpoint."""
IGNORED_CHANGES = ("resume", "dry_run", "run_name", "paths", "skyrl.trainer.resume_mode")
"""Keys that may differ between a run and its continuation without a word."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What to do."""

    run_name: str
    """Name of the run, of its folder and of its W&B run."""
    resume_step: int | None
    """Checkpoint to go on from; None to start."""
    note: str
    """One line for a person: what was found and decided."""


def plan_run(runs_dir: Path, run_name: str, resume: bool | str, config: Mapping[str, Any]) -> RunPlan:
    """Decide between starting and going on. Raises ConfigError when the choice is not possible."""
    if resume is True:
        return _plan_forced_resume(runs_dir, run_name)
    last = _last_name(runs_dir, run_name)
    if last is None:
        return RunPlan(run_name, None, f"new run {run_name}")
    following = _next_name(runs_dir, run_name)
    if resume is False:
        return RunPlan(following, None, f"new run {following} ({last} stays as it is)")
    return _plan_automatic(runs_dir, last, following, config)


def _plan_forced_resume(runs_dir: Path, run_name: str) -> RunPlan:
    folder = runs_dir / run_name
    _refuse_living(folder)
    step = checkpoint_step(folder)
    if step is None:
        raise ConfigError([f"resume: true, but {folder} has no checkpoint; use resume=false to start"])
    return RunPlan(run_name, step, f"going on with {run_name} after step {step}")


def _plan_automatic(runs_dir: Path, last: str, following: str, config: Mapping[str, Any]) -> RunPlan:
    folder = runs_dir / last
    _refuse_living(folder)
    if read_state(folder) == "finished":
        return RunPlan(following, None, f"new run {following} ({last} is finished and stays as it is)")
    step = checkpoint_step(folder)
    if step is None:
        return RunPlan(following, None, f"new run {following} ({last} ended before its first checkpoint)")
    changed = changed_keys(saved_config(folder), config)
    if changed:
        raise ConfigError(
            [
                f"resume: {last} ended unfinished after step {step}, and these settings have changed since: "
                f"{', '.join(changed)}; say resume=false to start a new run, or "
                f"resume=true run_name={last} to go on with the changed settings"
            ]
        )
    return RunPlan(last, step, f"going on with {last}, which ended unfinished, after step {step}")


def _refuse_living(folder: Path) -> None:
    owner = _read_owner(folder)
    if owner.get("state") == "running" and is_alive(str(owner.get("run_id", ""))):
        raise ConfigError([f"run_name: {folder.name} is running now (pid {owner.get('pid')})"])


def checkpoint_step(folder: Path) -> int | None:
    """Step of the last whole checkpoint of a run; None without one."""
    try:
        step = int((folder / LATEST_FILE).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None
    return step if (folder / "checkpoints" / f"global_step_{step}").is_dir() else None


def read_state(folder: Path) -> RunState | None:
    """How the run ended, or None when that is not known (killed, or not a run)."""
    state = _read_owner(folder).get("state")
    return None if state == "running" else state


def write_owner(folder: Path, run_id: str, state: RunState) -> None:
    """Record who runs it and how it stands; replaced at once, never half written."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"run_id": run_id, "pid": os.getpid(), "state": state, "time_s": round(time.time(), 3)}
    _replace(folder / OWNER_FILE, json.dumps(record) + "\n")


def save_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Keep what the run was started with."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / CONFIG_FILE, yaml.safe_dump(dict(config), sort_keys=False))


def saved_config(folder: Path) -> dict[str, Any]:
    """What the run was started with; empty when unknown."""
    try:
        return cast(dict[str, Any], yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8")))
    except OSError:
        return {}


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Paths of the settings that differ, those that never matter left out."""
    before, after = _flat(old), _flat(new)
    paths = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    run_paths = ("ckpt_path", "export_path", "log_path", "run_name")
    return [
        path
        for path in paths
        if not any(path == ignored or path.startswith(ignored + ".") for ignored in IGNORED_CHANGES)
        and not (path.startswith("skyrl.trainer.") and path.rsplit(".", 1)[1] in run_paths)
    ]


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {prefix: node}
    flat: dict[str, Any] = {}
    for key, value in cast(Mapping[str, Any], node).items():
        flat.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _numbers(runs_dir: Path, run_name: str) -> list[int]:
    pattern = re.compile(re.escape(run_name) + r"(?:-(\d+))?")
    matches = (pattern.fullmatch(path.name) for path in runs_dir.glob(f"{run_name}*"))
    return sorted(int(match.group(1) or 1) for match in matches if match)


def _last_name(runs_dir: Path, run_name: str) -> str | None:
    numbers = _numbers(runs_dir, run_name)
    return None if not numbers else _name(run_name, numbers[-1])


def _next_name(runs_dir: Path, run_name: str) -> str:
    numbers = _numbers(runs_dir, run_name)
    return _name(run_name, numbers[-1] + 1 if numbers else 1)


def _name(run_name: str, number: int) -> str:
    return run_name if number == 1 else f"{run_name}-{number}"


def _read_owner(folder: Path) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads((folder / OWNER_FILE).read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError):
        return {}


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
