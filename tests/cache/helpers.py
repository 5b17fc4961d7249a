"""Small layers, environments and stores for the tests of the cache."""

import hashlib
from pathlib import Path
from typing import Any

import fsspec

from sandbox.cache import EnvRecord
from sandbox.cache_publish import publish_env, publish_layer
from sandbox.store import Store
from sandbox.store_push import push_envs


def make_layer(root: Path, name: str, files: dict[str, bytes]) -> str:
    """Publish a layer of these files (path -> content)."""
    with publish_layer(root, name, {"kind": name}) as content:
        assert content is not None
        for path, data in files.items():
            target = content / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return name


def noise(seed: str, size_bytes: int) -> bytes:
    """Bytes that cannot be compressed, the same for the same seed."""
    return hashlib.shake_256(seed.encode()).digest(size_bytes)


def make_env(root: Path, key: str, size_bytes: int = 200_000) -> EnvRecord:
    """Publish an environment of two layers, one shared by all, one its own."""
    shared = "base-00"
    if not (root / "layers" / shared).exists():
        make_layer(root, shared, {"opt/shared.bin": noise("shared", 50_000), "opt/text": b"text\n" * 1000})
    own = make_layer(
        root, f"task-{key}", {"testbed/data.bin": noise(key, size_bytes), "testbed/key": key.encode()}
    )
    record = EnvRecord((own, shared), "", "3.12.1", f"digest of {key}")
    publish_env(root, key, record)
    return record


def make_store(folder: Path, keys: list[str], size_bytes: int = 200_000) -> Store:
    """A store in `folder`/store with these environments, built in `folder`/built."""
    built = folder / "built"
    for key in keys:
        make_env(built, key, size_bytes)
    store = Store((folder / "store").as_uri())
    push_envs(built, keys, store, say=lambda _line: None)
    return store


def visible(root: Path) -> list[str]:
    """Everything in the layers' folder, unfinished work included."""
    folder = root / "layers"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class CountingStore(Store):
    """Counts how often each layer file is opened; may be told to misbehave."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opened: list[str] = []

    def open_layer(self, manifest: Any) -> Any:
        self.opened.append(manifest.name)
        return super().open_layer(manifest)


def clear_memory_store() -> None:
    """fsspec's memory file system is one for the whole process."""
    fsspec.filesystem("memory").store.clear()
