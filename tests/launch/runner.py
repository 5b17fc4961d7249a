"""Runs launch/train.py in a process of its own, the training itself replaced by a few lines."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTER = """
import os, sys, types
sys.path.insert(0, {root!r})
module = types.ModuleType("recipes.swe.experiment")
exec({body!r}, module.__dict__)
sys.modules["recipes.swe.experiment"] = module
from launch.train import main
import launch.train
launch.train.sandbox_fault = lambda config: {unusable!r}
sys.exit(main(sys.argv[1:]))
"""


def inputs(folder: Path) -> list[str]:
    """Overrides naming a model, tasks and environments that exist, and private folders."""
    (folder / "policy").mkdir(exist_ok=True)
    (folder / "policy" / "config.json").write_text("{}")
    write_tasks(folder, 8)
    (folder / "envs").mkdir(exist_ok=True)
    for number in range(8):  # records that say that their environments are there
        (folder / "envs" / f"task{number}.json").write_text("{}")
    (folder / "tmp").mkdir(exist_ok=True)
    return [
        "+recipe=cpu_demo",
        f"policy.path={folder / 'policy'}",
        f"data.path={folder / 'tasks.jsonl'}",
        f"paths.cache_dir={folder}",
        f"paths.runs_dir={folder / 'runs'}",
        f"paths.temp_dir={folder / 'tmp'}",
        f"paths.shm_dir={folder / 'tmp'}",
    ]


def write_tasks(folder: Path, number: int) -> Path:
    """A file of rows that nothing can run."""
    row = {
        "patch": "diff",
        "FAIL_TO_PASS": ["t::a"],
        "PASS_TO_PASS": [],
        "image_name": "image",
        "repo": "repo",
    }
    row["problem_statement"] = "It fails."
    rows = [row | {"instance_id": f"task{n}"} for n in range(number)]
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def start(
    overrides: list[str], body: str = "def run(config): pass", unusable: str | None = None
) -> subprocess.Popen[str]:
    code = STARTER.format(root=str(ROOT), body=body, unusable=unusable)
    return subprocess.Popen(
        [sys.executable, "-c", code, *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={key: value for key, value in os.environ.items() if key != "MINISANDBOX_RUN"},
    )


def train(
    overrides: list[str], body: str = "def run(config): pass", unusable: str | None = None
) -> subprocess.CompletedProcess[str]:
    process = start(overrides, body, unusable)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
