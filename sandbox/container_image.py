"""Images made from layer directories, once for each content.

The engines' common archive format is written straight into `load`: one tar of the image for each layer,
bottom first, so that an engine stores what environments share once. Below them lies the skeleton of a root;
the host's /usr is bound in when a container starts, as in MiniSandbox. Overlay's marks (whiteouts, opaque
directories) become the archive format's, owners become root. Tars are deterministic, and an image's name is
the digest of their digests: what is there already is never made again.
"""

import asyncio
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from sandbox.container_engine import Engine
from sandbox.errors import SandboxStartError
from sandbox.marks import OPAQUE, has_attribute, is_whiteout

REPOSITORY = "localhost/minisandbox"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image specification, "Layer Filesystem Changeset"


class Images:
    """Image names by layers, for one engine and one event loop."""

    def __init__(self, engine: Engine, skeleton: Path) -> None:
        """`skeleton`: a directory with what lies below all layers."""
        self._engine = engine
        self._skeleton = skeleton
        self._digests: dict[Path, tuple[str, int]] = {}
        self._made: set[str] = set()
        self._lock = asyncio.Lock()

    async def of(self, layers: Sequence[Path]) -> str:
        """Name of the image with these layers, topmost first. Raises SandboxStartError or SandboxError."""
        order = [self._skeleton, *reversed(layers)]
        async with self._lock:  # the second of two equal ones finds the image made
            digests = [await self._digest(layer) for layer in order]
            key = hashlib.sha256("".join(digest for digest, _ in digests).encode()).hexdigest()
            name = f"{REPOSITORY}:{key[:40]}"
            if name not in self._made and not await self._engine.has_image(name):
                await self._engine.call(["load"], feed=lambda file: _write_image(file, name, order, digests))
            self._made.add(name)
            return name

    async def _digest(self, layer: Path) -> tuple[str, int]:
        """SHA-256 and size of a layer's tar; layers never change, so each is read once."""
        if layer not in self._digests:
            if not layer.is_dir():
                raise SandboxStartError(f"{layer} is no directory: containers need unpacked layers")
            self._digests[layer] = await asyncio.to_thread(_measure, layer)
        return self._digests[layer]


class _Digest(io.RawIOBase):
    """A file that is only counted."""

    def __init__(self) -> None:
        super().__init__()
        self.hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(cast(bytes, data))
        self.hash.update(view)
        self.size += len(view)
        return len(view)


def _measure(layer: Path) -> tuple[str, int]:
    counted = _Digest()
    write_layer(counted, layer)
    return counted.hash.hexdigest(), counted.size


def write_layer(file: io.RawIOBase | BinaryIO, layer: Path) -> None:
    """The tar of one layer."""
    with tarfile.open(fileobj=cast(BinaryIO, file), mode="w|", format=tarfile.PAX_FORMAT) as tar:
        linked: dict[tuple[int, int], str] = {}
        for directory, name, path in _entries(os.fsencode(layer), b""):
            _add(tar, directory, name, os.fsdecode(path), linked)


def _entries(top: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(directory outside, name, path inside) of everything, parents first, in order of names."""
    for name in sorted(os.listdir(top)):
        yield top, name, prefix + name
        below = os.path.join(top, name)
        if stat.S_ISDIR(os.lstat(below).st_mode):
            yield from _entries(below, prefix + name + b"/")


def _add(
    tar: tarfile.TarFile, directory: bytes, name: bytes, path: str, linked: dict[tuple[int, int], str]
) -> None:
    source = os.path.join(directory, name)
    status = os.lstat(source)
    entry = tarfile.TarInfo(path)
    entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
        if _is_opaque(source):
            tar.addfile(tarfile.TarInfo(f"{path}/{_OPAQUE}"))
    elif stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.fsdecode(os.readlink(source))
        tar.addfile(entry)
    elif _is_mark(directory, name, status):
        parent, _, last = path.rpartition("/")
        tar.addfile(tarfile.TarInfo(f"{parent}/{_WHITEOUT}{last}" if parent else _WHITEOUT + last))
    elif stat.S_ISREG(status.st_mode):
        first = linked.setdefault((status.st_dev, status.st_ino), path)
        if first != path:
            entry.type, entry.linkname = tarfile.LNKTYPE, first
            tar.addfile(entry)
            return
        entry.size = status.st_size
        with open(source, "rb") as content:
            tar.addfile(entry, content)
    # Devices, sockets and FIFOs have no meaning in an environment.


def _is_opaque(source: bytes) -> bool:
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return has_attribute(fd, OPAQUE)
    finally:
        os.close(fd)


def _is_mark(directory: bytes, name: bytes, status: os.stat_result) -> bool:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return is_whiteout(fd, os.fsdecode(name), status)
    finally:
        os.close(fd)


def _write_image(
    file: BinaryIO, name: str, order: Sequence[Path], digests: Sequence[tuple[str, int]]
) -> None:
    """The archive that `docker save` would write."""
    machine = os.uname().machine
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest, _ in digests]},
        }
    ).encode()  # fmt: skip
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    layers = [f"{digest}.tar" for digest, _ in digests]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": layers}]).encode()
    with tarfile.open(fileobj=file, mode="w|") as tar:
        written: set[str] = set()
        for layer, (digest, size) in zip(order, digests, strict=True):
            if digest in written:
                continue
            written.add(digest)
            entry = tarfile.TarInfo(f"{digest}.tar")
            entry.size = size
            _stream(tar, entry, layer)
        for member, data in ((config_name, config), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _stream(tar: tarfile.TarFile, entry: tarfile.TarInfo, layer: Path) -> None:
    """A layer's tar as a member, made as it is written: nothing is kept on disk beside the engine's own."""
    tar.addfile(entry)  # only the header: no content is given
    out = cast(BinaryIO, tar.fileobj)
    counted = _Counted(out)
    write_layer(counted, layer)
    if counted.size != entry.size:
        raise SandboxStartError(f"{layer} changed while an image of it was made")
    padding = -entry.size % tarfile.BLOCKSIZE
    out.write(bytes(padding))
    tar.offset += entry.size + padding


class _Counted(io.RawIOBase):
    """Passes on to another file and counts."""

    def __init__(self, out: BinaryIO) -> None:
        super().__init__()
        self._out = out
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(cast(bytes, data))
        self._out.write(view)
        self.size += len(view)
        return len(view)
