"""What this machine has and what a run needs, found out without loading anything heavy.

GPUs are counted by their device files, packages by their metadata, hub models by the files of the
hub's local cache. Nothing is downloaded and no driver is asked.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

GIB = 1 << 30
PACKAGES = {
    False: {"skyrl": "skyrl", "vllm": "vllm", "torch": "torch", "ray": "ray"},
    True: {
        "skyrl": "skyrl",
        "vllm": "vllm",
        "vllm-router": "vllm_router",
        "torch": "torch",
        "ray": "ray",
        "flash-attn": "flash_attn",
    },
}
"""Distribution to module, without and with GPUs."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Resources of a run, per node unless it says otherwise."""

    nodes: int
    """Machines."""
    gpus: int
    """GPUs."""
    sandboxes: int
    """Open at once at most."""
    sandbox_memory_gib: float
    """Memory that these may use together at most, GiB (typical use is far below)."""
    sequences_per_step: int
    """Rollouts of one step, all nodes together."""


def needs_of(config: Mapping[str, Any]) -> Needs:
    """Resources of the configured run."""
    trainer, sandbox, cluster = config["trainer"], config["sandbox"], config["cluster"]
    rollouts = trainer["prompts_per_step"] * trainer["rollouts_per_prompt"]
    at_once = min(sandbox["max_concurrent"], rollouts)
    return Needs(
        nodes=cluster["num_nodes"],
        gpus=cluster["gpus_per_node"],
        sandboxes=at_once,
        sandbox_memory_gib=at_once * sandbox["memory_mib"] / 1024,
        sequences_per_step=rollouts,
    )


def gpu_count() -> int:
    """NVIDIA GPUs of this machine, by their device files."""
    return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in Path("/dev").glob("nvidia*"))


def missing_on_machine(config: Mapping[str, Any]) -> list[str]:
    """GPUs, packages, hub models and memory that the run needs and this machine lacks."""
    needs = needs_of(config)
    gpus_here = gpu_count()
    missing: list[str] = []
    if needs.gpus > gpus_here:
        missing.append(f"GPUs: {needs.gpus} on each of {needs.nodes} nodes, {gpus_here} here")
    for package, module in PACKAGES[needs.gpus > 0].items():
        if importlib.util.find_spec(module) is None:
            extra = "gpu" if needs.gpus else "cpu"
            how = "see docs/dependencies.md" if package == "flash-attn" else f"pip install -e '.[{extra}]'"
            missing.append(f"package {package}: not installed; {how}")
    missing.extend(_missing_hub_parts(config))
    free = psutil.virtual_memory().available / GIB
    if not needs.gpus and free < 6:
        missing.append(f"memory: about 6 GiB free are needed, {free:.1f} GiB are")
    return missing


def _missing_hub_parts(config: Mapping[str, Any]) -> list[str]:
    from launch.config_validate import is_local

    path = config["policy"]["path"]
    if is_local(path):
        return []
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    folder = hub / f"models--{path.replace('/', '--')}" / "snapshots"
    if any(folder.glob("*/*.safetensors")):
        return []
    return [f"model weights: {path} is not in {hub}; run: hf download {path}, or set policy.path=FOLDER"]


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def free_disk_gib(path: Path) -> float:
    """Free space where `path` is or will be, GiB."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(there).free / GIB
