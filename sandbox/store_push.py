"""Puts layers and records into a shared store: packed once, checked, files before the manifests that name
them.

Pushing again does nothing for what the store holds. What depends on a machine (a record of the first version,
which binds a directory of the machine that built it) is refused: it would not work elsewhere.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandbox.cache_files import write_atomically
from sandbox.cache_layer import content_path, mark_stored, read_info
from sandbox.cache_lease import touch
from sandbox.cache_record import (
    PREPARE_HINT,
    EnvRecord,
    check_key,
    dump_record,
    env_path,
    parse_record,
    read_record,
)
from sandbox.errors import CacheError
from sandbox.store import Manifest, Store
from sandbox.store_base import against, base_for, likeness, note_base
from sandbox.store_pack import CHUNK_BYTES, PackedForm, Progress, pack, tree_facts

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did."""

    envs: int
    """Records in the store now that were asked for."""
    layers: int
    """Layers that they need."""
    new_layers: int
    """Of those, packed and written now."""
    new_bytes: int
    """Bytes of files written now."""


def push_envs(
    root: Path,
    keys: list[str],
    store: Store,
    *,
    form: PackedForm = "tar.zst",
    say: Say,
    mark: bool = True,
    progress: Progress = lambda _: None,
) -> Pushed:
    """Put environments of this node into the store. Blocks: packing is slow. Raises CacheError.

    `mark`: note here that a store holds the layers, so that they may be evicted. `progress` is told of all
    bytes of all layers, those included that the store holds already."""
    records = {key: portable(key, read_record(env_path(root, key))) for key in keys}
    store.make()
    names = list(dict.fromkeys(name for record in records.values() for name in record.layers))
    written: list[int] = []
    for some in _heads_first(root, names):
        push = partial(push_layer, root, store=store, form=form, mark=mark)
        written += _side_by_side(some, push, say, progress)
    for key, record in records.items():
        store.write(f"envs/{check_key(key)}.json", dump_record(record))
    return Pushed(len(records), len(names), len(written), sum(written))


def _side_by_side(names: Sequence[str], push: Callable[..., int], say: Say, progress: Progress) -> list[int]:
    """Push layers in threads; the sizes of the files that were written.

    After a failure the layers at work are finished and no other is begun; after an interrupt those at work
    end at their next file, and take what they have packed with them."""
    stopped, written = threading.Event(), list[int]()

    def advance(size: int) -> None:
        if stopped.is_set():
            raise CacheError("interrupted")
        progress(size)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # compressing lets other threads run
        try:
            waiting = {pool.submit(push, name, progress=advance): name for name in names}
            for task in as_completed(waiting):
                size = task.result()
                if size:
                    written.append(size)
                    say(f"{waiting[task]}, {size} bytes")
        except BaseException as error:
            if not isinstance(error, Exception):
                stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return written


