"""Where rollout workers run: one Ray actor a node, pinned to it, and a new one where one died.

`NodeWorker` is the driver's handle of one node's worker. Ray restarts nothing by itself here: a worker that
died is known at once, and whoever holds its rollouts decides what becomes of them. It does not choose which
worker gets which rollout; that is the fan-out's.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, ObjectLostError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recipes.swe.worker import RolloutWorker

logger = logging.getLogger(__name__)

LOST = (RayActorError, ActorUnschedulableError, ObjectLostError)
"""What Ray raises when a worker, its node, or a result that lay on that node is gone."""

ROLLOUTS = "rollouts"
"""Custom resource (`ray start --resources='{"rollouts": 1}'`) of nodes that are to run sandboxes."""
REVIVAL_DELAYS_S = (0.0, 2.0, 10.0, 30.0, 60.0)
"""Waits before each try to start a new worker in place of a dead one."""
READY_TIMEOUT_S = 300.0
"""How long a worker may take to come up."""
NODES_TIMEOUT_S = 120.0
"""How long to wait for nodes that have not joined yet."""


class PlacementError(RuntimeError):
    """Ray has fewer nodes than the run needs."""


def alive_nodes() -> list[str]:
    """Ids of the nodes that are up, best first: those started with the resource `rollouts`, then those with
    GPUs (a head node without any stays free), then the driver's own."""
    own = ray.get_runtime_context().get_node_id()
    return ranked([node for node in ray.nodes() if node["Alive"]], own)


def ranked(nodes: Sequence[Mapping[str, Any]], own: str) -> list[str]:
    """Ids of `nodes` (as Ray lists them), best first."""

    def rank(node: Mapping[str, Any]) -> tuple[bool, bool, bool, str]:
        has = node["Resources"]
        return ROLLOUTS not in has, "GPU" not in has, node["NodeID"] != own, node["NodeID"]

    return [node["NodeID"] for node in sorted(nodes, key=rank)]


def wait_for_nodes(count: int, *, timeout_s: float = NODES_TIMEOUT_S) -> list[str]:
    """Ids of `count` nodes. Raises PlacementError when so many do not join in time."""
    deadline = time.monotonic() + timeout_s
    while len(nodes := alive_nodes()) < count:
        if time.monotonic() > deadline:
            raise PlacementError(
                f"cluster.num_nodes is {count}, but Ray has {len(nodes)} node(s) after {timeout_s:g} s"
            )
        time.sleep(0.5)
    return nodes[:count]


class NodeWorker:
    """One worker and how it is. Its `busy` is kept by the fan-out."""

    def __init__(self, factory: str, config: Mapping[str, Any], node_id: str) -> None:
        """Starts the actor; `readiness` resolves when it can run rollouts."""
        self._factory = factory
        self._config = dict(config)
        self.busy = 0
        self.up = True
        self.gone = False
        """No other worker could be started in its place."""
        self._place(node_id)

    def _place(self, node_id: str) -> None:
        actor = ray.remote(num_cpus=0, num_gpus=0, max_concurrency=4096, max_restarts=0)(RolloutWorker)
        pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self.node_id = node_id
        self.actor = actor.options(scheduling_strategy=pinned).remote(self._factory, self._config)
        self.readiness = self.actor.ready.remote()

    async def revive(self, others: Iterable["NodeWorker"]) -> None:
        """Start another worker in its place: on its node, else on one that has none. Sets `up` or `gone`."""
        taken = {worker.node_id for worker in others if worker is not self}
        for delay_s in REVIVAL_DELAYS_S:
            await asyncio.sleep(delay_s)
            nodes = [node for node in alive_nodes() if node not in taken]
            if not nodes:
                continue
            self._kill()
            self._place(self.node_id if self.node_id in nodes else nodes[0])
            try:
                await asyncio.wait_for(self.readiness, READY_TIMEOUT_S)
            except (*LOST, ray.exceptions.RayTaskError, TimeoutError) as error:
                logger.error("no new rollout worker on node %s: %s", self.node_id[:8], error)
                continue
            self.up = True
            return
        self.gone = True

    def lost(self) -> bool:
        """Note that it died; False when that was known."""
        was_up, self.up = self.up, False
        return was_up

    async def close(self) -> None:
        """Close its sandboxes and end it."""
        try:
            await self.actor.close.remote()
        except LOST:
            pass  # what it held went with it
        finally:
            self._kill()

    def _kill(self) -> None:
        ray.kill(self.actor)


async def close_all(workers: Sequence[NodeWorker]) -> None:
    """Close every worker; raises the first error that is not the death of one."""
    results = await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
