"""What a run puts where: engines and workers on nodes and GPUs, sandboxes and I/O units on nodes.

Text for the dry run, out of the configuration alone. Where Ray decides (which GPUs of a node, when training
and vLLM do not share them) it says so instead of guessing.
"""

from collections.abc import Mapping
from typing import Any

from launch.config_rules import is_asynchronous, shares_gpus
from launch.machine import needs_of

Config = Mapping[str, Any]


def placement_lines(config: Config) -> list[str]:
    """A line or more for each node."""
    cluster = config["cluster"]
    if not cluster["gpus_per_node"]:
        return _without_gpus(config)
    lines = [_ray_line(config)]
    for node in range(cluster["num_nodes"]):
        gpus = _shared_node(config, node) if shares_gpus(config) else _divided_node(config)
        lines.append(f"node {node + 1:<9}{gpus[0]}")
        lines.extend(f"{'':14}{line}" for line in [*gpus[1:], _sandbox_line(config)])
    return lines


def _ray_line(config: Config) -> str:
    cluster = config["cluster"]
    if cluster["kind"] == "ray":
        return (
            f"Ray           joins the cluster at {cluster['address']}, {cluster['num_nodes']} node(s) of it"
        )
    return "Ray           started by the run on this machine"


def _without_gpus(config: Config) -> list[str]:
    nodes = config["cluster"]["num_nodes"]
    raylets = f", {nodes} raylets, each with sandboxes of its own" if nodes > 1 else ""
    turns = "at the same time" if is_asynchronous(config) else "in turns"
    return [
        f"Ray           started by the run on this machine{raylets}",
        f"node 1        no GPU: one policy worker and one vLLM server, {turns} on the processors",
        f"{'':14}{_sandbox_line(config)}" + (" of each raylet" if nodes > 1 else ""),
    ]


def _shared_node(config: Config, node: int) -> list[str]:
    """SkyRL orders Ray's bundles by node and GPU, and engines take them in order (ResolvedPlacementGroup)."""
    trainer, gpus = config["trainer"], config["cluster"]["gpus_per_node"]
    size = trainer["tensor_parallel"]
    engines: list[str] = []
    for engine in range(trainer["engines"]):
        first, last = engine * size, (engine + 1) * size - 1
        if last < node * gpus or first >= (node + 1) * gpus:
            continue
        here = range(
            max(first, node * gpus) - node * gpus, min(last, (node + 1) * gpus - 1) - node * gpus + 1
        )
        engines.append(f"{engine} on {_span(here)}")
    ranks = _span(range(node * gpus, (node + 1) * gpus))
    return [
        f"GPU {_span(range(gpus))}: policy and reference, ranks {ranks} (FSDP, sequence parallel "
        f"{trainer['sequence_parallel']})",
        f"in turns with vLLM engines (TP {size}): {', '.join(engines)}",
    ]


def _divided_node(config: Config) -> list[str]:
    trainer = config["trainer"]
    train, rollout = trainer["train_gpus_per_node"], trainer["rollout_gpus_per_node"]
    return [
        f"{train} GPUs: policy and reference (FSDP, sequence parallel {trainer['sequence_parallel']})",
        f"{rollout} others: vLLM, {trainer['engines']} engines x TP {trainer['tensor_parallel']} on all "
        "nodes; Ray packs them and decides which GPUs",
    ]


def _sandbox_line(config: Config) -> str:
    sandbox, needs = config["sandbox"], needs_of(config)
    paths = config["paths"]
    units = f"{paths['cache_io']} I/O units of {paths['cache_io_unit_mb']:g} MB"
    return f"{needs.sandboxes} sandboxes ({sandbox['kind']}) at once, {units}"


def _span(numbers: range) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