def _heads_first(root: Path, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(layers that others may be packed against, and those that are like no other; the rest)."""
    heads: dict[str, str] = {}
    for name in sorted(names):
        alike = likeness(read_info(root, name))
        heads.setdefault(f"like {alike}" if alike else name, name)
    first = set(heads.values())
    return [name for name in names if name in first], [name for name in names if name not in first]


def portable(key: str, record: EnvRecord) -> EnvRecord:
    """The record, if it means the same on any node. Raises CacheError."""
    if record.python_prefix:
        raise CacheError(
            f"environment {key} binds the interpreter at {record.python_prefix} of this machine, which "
            f"other nodes need not have; build it again with the interpreter as a layer, {PREPARE_HINT}"
        )
    return record


def push_layer(
    root: Path,
    name: str,
    store: Store,
    *,
    form: PackedForm = "tar.zst",
    mark: bool = True,
    progress: Progress = lambda _: None,
) -> int:
    """Put one layer into the store; bytes written, 0 when the store held it. Raises CacheError."""
    found = store.manifest(name)
    if found is None:
        size = _pack_and_put(root, name, store, form, progress).file_bytes
        if mark:
            mark_stored(root, name)
        return size
    # Names say what went in: where a build is not reproducible, the store's content may differ from ours.
    if mark and read_info(root, name).tree_sha256 in (None, found.tree_sha256):
        mark_stored(root, name)
    progress(found.tree_bytes)
    return 0


def _pack_and_put(root: Path, name: str, store: Store, form: PackedForm, progress: Progress) -> Manifest:
    touch(root / "layers" / name)
    content, info = content_path(root, name), read_info(root, name)
    with tempfile.TemporaryDirectory(prefix=".tmp-pack-", dir=root / "layers") as folder:
        file, base = Path(folder) / "packed", None
        if content.name == "image":
            # As it came: its digests were checked then, and cannot be told from the image alone.
            file, used, sha256, size = content, info.form, info.tree_sha256, info.tree_bytes
            if used == "tree" or sha256 is None:
                raise CacheError(f"layer {name} has an image but says {used}; verify it")
            packed: PackedForm = used
        else:
            facts = tree_facts(content)
            if info.tree_sha256 not in (None, facts.sha256):
                raise CacheError(f"layer {name} is damaged; run: python launch/cache.py verify")
            base = base_for(store, info) if form == "tar.zst" else None
            prefix = against(base, store, root) if base is not None else b""
            pack(content, form, file, progress, prefix)
            packed, sha256, size = form, facts.sha256, facts.bytes
        digest = file_sha256(file)
        manifest = Manifest(
            name=name,
            form=packed,
            file=f"{name}.{digest[:16]}.{packed}",
            file_bytes=file.stat().st_size,
            file_sha256=digest,
            tree_sha256=sha256,
            tree_bytes=size,
            facts=info.facts,
            base=base.name if base is not None else "",
            base_sha256=base.tree_sha256 if base is not None else "",
        )
        store.put_layer(manifest, file)
        note_base(store, info, manifest)
        return manifest


def file_sha256(path: Path) -> str:
    """Digest of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return digest.hexdigest()


def copy_envs(source: Store, target: Store, keys: list[str], *, say: Say) -> Pushed:
    """Copy environments from one store to another as they are. Raises CacheError."""
    records: dict[str, EnvRecord] = {}
    for key in keys:
        text = source.read(f"envs/{check_key(key)}.json")
        if text is None:
            raise CacheError(f"environment {key} is not in {source.url}")
        records[key] = parse_record(f"the record of {key} in {source.url}", text)
    target.make()
    names = list(dict.fromkeys(name for record in records.values() for name in record.layers))
    new, written = 0, 0
    for name in names:
        if target.manifest(name) is not None:
            continue
        manifest = source.manifest(name)
        if manifest is None:
            raise CacheError(f"layer {name} is not in {source.url}")
        if manifest.base and manifest.base not in names:
            names.append(manifest.base)
        with tempfile.TemporaryDirectory(prefix="copy-layer-") as folder:
            file = Path(folder) / manifest.file
            with source.open_layer(manifest) as reader, file.open("wb") as writer:
                while chunk := reader.read(CHUNK_BYTES):
                    writer.write(chunk)
            if file_sha256(file) != manifest.file_sha256:
                raise CacheError(f"layer {name} in {source.url} is damaged; push it again")
            target.put_layer(manifest, file)
        new, written = new + 1, written + manifest.file_bytes
        say(f"{name}, {manifest.file_bytes} bytes")
    for key, record in records.items():
        target.write(f"envs/{key}.json", dump_record(record))
    return Pushed(len(records), len(names), new, written)


def pull_record(root: Path, store: Store, key: str) -> EnvRecord:
    """Take an environment's record from the store, over an older one of this node. Raises CacheError."""
    text = store.read(f"envs/{check_key(key)}.json")
    if text is None:
        raise CacheError(f"environment {key} is not in {store.url}")
    record = parse_record(f"the record of {key} in {store.url}", text)
    write_atomically(env_path(root, key), text)
    return record
