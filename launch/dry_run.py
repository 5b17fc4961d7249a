"""`dry_run=true`: the composed configuration, what the run needs, and exactly what is missing here.

It loads nothing heavy and changes nothing; SkyRL's own validation, which imports torch and vllm, runs in
a process of its own. Exit status 0 means that the configuration is valid,
also when this machine lacks what the run needs: the point is to compose big runs on small machines.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from launch.config_compose import ROOT, ConfigError
from launch.config_validate import missing_here, skyrl_installed
from launch.dry_run_placement import placement_lines
from launch.machine import GIB, free_disk_gib, gpu_count, installed_version, needs_of
from launch.tracker import tracker_environment


def dry_run_text(config: Mapping[str, Any]) -> str:
    """Everything the dry run says. Raises ConfigError when SkyRL rejects the configuration."""
    lines = ["# composed configuration", yaml.safe_dump(dict(config), sort_keys=False).rstrip(), ""]
    lines.extend(_resources(config))
    lines.append("")
    lines.append(_skyrl_verdict(config))
    missing = missing_here(config)
    if missing:
        lines.append(f"Missing on this machine ({len(missing)}):")
        lines.extend(f"  - {line}" for line in missing)
    else:
        lines.append("Nothing is missing on this machine.")
    return "\n".join(lines)


def _skyrl_verdict(config: Mapping[str, Any]) -> str:
    if not skyrl_installed():
        return "SkyRL is not installed here: its own keys (skyrl.*) were not checked."
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    checked = subprocess.run(
        [sys.executable, "-m", "launch.skyrl_check"],
        input=json.dumps(config["skyrl"]),
        text=True,
        capture_output=True,
        cwd=ROOT,
        env=environment | tracker_environment(config),
        check=False,
    )
    if checked.returncode == 0:
        return f"SkyRL {installed_version('skyrl')} accepts this configuration (its own validate_cfg)."
    rejection = checked.stderr.rpartition("REJECTED ")
    if rejection[1]:
        raise ConfigError([f"skyrl: {' '.join(rejection[2].split())}"])
    last = checked.stderr.strip().splitlines()[-1:] or ["no message"]
    return f"SkyRL's own validation could not run here: {last[0]}"


def _resources(config: Mapping[str, Any]) -> list[str]:
    needs, trainer = needs_of(config), config["trainer"]
    memory = psutil.virtual_memory()
    return [
        "# resources",
        f"steps         {trainer['max_steps']} of {trainer['prompts_per_step']} prompts x "
        f"{trainer['rollouts_per_prompt']} rollouts = {needs.sequences_per_step} rollouts a step",
        f"model         {config['policy']['path']} ({config['policy']['dtype']}), up to "
        f"{config['policy']['context_tokens']} tokens",
        f"tasks         {_tasks(config)}",
        f"nodes         {needs.nodes}, each with {needs.gpus} GPUs (here: {gpu_count()})",
        f"memory        sandboxes of a node {needs.sandbox_memory_gib:.0f} GiB at their limits (here: "
        f"{memory.total / GIB:.0f} GiB, {memory.available / GIB:.0f} free); {_doctor_hint(config)}",
        f"processors    {psutil.cpu_count()} here",
        f"run folder    {config['paths']['run_dir']} "
        f"({free_disk_gib(Path(config['paths']['run_dir'])):.0f} GiB free)",
        "",
        "# placement",
        *placement_lines(config),
    ]


def _tasks(config: Mapping[str, Any]) -> str:
    data = config["data"]
    wanted = f"the first {data['first']}" if data.get("first") else "all"
    order = "in the file's order" if data.get("shuffle_seed") is None else f"by seed {data['shuffle_seed']}"
    source = f", from {data['source']}" if data.get("source") else ""
    return f"{wanted} {order} of {data['path']}{source}"


def _doctor_hint(config: Mapping[str, Any]) -> str:
    return f"python launch/doctor.py --recipe {config['recipe_name']} adds up the rest"
