"""What a layer's file may be packed against: another layer that is nearly the same.

Tasks of one repository hold the same git pack but for what each of them breaks, and it cannot be one that
they share: that would hold the fix. So the first of them in a store is packed whole, and every other one as
its difference from that one (zstd with the other layer's tar in front of it). Where the other layer is on the
node it is read there, else from the store; it is never mounted for that. Which one serves is noted in the
store (`bases/<repository layer>.json`). A layer always refers to one that was whole when it was written, so
there are no circles.
"""

import io
import json
from pathlib import Path

from sandbox.cache_layer import LayerInfo, check_name, content_path, has_layer, read_info
from sandbox.cache_lease import touch
from sandbox.errors import CacheError
from sandbox.store import Checked, Manifest, Store
from sandbox.store_pack import tar_bytes, untarred

LIKENESS = "repo"
"""Fact of a layer that tells what it is alike to: layers with an equal one."""
KIND = "task"
MAX_BASE_BYTES = 64 << 20
"""Both sides hold the other layer in memory."""
MAX_DEPTH = 8


def likeness(info: LayerInfo) -> str:
    """What layers that are nearly the same have in common, the name of a layer; empty for one that is like no
    other. Raises CacheError for odd facts."""
    alike = info.facts.get("kind") == KIND and info.tree_bytes <= MAX_BASE_BYTES
    return check_name(info.facts[LIKENESS]) if alike and LIKENESS in info.facts else ""


def base_for(store: Store, info: LayerInfo) -> Manifest | None:
    """The layer of the store to pack this one against, if there is one."""
    alike = likeness(info)
    noted = store.read(_note(alike)) if alike else None
    if noted is None:
        return None
    try:
        name = str(json.loads(noted)["layer"])
    except (ValueError, KeyError, TypeError):
        return None
    found = store.manifest(name) if name != info.name else None
    return found if found is not None and _serves(found) else None


def note_base(store: Store, info: LayerInfo, manifest: Manifest) -> None:
    """A layer that was packed whole serves those that come after it."""
    if likeness(info) and _serves(manifest):
        store.write(_note(likeness(info)), json.dumps({"layer": manifest.name}).encode())


def _serves(manifest: Manifest) -> bool:
    return manifest.form == "tar.zst" and not manifest.base and manifest.tree_bytes <= MAX_BASE_BYTES


def _note(alike: str) -> str:
    return f"bases/{alike}.json"


def prefix_of(manifest: Manifest, store: Store, root: Path | None) -> bytes:
    """The tar that a layer was packed against; empty for one that was packed whole.

    Blocks. `root`: a node that may have it; None asks the store only. Raises CacheError."""
    return _prefix(manifest, store, root, MAX_DEPTH)


def _prefix(manifest: Manifest, store: Store, root: Path | None, depth: int) -> bytes:
    if not manifest.base:
        return b""
    here = _from_node(manifest.base, manifest.base_sha256, root) if root is not None else None
    if here is not None:
        return here
    base = base_problem(manifest, store)
    if isinstance(base, str) or depth == 0:
        raise CacheError(f"layer {manifest.name}: {base if isinstance(base, str) else 'too many bases'}")
    return _from_store(base, store, root, depth)


def against(base: Manifest, store: Store, root: Path) -> bytes:
    """The tar of a layer that another one is to be packed against. Raises CacheError."""
    return _from_node(base.name, base.tree_sha256, root) or _from_store(base, store, root, MAX_DEPTH)


def _from_store(base: Manifest, store: Store, root: Path | None, depth: int) -> bytes:
    prefix = _prefix(base, store, root, depth - 1)
    with store.open_layer(base) as source:
        reader, data = Checked(source), b""
        try:
            data = untarred(io.BufferedReader(reader), prefix, MAX_BASE_BYTES * 2)
            reader.drain()
            problem = reader.problem(base)
        except CacheError as error:
            problem = reader.problem(base) or str(error)
    if problem:
        raise CacheError(f"layer {base.name}, which others are packed against, is damaged: {problem}")
    return data


def base_problem(manifest: Manifest, store: Store) -> Manifest | str:
    """Manifest of the layer that this one is packed against, or what is wrong with it."""
    base = store.manifest(manifest.base)
    if base is None:
        return f"it is packed against {manifest.base}, which {store.url} lacks; push it again"
    if base.tree_sha256 != manifest.base_sha256 or base.form != "tar.zst":
        return f"it is packed against another {manifest.base} than {store.url} has; push it again"
    return base


def _from_node(name: str, tree_sha256: str, root: Path) -> bytes | None:
    """The tar of a layer of this node, if it has that very one."""
    try:
        if not (has_layer(root, name) and touch(root / "layers" / name)):
            return None
        content = content_path(root, name)
        if read_info(root, name).tree_sha256 != tree_sha256 or not content.is_dir():
            return None
        return tar_bytes(content)
    except (CacheError, FileNotFoundError):
        return None  # evicted meanwhile, or damaged
