"""Two raylets on this machine, as two nodes of a cluster, with this process connected to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def two_raylets(*, cpus: int) -> Iterator[Cluster]:
    """The cluster; each node says that it has `cpus` processors."""
    store = {"object_store_memory": 80 << 20, "num_cpus": cpus, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=store)
    cluster.add_node(**store)
    ray.init(
        address=cluster.address,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        log_to_driver=False,
        logging_level="error",
    )
    yield cluster
    ray.shutdown()
    cluster.shutdown()
