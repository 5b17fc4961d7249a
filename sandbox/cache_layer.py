"""One layer on this node: where it lies, what is known of it, whether it is whole.

    <root>/layers/<name>/root/         its files, or
    <root>/layers/<name>/image         the squashfs or erofs image that holds them
    <root>/layers/<name>/layer.json    written before the rename that publishes it, then never changed
    <root>/layers/<name>/stored        there when a shared store holds the layer too, so that it may be
    evicted

Names say what went in (`kind-digest`), never where anything lies: a cache can be moved. Nothing here builds,
fetches or removes a layer, but for putting a damaged one aside.
"""

import json
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from sandbox.cache_lease import LAYER_FILE
from sandbox.errors import CacheError

logger = logging.getLogger(__name__)

FORMAT = 2
STORED = "stored"
Form = Literal["tree", "squashfs", "erofs"]
_FORMS = ("tree", "squashfs", "erofs")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """What `layer.json` holds."""

    name: str
    """Kind and digest of the inputs."""
    form: Form
    """A directory, or an image."""
    facts: Mapping[str, str]
    """What went in, for people."""
    tree_sha256: str | None
    """Digest of the content; None for a layer of an older version, which cannot be verified."""
    disk_bytes: int
    """What it takes on this node's disk."""
    tree_bytes: int
    """Bytes in its files."""
    image_sha256: str | None = None
    """Digest of the image; None for a directory."""


def check_name(name: str) -> str:
    """The name, if it is one. Raises CacheError: it becomes part of a path."""
    if not _NAME.fullmatch(name):
        raise CacheError(f"{name!r} cannot be the name of a layer")
    return name


def layer_dir(root: Path, name: str) -> Path:
    """Directory of a layer: `root/` or `image`, and `layer.json` lie in it."""
    return root / "layers" / name


def has_layer(root: Path, name: str) -> bool:
    """Whether the layer was published whole."""
    return (layer_dir(root, name) / LAYER_FILE).is_file()


def content_path(root: Path, name: str) -> Path:
    """What a sandbox is given. Raises CacheError when the layer is not there or not whole."""
    layer = layer_dir(root, name)
    for part in ("root", "image"):
        if (layer / part).exists() and (layer / LAYER_FILE).is_file():
            return layer / part
    raise CacheError(f"layer {layer} is incomplete")


def read_info(root: Path, name: str) -> LayerInfo:
    """What is known of a layer. Raises CacheError when it is missing or damaged."""
    path = layer_dir(root, name) / LAYER_FILE
    try:
        data = cast(Mapping[str, Any], json.loads(path.read_text("utf-8")))
        if data.get("format") != FORMAT:  # The first version kept nothing but the facts.
            return LayerInfo(name, "tree", dict(data), None, allocated_bytes(path.parent), 0)
        if data["form"] not in _FORMS:
            raise ValueError(f"form {data['form']!r}")
        return LayerInfo(
            name=name,
            form=data["form"],
            facts={str(key): str(value) for key, value in data["facts"].items()},
            tree_sha256=str(data["tree_sha256"]),
            disk_bytes=int(data["disk_bytes"]),
            tree_bytes=int(data["tree_bytes"]),
            image_sha256=None if data["form"] == "tree" else str(data["image_sha256"]),
        )
    except FileNotFoundError as error:
        raise CacheError(f"layer {path.parent} is missing or incomplete") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(f"{path} is damaged ({error})") from error


def write_info(folder: Path, info: LayerInfo) -> None:
    """Write `layer.json` into a layer that is not published yet."""
    data = {
        "format": FORMAT,
        "form": info.form,
        "facts": dict(info.facts),
        "tree_sha256": info.tree_sha256,
        "disk_bytes": info.disk_bytes,
        "tree_bytes": info.tree_bytes,
    }
    if info.image_sha256 is not None:
        data["image_sha256"] = info.image_sha256
    (folder / LAYER_FILE).write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def list_layers(root: Path) -> list[str]:
    """Names of the layers that are whole."""
    folder = root / "layers"
    if not folder.is_dir():
        return []
    names = (entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    return sorted(name for name in names if has_layer(root, name))


def allocated_bytes(folder: Path) -> int:
    """What a directory tree takes on disk."""
    total = 0
    for path, _, files in os.walk(folder):
        total += sum(os.lstat(os.path.join(path, name)).st_blocks for name in files) * 512
        total += os.lstat(path).st_blocks * 512
    return total


def mark_stored(root: Path, name: str) -> None:
    """Note that a shared store holds the layer: it may be evicted and fetched again."""
    (layer_dir(root, name) / STORED).touch()


def unmark_stored(root: Path, name: str) -> None:
    """Note that no shared store is known to hold the layer any more: what is here may be the last copy."""
    if is_stored(root, check_name(name)):
        (layer_dir(root, name) / STORED).unlink(missing_ok=True)


def is_stored(root: Path, name: str) -> bool:
    """Whether a shared store is known to hold it."""
    return (layer_dir(root, name) / STORED).exists()


def set_aside(root: Path, name: str, reason: str) -> Path | None:
    """Move a damaged layer out of the way, for a person to look at; None when it is gone already.

    Sandboxes that are open over it keep what they have: a rename changes nothing for them."""
    place = root / "quarantine" / f"{name}.{time.time_ns()}"
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        layer_dir(root, name).rename(place)
    except FileNotFoundError:
        return None
    logger.warning("layer %s is damaged (%s): set aside as %s", name, reason, place)
    return place
