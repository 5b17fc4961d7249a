"""The cache of environments of one node: finds what is here, fetches the rest, and says what is missing.

An environment is a stack of read-only layers (task over repository over venv over interpreter) and a few
facts. Layers are named by the digest of everything that went into them, so that tasks of one project share
theirs. They are built by `launch/prepare.py` on one machine, published by `sandbox.cache_publish`, pushed to
a shared store by `sandbox.store_push`, and fetched from it by whoever asks first on a node. See
docs/cache.md.
"""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sandbox.cache_evict import GRACE_S
from sandbox.cache_files import write_atomically
from sandbox.cache_gate import Gate, LocalGate
from sandbox.cache_layer import content_path, layer_dir, set_aside
from sandbox.cache_lease import locked, touch
from sandbox.cache_record import (
    PREPARE_HINT,
    PYTHON_TARGET,
    VENV_TARGET,
    WORKDIR,
    EnvRecord,
    check_key,
    env_path,
    open_record,
    parse_record,
    python_env,
    read_record,
)
from sandbox.errors import CacheError
from sandbox.store import Store
from sandbox.store_fetch import Bring, Fetched, Origin, fetch_layer
from sandbox.types import CachedEnv, EnvSpec

__all__ = [
    "PREPARE_HINT",
    "PYTHON_TARGET",
    "VENV_TARGET",
    "WORKDIR",
    "EnvCache",
    "EnvRecord",
    "env_path",
    "have_env",
    "layer_dir",
    "open_record",
    "python_env",
    "read_record",
]


class Finds(Protocol):
    """Finds environments; `EnvCache`, or what stands in for it."""

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        """See `EnvCache.ensure`."""
        ...


async def have_env(cache: Finds, spec: EnvSpec) -> CachedEnv:
    """`ensure` for an event loop: at once where all is on this node, else in a thread. A thread alone costs
    some ten milliseconds where many rollouts start at once. Raises CacheError."""
    here = cache.at_hand(spec) if isinstance(cache, EnvCache) else None
    return here or await asyncio.to_thread(cache.ensure, spec)


class EnvCache:
    """The cache below `root` (config `paths.cache_dir`). Cheap to make; safe to share between threads."""

    def __init__(
        self,
        root: Path,
        *,
        store: Store | str | None = None,
        gate: Gate | None = None,
        limit_bytes: int | None = None,
        grace_s: float = GRACE_S,
        bring: Bring | None = None,
    ) -> None:
        """`root` lies on this node's own disk and may not exist yet. `store`: where missing layers come from.
        `gate`: by default the node's own with its usual number of units. `limit_bytes`: see `cache_evict`.
        `bring`: fetches in place of this process, and has a gate of its own."""
        self._root = root.absolute()
        self._memo: dict[str, tuple[int, CachedEnv, tuple[str, ...]]] = {}
        self._lock = threading.Lock()
        self._origin: Origin | None = None
        if store is not None:
            self._origin = Origin(
                Store(store) if isinstance(store, str) else store,
                gate or LocalGate(self._root / "gate"),
                limit_bytes,
                grace_s,
                bring,
            )

    @property
    def root(self) -> Path:
        """Absolute path of the cache."""
        return self._root

    @property
    def store(self) -> Store | None:
        """The shared store, if there is one."""
        return self._origin.store if self._origin else None

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        """The environment, ready to open; a hit takes well below a millisecond, a fetch blocks for as long as
        it lasts. Raises CacheError, naming what is missing or other than asked for, and the remedy."""
        return self.at_hand(spec) or self._as_asked(self._find(spec), spec)

    def at_hand(self, spec: EnvSpec) -> CachedEnv | None:
        """The environment, if all of it is on this node; None leaves it to `ensure`. It looks at a few small
        files of the node's own disk and waits for nothing, so an event loop may ask. Raises CacheError."""
        path = env_path(self._root, spec.key)
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        known = self._memo.get(spec.key)
        if known and known[0] == stamp and self._still(known[1], known[2]):
            return self._as_asked(known[1], spec)
        record = read_record(path)
        if not all(touch(layer_dir(self._root, name)) for name in record.layers):
            return None
        try:
            env = open_record(self._root, spec.key, record)
        except CacheError:
            return None  # damaged: `ensure` mends it, or says so
        return self._as_asked(self._remember(spec.key, stamp, env, record), spec)

    def _remember(self, key: str, stamp: int, env: CachedEnv, record: EnvRecord) -> CachedEnv:
        with self._lock:
            self._memo[key] = (stamp, env, record.layers)
        return env

    def _as_asked(self, env: CachedEnv, spec: EnvSpec) -> CachedEnv:
        if spec.digest and env.digest != spec.digest:
            raise CacheError(
                f"environment {spec.key} is another than its task was validated with; {PREPARE_HINT}"
            )
        return env

    def _find(self, spec: EnvSpec) -> CachedEnv:
        path = env_path(self._root, spec.key)
        stamp = self._stamp(path, spec.key)
        record = read_record(path)
        took = [self._have(name) for name in record.layers]
        env = open_record(self._root, spec.key, record)
        self._remember(spec.key, stamp, env, record)
        if not any(fetched.file_bytes for fetched in took):
            return env
        return replace(
            env,
            hit=False,
            fetch_s=sum(fetched.seconds for fetched in took),
            gate_wait_s=sum(fetched.gate_wait_s for fetched in took),
            fetched_bytes=sum(fetched.file_bytes for fetched in took),
        )

    def _still(self, env: CachedEnv, names: tuple[str, ...]) -> bool:
        """Whether a known environment is still here. Each layer is touched, so that it is not evicted before
        a sandbox is open over it, and looked at: it may have gone and come back in another form."""
        return all(touch(layer_dir(self._root, name)) for name in names) and all(
            layer.exists() for layer in env.layers
        )

    def _stamp(self, path: Path, key: str) -> int:
        """Time stamp of the environment's record; the record is fetched when it is not here."""
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            if self._origin is None:
                raise CacheError(f"environment {key} is not in {self._root}; {PREPARE_HINT}") from None
        (self._root / "locks").mkdir(parents=True, exist_ok=True)
        with locked(self._root / "locks" / "envs"):
            if not path.exists():  # the first of those that asked has it by now
                self._fetch_record(path, key, self._origin.store)
            return path.stat().st_mtime_ns

    def _fetch_record(self, path: Path, key: str, store: Store) -> None:
        text = store.read(f"envs/{check_key(key)}.json")
        if text is None:
            raise CacheError(
                f"environment {key} is neither in {self._root} nor in {store.url}; "
                f"{PREPARE_HINT}, then: python launch/cache.py push"
            )
        parse_record(f"the record of {key} in {store.url}", text)
        write_atomically(path, text)

    def _have(self, name: str) -> Fetched:
        """Have a layer here: nothing to do, or a fetch. A layer without its content is set aside first."""
        if touch(layer_dir(self._root, name)):
            try:
                content_path(self._root, name)
                return Fetched()
            except CacheError:
                if self._origin is None:
                    return Fetched()  # `open_record` says what is wrong
                set_aside(self._root, name, "its content is not there")
        if self._origin is None:
            return Fetched()
        return fetch_layer(self._root, name, self._origin)
