"""Fetching on a cluster: two raylets of this machine stand for two nodes, each with one unit of `cache_io`.

Each has a cache of its own. The configuration makes units so small that every layer is larger than all that a
node has: each request is above the capacity.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recipes.swe.io_gate import RESOURCE, advertised, open_cache
from sandbox.cache import EnvCache
from sandbox.cache_gate import units_of
from sandbox.store import Store
from sandbox.store_pack import tree_facts
from sandbox.types import EnvSpec
from tests.cache.helpers import make_store, visible

pytestmark = pytest.mark.slow
OWN = {"num_cpus": 1, "object_store_memory": 80 << 20, "resources": {RESOURCE: 1}}
KEYS = [f"env{number}" for number in range(4)]
UNIT_MB = 0.05
"""The smallest layer (`base-00`) has 55 kB in its files, the others four times as much."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **OWN})
    try:
        found.add_node(**OWN)
        ray.init(address=found.address, log_to_driver=False, logging_level="error")
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


@pytest.fixture(autouse=True)
def two_nodes(cluster: Cluster) -> None:
    """Ray takes some seconds to see that a node of an earlier test is gone."""
    until(lambda: len(nodes()) == 2, "there are not two nodes")


class Worker:
    """As a rollout worker: lives on one node, asks from threads."""

    def __init__(self, root: str, url: str, *, slow_s: float = 0.0) -> None:
        paths = {
            "cache_dir": "/nowhere",
            "node_dir": root,
            "store": url,
            "cache_max_gib": None,
            "cache_io": 1,
            "cache_io_unit_mb": UNIT_MB,
        }
        self.capacity = advertised()
        self.cache = open_cache(paths)
        assert self.cache._origin is not None and self.cache._origin.bring is not None
        if slow_s:
            # The same task, but it dawdles.
            self.cache._origin.bring._task = ray.remote(num_cpus=0, max_retries=0)(dawdling(slow_s))

    def ensure(self, key: str) -> tuple[bool, float, float, int, list[str]]:
        env = self.cache.ensure(EnvSpec(key))
        text = (env.layers[0] / "testbed" / "key").read_text()
        assert text == key
        return env.hit, env.gate_wait_s, env.fetch_s, env.fetched_bytes, [str(layer) for layer in env.layers]


def dawdling(seconds: float) -> Any:
    def bring(root: str, manifest: Any, *rest: Any) -> Any:
        from recipes.swe.io_gate import _bring
        from sandbox import store_fetch

        original = store_fetch.unpack_tar

        def unpack_tar(stream: Any, target: Path, prefix: bytes) -> int:
            size = original(stream, target, prefix)
            with (Path(root) / "log").open("a") as log:
                log.write(f"{manifest.name} {os.getpid()}\n")
            time.sleep(seconds)
            return size

        store_fetch.unpack_tar = unpack_tar
        try:
            return _bring(root, manifest, *rest)
        finally:
            store_fetch.unpack_tar = original

    return bring


def worker_on(node_id: str, root: Path, url: str, **options: Any) -> Any:
    root.mkdir(exist_ok=True)
    actor = ray.remote(num_cpus=0, max_concurrency=64)(Worker)
    return actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(
        str(root), url, **options
    )


def nodes() -> list[str]:
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def free_units() -> float:
    return ray.available_resources().get(RESOURCE, 0.0)


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def above_the_capacity(store: Store) -> None:
    """Every layer wants more units than the one that a node has: unclamped, Ray could never run its task."""
    for name in store.names("layers"):
        manifest = store.manifest(name)
        assert manifest is not None
        assert units_of(manifest.tree_bytes, capacity=1000, unit_bytes=round(UNIT_MB * 1e6)) > 1


