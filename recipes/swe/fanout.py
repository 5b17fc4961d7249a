"""Spreads rollouts over the workers of all nodes: one call out, one `Rollout` back.

A rollout goes to the least loaded worker with a free slot and waits here while there is none. When a worker
or its node dies, or a fault is its node's own, the rollout is tried again on another worker, and at last
comes back as a failure; the dead worker is replaced meanwhile. One rollout never stops the others: what a
worker raises becomes a failure of kind `internal`. What a rollout is and does is not known here.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from recipes.swe.failures import one_line
from recipes.swe.placement import LOST, NodeWorker, close_all, wait_for_nodes
from recipes.swe.types import Failure, FailureKind, Rollout, RolloutRequest, TaskInstance
from recipes.swe.wire import unpack

logger = logging.getLogger(__name__)

MOVES = 1
"""How often a rollout is tried on another worker after a fault of its node."""
DEATHS = 2
"""How often it is tried again after its worker died: most often it was not the reason."""


class Fanout:
    """The driver's side. Results keep the order of the requests. Belongs to one event loop while it runs."""

    def __init__(self, factory: str, config: Mapping[str, Any], *, nodes: int = 1, slots: int = 128) -> None:
        """Starts a worker on each of `nodes` nodes; Ray must be up. `slots`: rollouts at once on a node."""
        self._workers = [NodeWorker(factory, config, node) for node in wait_for_nodes(nodes)]
        self._slots = slots
        self._changed = asyncio.Event()
        self._revivals: set[asyncio.Task[None]] = set()
        self._homes: defaultdict[str, list[NodeWorker]] = defaultdict(list)
        self._prepares: dict[NodeWorker, list[Any]] = {}
        self.moved = 0
        """Rollouts that were tried on another worker, since the start."""
        self.deaths = 0
        """Workers that died, since the start."""

    def wait_ready(self) -> None:
        """Block until each worker can run rollouts; raises what went wrong in one."""
        ray.get([worker.readiness for worker in self._workers])

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """All rollouts, as many at once as there are slots. What was prepared for other tasks is let go, and
        what was prepared for these and not used."""
        wanted = {request.task.instance_id for request in requests}
        if any(instance_id not in wanted for instance_id in self._homes):
            await self.discard()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(request)) for request in requests]
        except BaseExceptionGroup as errors:  # the first one says what happened; the others were cancelled
            raise errors.exceptions[0] from None
        if any(instance_id in wanted for instance_id in self._homes):
            await self.discard()
        elif not self._homes:
            self._prepares.clear()  # all of it was used
        return [task.result() for task in tasks]

    def prepare(self, tasks: Sequence[TaskInstance]) -> int:
        """Have workers get ready for these rollouts to come, as many as there are slots; returns how many are
        prepared newly: some may have been before.

        Returns at once. `run` sends each rollout where its task was prepared when there is a free slot."""
        prepared = Counter({instance_id: len(homes) for instance_id, homes in self._homes.items()})
        taken = Counter(home for homes in self._homes.values() for home in homes)
        free = {worker: self._slots - worker.busy - taken[worker] for worker in self._workers if worker.up}
        chosen: defaultdict[NodeWorker, list[TaskInstance]] = defaultdict(list)
        for task in tasks:
            if prepared[task.instance_id] > 0:
                prepared[task.instance_id] -= 1
                continue
            worker = max(free, key=lambda one: free[one], default=None)
            if worker is None or free[worker] <= 0:
                break
            free[worker] -= 1
            chosen[worker].append(task)
        for worker, its in chosen.items():
            call = worker.actor.prepare.remote([task.env for task in its])  # what fails there is logged there
            self._prepares.setdefault(worker, []).append(call)
            for task in its:
                self._homes[task.instance_id].append(worker)
        return sum(map(len, chosen.values()))

    async def discard(self) -> None:
        """Let go of everything that was prepared."""
        self._homes.clear()
        prepares, self._prepares = self._prepares, {}
        for worker, calls in prepares.items():
            # Ray may start calls of async actors in another order.
            ended = await asyncio.gather(*calls, return_exceptions=True)
            ended += await asyncio.gather(worker.actor.discard.remote(), return_exceptions=True)
            for error in ended:
                if isinstance(error, LOST):
                    self._lost(worker, error)
                elif isinstance(error, Exception):  # sandboxes open when they are needed
                    logger.error("node %s cannot prepare or let go: %s", worker.node_id[:8], one_line(error))

    async def close(self) -> None:
        """Close every worker's sandboxes, then end the workers."""
        for task in self._revivals:
            task.cancel()
        workers, self._workers = self._workers, []
        await close_all(workers)

    async def _one(self, request: RolloutRequest) -> Rollout:
        avoid, earlier, deaths, moves = "", None, 0, 0
        while True:
            started = time.monotonic()
            worker = await self._acquire(request, avoid)
            waited_s = time.monotonic() - started
            if worker is None:
                return _joined(earlier, _failed(request, "no rollout worker is left"), waited_s)
            avoid = worker.node_id
            sent = replace(
                request,
                may_move=moves < MOVES and len(self._workers) > 1,
                done=earlier.trajectory if earlier is not None else request.done,
            )
            try:
                rollout, died = await self._call(worker, sent)
            finally:
                self._release(worker)
            earlier = _joined(earlier, rollout, waited_s)
            deaths += died
            moves += not died
            if rollout.failure is None or not rollout.failure.elsewhere:
                return earlier
            if deaths > DEATHS or moves > MOVES or (not died and len(self._workers) == 1):
                return earlier
            self.moved += 1
            logger.warning("rollout %s moves: %s", request.trajectory_id, rollout.failure.message)

    async def _call(self, worker: NodeWorker, request: RolloutRequest) -> tuple[Rollout, bool]:
        """The rollout, and whether it ended with its worker."""
        reference = worker.actor.rollout.remote(request)
        try:
            return unpack(await reference), False
        except LOST as error:
            self._lost(worker, error)
            return _failed(request, f"its worker died: {one_line(error, limit_chars=300)}"), True
        except asyncio.CancelledError:
            ray.cancel(reference)  # so that its sandbox does not live on
            raise
        except Exception as error:  # of the worker, or on the way from there: never the other rollouts'
            logger.exception("rollout %s hit a programming error in its worker", request.trajectory_id)
            cause = getattr(error, "cause", None)
            message = one_line(cause if isinstance(cause, Exception) else error)
            return _failed(request, message, kind="internal"), False

    async def _acquire(self, request: RolloutRequest, avoid: str) -> NodeWorker | None:
        """A worker with a free slot, not on node `avoid` while there is another; None when all are gone."""
        while True:
            usable = [worker for worker in self._workers if not worker.gone]
            if not usable:
                return None
            others = [worker for worker in usable if worker.node_id != avoid] or usable
            free = [worker for worker in others if worker.up and worker.busy < self._slots]
            if free:
                worker = self._choose(request.task.instance_id, free)
                worker.busy += 1
                return worker
            await self._changed.wait()

    def _choose(self, instance_id: str, free: Sequence[NodeWorker]) -> NodeWorker:
        homes = self._homes.pop(instance_id, [])
        worker = next((home for home in homes if home in free), None)
        if worker is not None:
            homes.remove(worker)
        if homes:
            self._homes[instance_id] = homes
        return worker or min(free, key=lambda one: one.busy)

    def _release(self, worker: NodeWorker) -> None:
        """Awaits nothing, so that a cancelled rollout gives its slot back too."""
        worker.busy -= 1
        self._wake()

    def _wake(self) -> None:
        """All who wait look again; whoever waits later waits for the next change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _lost(self, worker: NodeWorker, error: Exception) -> None:
        if not worker.lost():
            return
        self.deaths += 1
        for instance_id, homes in list(self._homes.items()):  # what it held went with it
            self._homes[instance_id] = left = [home for home in homes if home is not worker]
            if not left:
                del self._homes[instance_id]
        logger.error("the rollout worker of node %s died: %s", worker.node_id[:8], error)
        task = asyncio.create_task(self._revive(worker))
        self._revivals.add(task)
        task.add_done_callback(self._revivals.discard)

    async def _revive(self, worker: NodeWorker) -> None:
        await worker.revive(self._workers)
        self._wake()


def _failed(request: RolloutRequest, message: str, *, kind: FailureKind = "node") -> Rollout:
    return Rollout(
        trajectory_id=request.trajectory_id,
        instance_id=request.task.instance_id,
        trajectory=None,
        reward=None,
        failure=Failure(kind, message, elsewhere=kind == "node"),
    )


def _joined(earlier: Rollout | None, rollout: Rollout, waited_s: float) -> Rollout:
    """`rollout` with what the try before it took, and with what it waited for a slot here."""
    waits = _sum(rollout.waits_s, {"slot": waited_s})
    if earlier is None:
        return replace(rollout, waits_s=waits)
    return replace(
        rollout,
        trajectory=rollout.trajectory or earlier.trajectory,
        waits_s=_sum(earlier.waits_s, waits),
        stage_times_s=_sum(earlier.stage_times_s, rollout.stage_times_s),
        attempts=earlier.attempts + rollout.attempts,
        grading_faults=_sum(earlier.grading_faults, rollout.grading_faults),
    )


def _sum[N: (int, float)](first: Mapping[str, N], second: Mapping[str, N]) -> dict[str, N]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
