"""What the first use of an environment costs on a node beside its fetch, and what every later use costs.

`python -m benchmarks.first_use --cache-dir DIR [--store URL] [--nodes N] [--output FILE.json]`. The
environments of DIR (a prepared cache) are pushed to a store once; then N nodes in turn, each with an empty
cache, ask for them one after the other, through the node's own gate and through Ray's (one raylet, a worker
that starts its process ahead, as in a run). Told for each gate: the first environment (all its layers), those
that lack only their task's layer, and hits. Beside the fetch is everything else that `ensure` does: locks,
record, manifest, gate, and Ray's task. "At once": 64 rollouts of one event loop that start together, each
with a little work of its own after it, as a step begins. Nothing is opened: that is `benchmarks.sandbox`.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray

from recipes.swe.io_gate import RESOURCE, RayBring, open_cache
from sandbox.cache import EnvCache, have_env
from sandbox.store import Store
from sandbox.store_push import push_envs
from sandbox.types import EnvSpec

UNITS = 40
HITS = 200
CROWD = 64
FIRST_LIMIT_MS, HIT_LIMIT_MS = 100.0, 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one gate."""

    gate: str
    """`local` or `ray`."""
    first_fetch_ms: float
    """Fetching all layers of the first environment, median over nodes."""
    first_beside_ms: float
    """What came on top, worst node."""
    task_fetch_ms: float
    """Fetching the layer of one more task, median."""
    task_beside_ms: float
    """What came on top, median."""
    task_beside_worst_ms: float
    """The worst of them."""
    hit_ms: float
    """Asking again, median."""
    hit_p99_ms: float
    """99 of 100 are faster."""
    crowd_ms: float
    """Of 64 rollouts at once, median: what their stage `env_prep` is."""
    crowd_p99_ms: float
    """99 of 100 are faster."""

    def lines(self) -> list[str]:
        """For a person."""
        first = _met(self.first_beside_ms, FIRST_LIMIT_MS)
        task = _met(self.task_beside_worst_ms, FIRST_LIMIT_MS)
        return [
            f"{self.gate} gate: first use {self.first_fetch_ms:.0f} ms of fetching and at most "
            f"{self.first_beside_ms:.1f} ms beside it ({first})",
            f"  one more task {self.task_fetch_ms:.1f} ms and {self.task_beside_ms:.1f} ms beside it, "
            f"at most {self.task_beside_worst_ms:.1f} ({task})",
            f"  afterwards {self.hit_ms:.3f} ms, p99 {self.hit_p99_ms:.3f} "
            f"({_met(self.hit_ms, HIT_LIMIT_MS)})",
            f"  {CROWD} at once {self.crowd_ms:.3f} ms, p99 {self.crowd_p99_ms:.3f} "
            f"({_met(self.crowd_ms, HIT_LIMIT_MS)})",
        ]


def _met(value_ms: float, limit_ms: float) -> str:
    return f"target {limit_ms:.0f} ms: {'met' if value_ms <= limit_ms else 'NOT met'}"


def ask(cache: EnvCache, key: str) -> tuple[float, float, bool]:
    """(milliseconds of fetching, beside it, whether it was here) of one `ensure`."""
    started = time.perf_counter()
    env = cache.ensure(EnvSpec(key))
    wall_s = time.perf_counter() - started
    return env.fetch_s * 1e3, (wall_s - env.fetch_s) * 1e3, env.hit


async def crowd(cache: EnvCache, keys: Sequence[str]) -> list[float]:
    """Milliseconds of each of many rollouts that begin together."""
    found: list[float] = []

    async def rollout(key: str) -> None:
        started = time.perf_counter()
        await have_env(cache, EnvSpec(key))
        found.append((time.perf_counter() - started) * 1e3)
        for _ in range(3):  # prompts, sandboxes: about a millisecond in all
            sum(range(30_000))
            await asyncio.sleep(0)

    await asyncio.gather(*(rollout(keys[at % len(keys)]) for at in range(CROWD)))
    return found