def test_every_node_fetches_once_under_its_own_unit_and_nothing_deadlocks(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Two workers on each node, all asking for four environments sixteen times at once."""
    store = make_store(tmp_path, KEYS)
    above_the_capacity(store)
    roots = [tmp_path / f"node{number}" for number in range(2)]
    workers = [
        worker_on(node, root, store.url, slow_s=0.1)
        for node, root in zip(nodes(), roots, strict=True)
        for _ in "ab"
    ]
    calls = [worker.ensure.remote(key) for worker in workers for key in KEYS for _ in range(4)]
    least = 2.0
    waiting = list(calls)
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.05)
        least = min(least, free_units())
    results = ray.get(calls)
    until(lambda: free_units() == 2, "units were not given back")
    assert least == 0
    for number, root in enumerate(roots):
        fetched = [line.split()[0] for line in (root / "log").read_text().splitlines()]
        assert sorted(fetched) == sorted(["base-00", *(f"task-{key}" for key in KEYS)]), number
        assert visible(root) == sorted(fetched)
        for key in KEYS:
            built = tmp_path / "built" / "layers" / f"task-{key}" / "root"
            assert tree_facts(root / "layers" / f"task-{key}" / "root") == tree_facts(built)
    assert sum(not hit for hit, *_ in results) <= 2 * (len(KEYS) + 1)
    waits = [wait for hit, wait, *_ in results if not hit]
    assert max(waits) > 0.1, "one unit, and nobody waited for it"
    for worker in workers:
        ray.kill(worker)


def test_a_node_killed_while_unpacking_leaves_nothing_half_done(cluster: Cluster, tmp_path: Path) -> None:
    """Its node comes back with the same disk: the layer is fetched again, whole; the other node goes on."""
    store = make_store(tmp_path, KEYS)
    above_the_capacity(store)
    other = nodes()[0]
    doomed = cluster.add_node(**OWN)
    roots = {"doomed": tmp_path / "doomed", "other": tmp_path / "other"}
    dying = worker_on(doomed.node_id, roots["doomed"], store.url, slow_s=60.0)
    lost = [dying.ensure.remote(key) for key in KEYS]
    log = roots["doomed"] / "log"
    until(log.exists, "nothing was unpacked")
    [half] = visible(roots["doomed"])
    assert half.startswith(".tmp-")
    unpacking = int(log.read_text().split()[1])
    cluster.remove_node(doomed, allow_graceful=False)
    for call in lost:
        with pytest.raises(RayError):
            ray.get(call, timeout=60)
    until(lambda: not Path(f"/proc/{unpacking}").exists(), "the task outlived its node")
    assert not [name for name in visible(roots["doomed"]) if not name.startswith(".")]
    living = worker_on(other, roots["other"], store.url)
    assert not ray.get(living.ensure.remote("env0"), timeout=60)[0]
    again = cluster.add_node(**OWN)
    try:
        risen = worker_on(again.node_id, roots["doomed"], store.url, slow_s=0.01)
        results = ray.get([risen.ensure.remote(key) for key in KEYS for _ in range(8)], timeout=120)
        names = sorted(["base-00", *(f"task-{key}" for key in KEYS)])
        assert visible(roots["doomed"]) == names
        assert sorted(line.split()[0] for line in log.read_text().splitlines()[1:]) == names
        assert sum(not hit for hit, *_ in results) <= len(names)
        until(lambda: free_units() == 3, "units were not given back")
    finally:
        ray.kill(living)
        cluster.remove_node(again, allow_graceful=False)


def test_a_warm_node_answers_at_once_and_errors_come_back_as_they_are(
    cluster: Cluster, tmp_path: Path
) -> None:
    store = make_store(tmp_path, KEYS)
    worker = worker_on(nodes()[0], tmp_path / "node", store.url)
    ray.get(worker.ensure.remote("env0"))
    for key in KEYS[1:]:
        _, wait, *_ = ray.get(worker.ensure.remote(key))
        assert wait < 1.0
    file = next((tmp_path / "store" / "layers").glob("task-env1.*.zst"))
    file.write_bytes(file.read_bytes()[:-100])
    elsewhere = worker_on(nodes()[0], tmp_path / "elsewhere", store.url)
    with pytest.raises(RayError, match=r"CacheError.*task-env1 arrives damaged"):
        ray.get(elsewhere.ensure.remote("env1"))
    assert visible(tmp_path / "elsewhere") == []
    for one in (worker, elsewhere):
        ray.kill(one)


def test_without_a_store_or_units_no_task_is_needed(cluster: Cluster, tmp_path: Path) -> None:
    paths = {
        "cache_dir": str(tmp_path),
        "node_dir": None,
        "store": None,
        "cache_max_gib": None,
        "cache_io": 1,
        "cache_io_unit_mb": UNIT_MB,
    }
    assert open_cache(paths).store is None
    assert isinstance(open_cache(paths), EnvCache)
