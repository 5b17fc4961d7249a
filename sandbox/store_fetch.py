"""Brings one layer from a shared store to this node: once, however many ask, checked before it is seen.

The order is: the layer's lock (others who want this layer wait here), then the I/O gate, then bytes. Who
holds the gate waits for nobody, so no two fetches can wait for each other. A layer arrives in a directory of
its own and is renamed when its digests are right; until then, and after any failure, there is nothing to see.
"""

import io
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox import images
from sandbox.cache_evict import GRACE_S, evict
from sandbox.cache_gate import Gate
from sandbox.cache_layer import STORED, Form, LayerInfo, allocated_bytes, has_layer, write_info
from sandbox.cache_lease import touch
from sandbox.cache_publish import layer_lock, new_layer, normalise
from sandbox.errors import CacheError
from sandbox.images import ImageError
from sandbox.store import Checked, Manifest, Store, is_full
from sandbox.store_base import prefix_of
from sandbox.store_pack import CHUNK_BYTES, tree_facts, unpack_tar
from sandbox.unpack import unpack

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""Tries for a file that arrives short or damaged."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What bringing a layer took."""

    seconds: float = 0.0
    """Reading, unpacking, checking and writing to disk."""
    gate_wait_s: float = 0.0
    """Waiting at the gate."""
    file_bytes: int = 0
    """Read from the store; 0 when the layer was here."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where layers come from, and the rules for it on this node."""

    store: Store
    """The shared store."""
    gate: Gate
    """How much is unpacked at once."""
    limit_bytes: int | None = None
    """What all layers of this node may take on disk, None for no bound."""
    grace_s: float = GRACE_S
    """For how long a layer that was asked for is safe from eviction."""
    bring: "Bring | None" = None
    """Does the work in place of `bring_here`, for example in another process of this node."""


type Bring = Callable[[Path, Manifest, Origin], Fetched]
"""Brings a layer that is not here, under its lock, which the caller holds. Raises CacheError."""


def fetch_layer(root: Path, name: str, origin: Origin) -> Fetched:
    """Have a layer on this node. Blocks. Raises CacheError."""
    with layer_lock(root, name):
        if touch(root / "layers" / name) and has_layer(root, name):
            return Fetched()
        manifest = origin.store.manifest(name)
        if manifest is None:
            raise CacheError(
                f"layer {name} is neither on this node nor in {origin.store.url}; where it was built, "
                "run: python launch/cache.py push"
            )
        if origin.limit_bytes is not None:
            room = origin.limit_bytes - max(manifest.tree_bytes, manifest.file_bytes)
            evict(root, max(0, room), keep=(name,), grace_s=origin.grace_s)
        return (origin.bring or bring_here)(root, manifest, origin)


def bring_here(root: Path, manifest: Manifest, origin: Origin) -> Fetched:
    """Bring a layer in this process, as soon as the gate lets it; the layer's lock is held."""
    with origin.gate.hold(manifest.tree_bytes) as waited:
        started = time.monotonic()
        for attempt in range(ATTEMPTS):
            try:
                # A base that is damaged on this node is read from the store the second time.
                _bring(root, manifest, origin.store, base_root=root if attempt == 0 else None)
                break
            except CacheError as error:
                if attempt == ATTEMPTS - 1:
                    raise
                logger.warning("%s; once more", error)
            except OSError as error:
                if not is_full(error):
                    raise CacheError(f"layer {manifest.name} cannot be written: {error}") from error
                if attempt == ATTEMPTS - 1 or not _make_room(root, manifest, origin):
                    raise CacheError(
                        f"the disk of the cache {root} is full: layer {manifest.name} needs "
                        f"{manifest.tree_bytes} bytes; free space, or see: python launch/cache.py gc"
                    ) from error
        return Fetched(time.monotonic() - started, waited, manifest.file_bytes)


def _make_room(root: Path, manifest: Manifest, origin: Origin) -> bool:
    """Evict as much as the layer needs; whether anything could go."""
    everything = evict(root, 1 << 62).left_bytes
    wanted = max(0, everything - 2 * manifest.tree_bytes)
    return bool(evict(root, wanted, keep=(manifest.name,), grace_s=origin.grace_s).layers)


def _bring(root: Path, manifest: Manifest, store: Store, *, base_root: Path | None) -> None:
    """One attempt; publishes the layer."""
    prefix = prefix_of(manifest, store, base_root)
    with new_layer(root, manifest.name) as folder:
        with store.open_layer(manifest) as source:
            reader = Checked(source)
            form = _receive(folder, manifest, reader, store, prefix)
        info = LayerInfo(
            name=manifest.name,
            form=form,
            facts=manifest.facts,
            tree_sha256=manifest.tree_sha256,
            disk_bytes=allocated_bytes(folder),
            tree_bytes=manifest.tree_bytes,
            image_sha256=None if form == "tree" else manifest.file_sha256,
        )
        write_info(folder, info)
        (folder / STORED).touch()


def _receive(folder: Path, manifest: Manifest, reader: Checked, store: Store, prefix: bytes) -> Form:
    """Write the content below `folder`. Raises CacheError when it is not what the manifest says."""
    try:
        if manifest.form == "tar.zst":
            (folder / "root").mkdir(mode=0o755)
            unpack_tar(io.BufferedReader(reader, CHUNK_BYTES), folder / "root", prefix)
            reader.drain()  # a file longer than it should be has another digest
        else:
            with (folder / "image").open("wb") as file:
                shutil.copyfileobj(reader, file, CHUNK_BYTES)
        problem, cause = reader.problem(manifest), None
    except CacheError as error:
        problem, cause = f"{reader.problem(manifest)}; {error}".removeprefix("; "), error
    if problem:
        raise CacheError(
            f"layer {manifest.name} arrives damaged from {store.url}: {problem}; if that stays so, "
            "push it again (python launch/cache.py verify --store finds such files)"
        ) from cause
    return "tree" if manifest.form == "tar.zst" else _mount_or_unpack(folder, manifest)


def _mount_or_unpack(folder: Path, manifest: Manifest) -> Form:
    """Keep the image where this process can mount it, else unpack it. Its digest was right."""
    assert manifest.form != "tar.zst"
    image, content = folder / "image", folder / "root"
    try:
        os.close(images.attach(str(image)))
        return manifest.form
    except ImageError:
        try:
            unpack(image, content)
        except ImageError as error:
            raise CacheError(f"layer {manifest.name}: {error}; or push it as tar.zst") from error
    image.unlink()
    normalise(content)
    if tree_facts(content).sha256 != manifest.tree_sha256:
        raise CacheError(f"layer {manifest.name} unpacks to something else than its manifest says")
    return "tree"