def measure(gate: str, store: Store, keys: Sequence[str], nodes: int, place: Path) -> Figures:
    """All nodes of one gate."""
    firsts: list[tuple[float, float]] = []
    tasks: list[tuple[float, float]] = []
    hits: list[float] = []
    crowds: list[float] = []
    for number in range(nodes):
        cache = open_cache(_paths(place / f"{gate}{number}", store.url))
        if gate == "ray":
            _wait_until_warm(cache)
        for at, key in enumerate(keys):
            fetch_ms, beside_ms, hit = ask(cache, key)
            if hit:
                raise SystemExit(f"{key} was here already")
            (firsts if at == 0 else tasks).append((fetch_ms, beside_ms))
        for at in range(HITS):
            _, beside_ms, hit = ask(cache, keys[at % len(keys)])
            if not hit:
                raise SystemExit(f"{keys[at % len(keys)]} was fetched twice")
            hits.append(beside_ms)
        crowds += asyncio.run(crowd(open_cache(_paths(place / f"{gate}{number}", store.url)), keys))
    beside = [beside for _, beside in tasks]
    return Figures(
        gate=gate,
        first_fetch_ms=statistics.median(fetch for fetch, _ in firsts),
        first_beside_ms=max(beside for _, beside in firsts),
        task_fetch_ms=statistics.median(fetch for fetch, _ in tasks),
        task_beside_ms=statistics.median(beside),
        task_beside_worst_ms=max(beside),
        hit_ms=statistics.median(hits),
        hit_p99_ms=statistics.quantiles(hits, n=100)[98],
        crowd_ms=statistics.median(crowds),
        crowd_p99_ms=statistics.quantiles(crowds, n=100)[98],
    )


def _paths(root: Path, url: str) -> Mapping[str, Any]:
    """As the configuration's `paths`."""
    bounds = {"cache_max_gib": None, "cache_io": UNITS, "cache_io_unit_mb": 50}
    return {"cache_dir": str(root), "node_dir": str(root), "store": url, **bounds}


def _wait_until_warm(cache: EnvCache) -> None:
    """A worker starts its process for fetching when it starts itself, long before a rollout asks."""
    origin = cache._origin
    if origin is None or not isinstance(origin.bring, RayBring):
        raise SystemExit("Ray does not gate here")
    ray.get(origin.bring._warm)


def _one_stack(root: Path) -> list[str]:
    """Keys of the tasks of the environment that has the most."""
    stacks: dict[tuple[str, ...], list[str]] = {}
    for path in sorted((root / "envs").glob("[!.]*.json")):
        layers = json.loads(path.read_text("utf-8"))["layers"]
        stacks.setdefault(tuple(layers[1:]), []).append(path.stem)
    if not stacks:
        raise SystemExit(f"no environments in {root}; run: python launch/prepare.py")
    return max(stacks.values(), key=len)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 when the targets are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_use", description=__doc__)
    parser.add_argument("--cache-dir", type=Path, default=Path(".cache"))
    parser.add_argument("--store", help="a store that they are in, or are pushed to (default: temporary)")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--output", type=Path, help="JSON file of the figures")
    options = parser.parse_args(arguments)
    root = options.cache_dir.absolute()
    keys = _one_stack(root)
    with tempfile.TemporaryDirectory(prefix="first-use-", dir=root) as work:
        store = Store(options.store or (Path(work) / "store").as_uri())
        push_envs(root, keys, store, say=lambda _line: None, mark=False)
        figures = [measure("local", store, keys, options.nodes, Path(work))]
        ray.init(num_cpus=1, resources={RESOURCE: UNITS}, include_dashboard=False, log_to_driver=False)
        figures.append(measure("ray", store, keys, options.nodes, Path(work)))
        ray.shutdown()
    print("\n".join(line for one in figures for line in one.lines()))
    if options.output:
        options.output.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n")
    met = [
        max(one.first_beside_ms, one.task_beside_worst_ms) <= FIRST_LIMIT_MS
        and max(one.hit_ms, one.crowd_ms) <= HIT_LIMIT_MS
        for one in figures
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
