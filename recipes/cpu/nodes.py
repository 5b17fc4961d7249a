"""Ray for a run without GPUs: of its own on this machine, one raylet or several, or a cluster that is there.

Several raylets on one machine stand for several nodes: each has a rollout worker of its own, and can be
killed on its own. Their processes die with the driver (Ray's reaper). The policy worker and vLLM run once,
whatever the number of nodes.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster

from recipes.swe.io_gate import RESOURCE
from sandbox.cache_gate import UNITS

OBJECT_STORE_BYTES = 256 << 20


@contextmanager
def ray_cluster(
    cluster: Mapping[str, Any], *, temp_dir: str, runtime_env: Mapping[str, Any], cache_io: int = UNITS
) -> Iterator[None]:
    """Connect to Ray as `cluster` says; what was started for it ends with the context.

    `cache_io`: units of the I/O gate that each node advertises."""
    connect: dict[str, Any] = {
        "runtime_env": dict(runtime_env),
        "logging_level": "error",
        "log_to_driver": False,
    }
    started: Cluster | None = None
    address = address_of(cluster)
    nodes = int(cluster["num_nodes"])
    own = {
        "num_cpus": os.cpu_count(),
        "num_gpus": 0,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "resources": {RESOURCE: cache_io},
    }
    if address is not None:
        connect["address"] = address
    elif nodes == 1:
        connect |= {"address": "local", "_temp_dir": temp_dir, **own}
    else:
        started = Cluster(initialize_head=True, head_node_args={"temp_dir": temp_dir, **own})
        connect["address"] = started.address
    try:
        if started is not None:
            for _ in range(nodes - 1):
                started.add_node(wait=False, **own)
        ray.init(**connect)
        yield
    finally:
        ray.shutdown()
        if started is not None:
            started.shutdown()


def address_of(cluster: Mapping[str, Any]) -> str | None:
    """Address of the cluster to join; None to start one here."""
    if cluster["kind"] == "local":
        return None
    if cluster["address"] not in (None, "auto"):
        return str(cluster["address"])
    return os.environ.get("RAY_ADDRESS") or None
