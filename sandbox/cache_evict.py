"""Keeps a node's cache within its size: the layers that were wanted longest ago go first.

Never removed: a layer that a sandbox of any process uses, one that was asked for within the last minutes, and
one that no shared store is known to hold (unless asked to). So the bound is a wish: what is in use stays.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from sandbox.cache_layer import is_stored, layer_dir, list_layers, read_info
from sandbox.cache_lease import LAYER_FILE, locked, same_file
from sandbox.errors import CacheError

GRACE_S = 600.0
"""A layer that was asked for so recently may be about to be opened."""
_TRASH = ".trash-"
_ABANDONED_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Evicted:
    """What an eviction did."""

    layers: tuple[str, ...]
    """Names of what was removed."""
    freed_bytes: int
    """What that took on disk."""
    left_bytes: int
    """What all layers take now."""


@dataclass(frozen=True, slots=True)
class LayerUse:
    """One layer of a node, as seen by eviction."""

    name: str
    """Its name."""
    disk_bytes: int
    """What it takes on disk."""
    wanted_at_s: float
    """When it was last asked for (seconds since 1970)."""
    in_use: bool
    """Whether an open sandbox holds it."""
    stored: bool
    """Whether a shared store is known to hold it."""


def layer_uses(root: Path) -> list[LayerUse]:
    """All layers that are whole, the one wanted longest ago first."""
    found: list[LayerUse] = []
    for name in list_layers(root):
        path = layer_dir(root, name) / LAYER_FILE
        try:
            size, wanted = read_info(root, name).disk_bytes, path.stat().st_mtime
            found.append(LayerUse(name, size, wanted, _in_use(path), is_stored(root, name)))
        except (CacheError, FileNotFoundError):
            continue  # evicted meanwhile, or damaged: `verify` tells of that
    return sorted(found, key=lambda use: use.wanted_at_s)


def _in_use(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def evict(
    root: Path,
    limit_bytes: int,
    *,
    keep: Collection[str] = (),
    grace_s: float = GRACE_S,
    unstored: bool = False,
) -> Evicted:
    """Remove layers until all take at most `limit_bytes`, or none is left that may go. Blocks.

    `keep`: names that stay. `unstored`: also what no store holds and only a new build brings back."""
    (root / "locks").mkdir(parents=True, exist_ok=True)
    with locked(root / "locks" / "evict"):
        sweep_trash(root)

        def remove(use: LayerUse) -> bool:
            return remove_unused(root, use.name, grace_s=grace_s)

        return _choose(layer_uses(root), limit_bytes, keep, unstored, remove)


def would_evict(root: Path, limit_bytes: int, *, grace_s: float = GRACE_S, unstored: bool = False) -> Evicted:
    """What `evict` would do now; nothing is changed."""
    now = time.time()
    return _choose(layer_uses(root), limit_bytes, (), unstored, lambda use: now - use.wanted_at_s >= grace_s)


def _choose(
    uses: Iterable[LayerUse],
    limit_bytes: int,
    keep: Collection[str],
    unstored: bool,
    remove: Callable[[LayerUse], bool],
) -> Evicted:
    """Goes through layers, the one wanted longest ago first, until few enough bytes are left."""
    uses = list(uses)
    total, gone, freed = sum(use.disk_bytes for use in uses), list[str](), 0
    for use in uses:
        if total - freed <= limit_bytes:
            break
        if use.in_use or use.name in keep or not (use.stored or unstored):
            continue
        if remove(use):
            gone.append(use.name)
            freed += use.disk_bytes
    return Evicted(tuple(gone), freed, total - freed)


def remove_unused(root: Path, name: str, *, grace_s: float) -> bool:
    """Remove a layer unless it is in use or was asked for within `grace_s`; whether it is gone."""
    layer = layer_dir(root, name)
    path = layer / LAYER_FILE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    trash = layer.with_name(f"{_TRASH}{name}-{time.time_ns()}")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only now: whoever wants it notes so under a shared lock.
        if time.time() - os.fstat(fd).st_mtime < grace_s or not same_file(fd, path):
            return False
        layer.rename(trash)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    shutil.rmtree(trash)
    return True


def sweep_trash(root: Path) -> None:
    """Finish what killed evictions began, and remove what killed builds and pushes left long ago; the caller
    holds the lock of evictions."""
    for trash in (root / "layers").glob(f"{_TRASH}*"):
        shutil.rmtree(trash)
    for unfinished in (root / "layers").glob(".tmp-*"):
        if time.time() - unfinished.lstat().st_mtime > _ABANDONED_S:
            shutil.rmtree(unfinished, ignore_errors=True)
