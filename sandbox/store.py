"""The shared store of layers: a folder (local, NFS) or an object store, through fsspec.

    <url>/store.json                     says that this is a store
    <url>/layers/<name>.json             manifest, written after the file it names
    <url>/layers/<name>.<digest>.<form>  the layer, one file named by its own digest
    <url>/envs/<key>.json                record of an environment
    <url>/bases/<name>.json              which layer others like it are packed against

Nothing is ever changed in place: two that push one layer at a time write the same file, or two files of
which the later manifest names one. No lock is needed, so none is taken. Who may write to the store decides
what runs in sandboxes; give nodes read access only. This module moves bytes; what they mean is in
`sandbox.store_fetch`.
"""

import errno
import hashlib
import io
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast, override

from sandbox.cache_files import whole_file, write_atomically
from sandbox.cache_layer import check_name
from sandbox.errors import CacheError, StoreAddressError
from sandbox.store_pack import CHUNK_BYTES, FORMS, PackedForm

FORMAT = 1
ATTEMPTS = 3
PAUSE_S = 0.2
_MARK = "store.json"
MANIFEST_REMEDY = "remove it: python launch/cache.py verify --in-store --repair; then push the layer again"
"""A push alone stops at a damaged manifest: it asks what the store holds."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a store says of one layer."""

    name: str
    """Kind and digest of the inputs."""
    form: PackedForm
    """How the file is packed."""
    file: str
    """Its name below `layers/`."""
    file_bytes: int
    """Its size."""
    file_sha256: str
    """Its digest, checked when it is fetched."""
    tree_sha256: str
    """Digest of the content, the same in every form."""
    tree_bytes: int
    """Bytes in the layer's files when unpacked."""
    facts: Mapping[str, str]
    """What went in, for people."""
    base: str = ""
    """Layer that the file is packed against, see `sandbox.store_base`; empty when it is packed whole."""
    base_sha256: str = ""
    """Digest of that layer's content."""

    def to_json(self) -> bytes:
        """As kept in the store."""
        return (json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()


def parse_manifest(name: str, data: bytes) -> Manifest:
    """Raises CacheError when it is none, or that of another layer."""
    try:
        found = cast(Mapping[str, Any], json.loads(data))
        if found["format"] != FORMAT or found["form"] not in FORMS or found["name"] != name:
            raise ValueError(f"format {found['format']!r}, form {found['form']!r}, name {found['name']!r}")
        return Manifest(
            name=check_name(name),
            form=found["form"],
            file=check_name(str(found["file"])),
            file_bytes=int(found["file_bytes"]),
            file_sha256=str(found["file_sha256"]),
            tree_sha256=str(found["tree_sha256"]),
            tree_bytes=int(found["tree_bytes"]),
            facts={str(key): str(value) for key, value in found["facts"].items()},
            base=check_name(str(found["base"])) if found.get("base") else "",
            base_sha256=str(found.get("base_sha256", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"the store's manifest of {name} is damaged ({error})"
        raise CacheError(f"{problem}; {MANIFEST_REMEDY}") from error


class Store:
    """One store. Cheap to make, safe between threads; asks nothing until it is used."""

    def __init__(self, url: str) -> None:
        """`url`: `file:///path`, `s3://bucket/prefix`, `memory://name`, or a plain path."""
        self.url = url
        self._opened: tuple[Any, str] | None = None

    def _fs(self) -> tuple[Any, str]:
        """The file system and the root in it."""
        if self._opened is None:
            # Here: importing it takes longer than a start, and most processes never fetch.
            url_to_fs: Callable[..., tuple[Any, str]] = import_module("fsspec.core").url_to_fs
            try:
                # A listing that is remembered would hide what another node has just pushed.
                self._opened = url_to_fs(self.url, use_listings_cache=False)
            except (ImportError, ValueError, TypeError) as error:
                raise StoreAddressError(f"the store {self.url} cannot be used: {error}") from error
        return self._opened

    def _call[T](self, what: str, action: Callable[[Any, str], T]) -> T:
        """Do something with the file system, again when it fails. FileNotFoundError goes through at once."""
        fs, root = self._fs()
        for attempt in range(ATTEMPTS):
            try:
                return action(fs, root)
            except (FileNotFoundError, CacheError):
                raise
            except Exception as error:  # each file system of fsspec has errors of its own library
                if attempt == ATTEMPTS - 1 or is_full(error):
                    raise CacheError(self._explain(what, error)) from error
                time.sleep(PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    def _explain(self, what: str, error: Exception) -> str:
        text = str(error) or type(error).__name__
        if is_full(error):
            return f"the store {self.url} is full ({what}: {text}); free space in it"
        return f"the store {self.url} does not answer ({what}: {text}); is it mounted and readable?"

    # -- reading

    def read(self, path: str) -> bytes | None:
        """A small file, or None when the store has none. Raises CacheError when there is no store."""
        try:
            return self._call(f"reading {path}", lambda fs, root: cast(bytes, fs.cat_file(f"{root}/{path}")))
        except FileNotFoundError:
            self.check()
            return None

    def check(self) -> None:
        """Raises CacheError unless there is a store: a share that is not mounted is an empty folder."""
        try:
            self._call(f"reading {_MARK}", lambda fs, root: fs.cat_file(f"{root}/{_MARK}"))
        except FileNotFoundError as error:
            raise CacheError(
                f"{self.url} is no store: not mounted, another address, or nothing was pushed to it yet "
                "(python launch/cache.py push)"
            ) from error

    def manifest(self, name: str) -> Manifest | None:
        """What is said of a layer; None when the store has none of that name."""
        data = self.read(f"layers/{check_name(name)}.json")
        return None if data is None else parse_manifest(name, data)

    def open_layer(self, manifest: Manifest) -> IO[bytes]:
        """The layer's file, for reading."""
        try:
            return self._call(
                f"opening {manifest.file}",
                lambda fs, root: cast(IO[bytes], fs.open(f"{root}/layers/{manifest.file}", "rb")),
            )
        except FileNotFoundError as error:
            raise CacheError(f"{self.url} lacks {manifest.file}; push {manifest.name} again") from error

    def names(self, folder: str) -> list[str]:
        """Names of the JSON files in `layers` or `envs`, without the ending."""
        self.check()
        try:
            found = self._call(
                f"listing {folder}", lambda fs, root: cast(list[str], fs.ls(f"{root}/{folder}", detail=False))
            )
        except FileNotFoundError:
            return []
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name[:-5] for name in names if name.endswith(".json") and not name.startswith("."))

    # -- writing

    def make(self) -> None:
        """Mark the place as a store; does nothing when it is one."""
        try:
            self.check()
        except CacheError:
            self.write(_MARK, json.dumps({"format": FORMAT}).encode())

    def write(self, path: str, data: bytes) -> None:
        """A small file; readers see the old one or the new one."""

        def action(fs: Any, root: str) -> None:
            if _is_local(fs):
                write_atomically(Path(f"{root}/{path}"), data)
            else:
                fs.pipe_file(f"{root}/{path}", data)

        self._call(f"writing {path}", action)

    def put_layer(self, manifest: Manifest, file: Path) -> None:
        """The file, then the manifest."""

        def action(fs: Any, root: str) -> None:
            target = f"{root}/layers/{manifest.file}"
            if fs.exists(target) and fs.size(target) == manifest.file_bytes:
                return
            if _is_local(fs):
                _copy_local(file, target)
            else:
                fs.put_file(str(file), target)

        self._call(f"writing {manifest.file}", action)
        self.write(f"layers/{manifest.name}.json", manifest.to_json())

    def forget_layer(self, name: str) -> None:
        """The manifest, then its files: the next push writes them anew."""

        def action(fs: Any, root: str) -> None:
            place = f"{root}/layers/{check_name(name)}"
            for path in (f"{place}.json", *fs.glob(f"{place}.*")):
                if fs.exists(path):
                    fs.rm_file(path)

        self._call(f"removing {name}", action)


def is_full(error: BaseException) -> bool:
    """Whether an error means that a disk, or the share of it that is ours, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_local(fs: Any) -> bool:
    protocol = fs.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def _copy_local(source: Path, target: str) -> None:
    with source.open("rb") as reader, whole_file(Path(target)) as writer:
        shutil.copyfileobj(reader, writer, CHUNK_BYTES)


class Checked(io.RawIOBase):
    """A stream that notes length and digest of what is read through it."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__()
        self._source = source
        self._digest = hashlib.sha256()
        self._bytes = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        """As `io.RawIOBase`. Raises CacheError when the store breaks off."""
        try:
            data = self._source.read(len(buffer))
        except Exception as error:  # each file system of fsspec has errors of its own library
            raise CacheError(f"the store broke off after {self._bytes} bytes: {error}") from error
        buffer[: len(data)] = data
        self._digest.update(data)
        self._bytes += len(data)
        return len(data)

    def drain(self) -> None:
        """Read what is left: a file longer than it should be has another digest."""
        while self.read(CHUNK_BYTES):
            pass

    def problem(self, manifest: Manifest) -> str:
        """What is wrong with all that was read; '' for nothing."""
        if self._bytes != manifest.file_bytes:
            return f"{self._bytes} bytes instead of {manifest.file_bytes}"
        if self._digest.hexdigest() != manifest.file_sha256:
            found, wanted = self._digest.hexdigest()[:16], manifest.file_sha256[:16]
            return f"its sha256 begins with {found} instead of {wanted}"
        return ""
