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

from launch.config_compose import ConfigError
from launch.config_validate import missing_here, skyrl_installed
from launch.machine import GIB, free_disk_gib, gpu_count, installed_version, needs_of
from launch.tracker import tracker_environment

SKYRL_CHECK = """
import json, sys
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.utils.utils import validate_cfg
try:
    config = SkyRLTrainConfig.from_cli_overrides(json.load(sys.stdin))
    engine = config.generator.inference_engine
    if not (engine.run_engines_locally or engine.external_proxy_url or engine.external_server_urls):
        engine.external_proxy_url = "http://127.0.0.1:1"  # the address is known once the server is started
    validate_cfg(config)
except (ValueError, AssertionError, TypeError, NotImplementedError) as error:
    sys.exit(f"REJECTED {error}")
"""


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
        [sys.executable, "-c", SKYRL_CHECK],
        input=json.dumps(config["skyrl"]),
        text=True,
        capture_output=True,
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
        f"nodes         {needs.nodes}, each with {needs.gpus} GPUs (here: {gpu_count()})",
        *_placement(config),
        f"sandboxes     {needs.sandboxes} at once, at most {needs.sandbox_memory_gib:.0f} GiB together "
        f"(memory here: {memory.total / GIB:.0f} GiB, {memory.available / GIB:.0f} free)",
        f"processors    {psutil.cpu_count()} here",
        f"run folder    {config['paths']['run_dir']} "
        f"({free_disk_gib(Path(config['paths']['run_dir'])):.0f} GiB free)",
        f"model         {config['policy']['path']} ({config['policy']['dtype']})",
        f"tasks         {config['data']['path']}",
    ]


def _placement(config: Mapping[str, Any]) -> list[str]:
    if not config["cluster"]["gpus_per_node"]:
        return ["placement     trainer and vLLM take turns on the processors"]
    engine = config["skyrl"]["generator"]["inference_engine"]
    trainer = config["skyrl"]["trainer"]
    shared = "shared by" if trainer.get("placement", {}).get("colocate_all", True) else "apart for"
    return [
        f"placement     GPUs {shared} policy and reference (FSDP, sequence parallel "
        f"{trainer['policy'].get('sequence_parallel_size', 1)}) and {engine.get('num_engines', 1)} vLLM "
        f"engines x TP {engine.get('tensor_parallel_size', 1)}"
    ]
