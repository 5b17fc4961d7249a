"""How layers are fetched on a cluster: in a Ray task that holds so much of its node's `cache_io` while it
unpacks.

Each node advertises units of `cache_io` (`paths.cache_io_unit_mb` each; `doctor --io` proposes how many). A
worker that lacks a layer hands the unpacking to a task on its own node that needs as many units as the
layer's size, at most all the node has. So Ray's own scheduler is the queue, the units are held exactly while
bytes move, they come back when the task, its worker or its node dies, and unpacking does not stop the event
loop that rollouts live in.
Where no Ray is up, or a node advertises nothing, the node's local gate serves (`sandbox.cache_gate`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sandbox.cache import EnvCache
from sandbox.cache_evict import GRACE_S
from sandbox.cache_gate import LocalGate, NoGate, units_of
from sandbox.errors import CacheError
from sandbox.store import Manifest, Store
from sandbox.store_fetch import Fetched, Origin, bring_here

RESOURCE = "cache_io"
GIB = 1 << 30
MB = 10**6


def open_cache(paths: Mapping[str, Any]) -> EnvCache:
    """The cache of this node as the configuration (`paths`) has it, gated by Ray where Ray gates."""
    store, limit = paths["store"], paths["cache_max_gib"]
    if not store:
        return EnvCache(Path(paths["cache_dir"]))
    root = Path(paths["node_dir"] or paths["cache_dir"])
    capacity, unit_bytes = advertised(), max(1, round(paths["cache_io_unit_mb"] * MB))
    return EnvCache(
        root,
        store=store,
        gate=LocalGate(root / "gate", units=paths["cache_io"], unit_bytes=unit_bytes),
        limit_bytes=int(limit * GIB) if limit else None,
        bring=RayBring(capacity, unit_bytes=unit_bytes) if capacity else None,
    )


def advertised() -> int:
    """Units of `cache_io` of the node that this process runs on; 0 without Ray, or when it advertises
    none."""
    if not ray.is_initialized():
        return 0
    here = ray.get_runtime_context().get_node_id()
    [node] = [node for node in ray.nodes() if node["NodeID"] == here]
    return int(node["Resources"].get(RESOURCE, 0))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a task says; errors too, as text, for a traceback of another process helps nobody."""

    fetched: Fetched | None
    """None when it failed."""
    problem: str
    """Why it failed."""
    started_s: float
    """When it got its units (seconds since 1970, of the node that waits for it too)."""


class RayBring:
    """Fetches layers in tasks of this node that hold `cache_io`. Called from threads; see
    `store_fetch.Bring`."""

    def __init__(self, capacity: int, *, unit_bytes: int) -> None:
        """`capacity`: units of so many bytes that this node advertises, one at least. Starts a process for
        the first task, which takes a second that no rollout should wait for."""
        self._capacity = capacity
        self._unit_bytes = unit_bytes
        here = ray.get_runtime_context().get_node_id()
        self._here = NodeAffinitySchedulingStrategy(here, soft=False)
        self._task: Any = ray.remote(num_cpus=0, max_retries=1)(_bring)
        self._warm = ray.remote(num_cpus=0)(_ready).options(scheduling_strategy=self._here).remote()

    def __call__(self, root: Path, manifest: Manifest, origin: Origin) -> Fetched:
        """See `sandbox.store_fetch.Bring`."""
        units = units_of(manifest.tree_bytes, capacity=self._capacity, unit_bytes=self._unit_bytes)
        asked = time.time()
        task: Any = self._task.options(resources={RESOURCE: units}, scheduling_strategy=self._here)
        try:
            outcome: _Outcome = ray.get(
                task.remote(str(root), manifest, origin.store.url, origin.limit_bytes, origin.grace_s)
            )
        except RayError as error:
            raise CacheError(f"layer {manifest.name}: the task that unpacks it was lost: {error}") from error
        if outcome.fetched is None:
            raise CacheError(outcome.problem)
        waited = max(0.0, outcome.started_s - asked)
        return Fetched(outcome.fetched.seconds, waited, outcome.fetched.file_bytes)


def _ready() -> None:
    """A task whose only use is that its process stays for the next one, with this module loaded."""


def _bring(
    root: str, manifest: Manifest, url: str, limit_bytes: int | None, grace_s: float = GRACE_S
) -> _Outcome:
    """The task. The caller holds the layer's lock, and Ray kills this process when the caller dies."""
    started = time.time()
    try:
        fetched = bring_here(Path(root), manifest, Origin(Store(url), NoGate(), limit_bytes, grace_s))
    except CacheError as error:
        return _Outcome(None, str(error), started)
    return _Outcome(fetched, "", started)
