"""A layer as one file and back: tar.zst, which any machine can unpack, or an image that root can mount.

The same tree gives the same bytes: entries in the order of their paths, one owner, one time stamp, a fixed
compressor setting. A tree has a digest of its own, over paths, kinds, modes and contents, that does not
depend on the form. Trees hold directories, regular files, symbolic links and overlayfs' whiteouts; anything
else is refused.
"""

import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import zstandard

from sandbox.errors import CacheError

FIXED_MTIME_S = 1_600_000_000
"""Time stamp of every cached file: digests, git's index and pyc files then never depend on the day."""
PackedForm = Literal["tar.zst", "squashfs", "erofs"]
Progress = Callable[[int], None]
"""Told how many bytes of files were packed since it was last told; from any thread."""
FORMS: tuple[PackedForm, ...] = ("tar.zst", "squashfs", "erofs")
LEVEL = 19
"""Of zstd: layers are packed once and fetched often."""
WINDOW_LOG = 27
"""128 MiB: what lies far apart in a tree is still found to be the same. The most that decoders take
unasked."""
CHUNK_BYTES = 1 << 20
_PACK_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """What a tree amounts to."""

    sha256: str
    """Digest of the content."""
    bytes: int
    """Bytes in regular files."""
    files: int
    """Entries."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    """Relative, with slashes."""
    kind: Literal["dir", "file", "link", "whiteout"]
    mode: int
    """Permission bits."""
    size_bytes: int
    """Of a file."""


def _entries(content: Path) -> Iterator[_Entry]:
    """Everything below `content`, a directory before what is in it. Raises CacheError for odd files."""
    pending = [""]
    while pending:
        folder = pending.pop()
        inside: list[_Entry] = []
        for item in os.scandir(content / folder):
            path = f"{folder}/{item.name}" if folder else item.name
            inside.append(_entry(path, item.stat(follow_symlinks=False)))
        inside.sort(key=lambda entry: os.fsencode(entry.path))
        yield from inside
        pending += [entry.path for entry in reversed(inside) if entry.kind == "dir"]


def _entry(path: str, info: os.stat_result) -> _Entry:
    mode = stat.S_IMODE(info.st_mode) & 0o777
    if stat.S_ISDIR(info.st_mode):
        return _Entry(path, "dir", mode, 0)
    if stat.S_ISREG(info.st_mode):
        return _Entry(path, "file", mode, info.st_size)
    if stat.S_ISLNK(info.st_mode):
        return _Entry(path, "link", 0o777, 0)
    if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
        return _Entry(path, "whiteout", 0, 0)
    raise CacheError(f"{path}: a layer holds directories, files and links, no devices, pipes or sockets")


def tree_facts(content: Path) -> TreeFacts:
    """Digest and size of a tree. Blocks: it reads all of it."""
    digest, total, count = hashlib.sha256(), 0, 0
    for entry in _entries(content):
        name = os.fsencode(entry.path)
        digest.update(b"%s %o %d %d\n" % (entry.kind.encode(), entry.mode, len(name), entry.size_bytes))
        digest.update(name)
        if entry.kind == "file":
            with open(content / entry.path, "rb", buffering=0) as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
        elif entry.kind == "link":
            target = os.fsencode(os.readlink(content / entry.path))
            digest.update(b"%d " % len(target) + target)
        total += entry.size_bytes
        count += 1
    return TreeFacts(digest.hexdigest(), total, count)


def pack(
    content: Path,
    form: PackedForm,
    target: Path,
    progress: Progress = lambda _: None,
    prefix: bytes = b"",
) -> None:
    """Write the tree as one file, which must not exist. Blocks: minutes for a large one. Raises CacheError.

    `prefix`: for tar.zst, the tar that is in front of it for whoever unpacks it too."""
    if form == "tar.zst":
        write_tar(content, target, progress=progress, prefix=prefix)
        return
    size = sum(entry.size_bytes for entry in _entries(content))  # refuses odd files
    program = {"squashfs": "mksquashfs", "erofs": "mkfs.erofs"}[form]
    found = shutil.which(program)
    if found is None:
        package = {"squashfs": "squashfs-tools", "erofs": "erofs-utils"}[form]
        raise CacheError(f"{program} is not installed (package {package}); use the form tar.zst")
    done = subprocess.run(
        _image_command(form, found, content, target), stdin=subprocess.DEVNULL, capture_output=True,
        timeout=_PACK_TIMEOUT_S, check=False, env={"PATH": os.defpath, "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode != 0:
        target.unlink(missing_ok=True)
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise CacheError(f"{program}: {lines[-1]}")
    progress(size)


def _image_command(form: PackedForm, program: str, content: Path, target: Path) -> list[str]:
    if form == "squashfs":
        return [
            program, str(content), str(target), "-comp", "zstd", "-Xcompression-level", "19", "-b", "256K",
            "-all-root", "-all-time", str(FIXED_MTIME_S), "-mkfs-time", str(FIXED_MTIME_S), "-no-xattrs",
            "-noappend", "-no-progress", "-quiet",
        ]  # fmt: skip
    # One uuid for all: by default it is random, and the bytes would differ each time.
    fixed = ["-T", str(FIXED_MTIME_S), "-U", "00000000-0000-0000-0000-000000000000"]
    return [program, "--quiet", "-zlz4hc,12", "-x-1", "--all-root", *fixed, str(target), str(content)]


def write_tar(
    content: Path,
    target: Path,
    *,
    level: int | None = None,
    progress: Progress = lambda _: None,
    prefix: bytes = b"",
) -> None:
    """The tree as tar.zst. One thread: with more, each would read the whole window before it, and the bytes
    would depend on how the work is cut. Layers are packed side by side instead."""
    settings = zstandard.ZstdCompressionParameters.from_level(  # pyright: ignore[reportUnknownMemberType]
        level or LEVEL, window_log=WINDOW_LOG, enable_ldm=True, write_checksum=True
    )  # fmt: skip
    compressor = zstandard.ZstdCompressor(compression_params=settings, dict_data=_dictionary(prefix))
    with open(target, "xb") as file, compressor.stream_writer(file, closefd=False) as packed:
        _write_entries(packed, content, progress)


def _dictionary(prefix: bytes) -> zstandard.ZstdCompressionDict | None:
    if not prefix:
        return None
    return zstandard.ZstdCompressionDict(prefix, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _write_entries(target: IO[bytes], content: Path, progress: Progress) -> None:
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK_BYTES) as tar:
        for entry in _entries(content):
            _add(tar, content, entry)
            progress(entry.size_bytes)


def tar_bytes(content: Path) -> bytes:
    """The tree as the tar that `write_tar` packs, in memory."""
    buffer = io.BytesIO()
    _write_entries(buffer, content, lambda _: None)
    return buffer.getvalue()


def untarred(stream: IO[bytes], prefix: bytes, limit_bytes: int) -> bytes:
    """The tar in a tar.zst, in memory. Raises CacheError when it is damaged, or larger than the limit."""
    reader = _decompressor(prefix).stream_reader(stream, closefd=False)
    try:
        data = reader.read(limit_bytes + 1)
    except zstandard.ZstdError as error:
        raise CacheError(f"it cannot be unpacked: {error}") from error
    if len(data) > limit_bytes:
        raise CacheError(f"it unpacks to more than {limit_bytes} bytes")
    return data


def _decompressor(prefix: bytes) -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(dict_data=_dictionary(prefix), max_window_size=1 << WINDOW_LOG)


def _add(tar: tarfile.TarFile, content: Path, entry: _Entry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.mode, info.mtime = entry.mode, FIXED_MTIME_S
    if entry.kind == "file":
        info.size = entry.size_bytes
        with open(content / entry.path, "rb") as file:
            tar.addfile(info, file)
        return
    info.type = {"dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "whiteout": tarfile.CHRTYPE}[entry.kind]
    if entry.kind == "link":
        info.linkname = os.readlink(content / entry.path)
    tar.addfile(info)


def unpack_tar(stream: IO[bytes], target: Path, prefix: bytes = b"") -> int:
    """Unpack a tar.zst below `target`, an empty directory; returns the bytes of its files.

    It may be damaged or hostile: nothing is made outside `target`, since every parent must be a directory
    made here before. Raises CacheError, or OSError when the disk is full."""
    reader = _decompressor(prefix).stream_reader(stream, closefd=False)
    made, total = {""}, 0
    try:
        with tarfile.open(fileobj=reader, mode="r|", bufsize=CHUNK_BYTES) as tar:
            for info in tar:
                _make(tar, info, target, made)
                total += info.size
        # The checksum of zstd stands at the end, after what tar wants to see.
        while reader.read(CHUNK_BYTES):
            pass
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise CacheError(f"it cannot be unpacked: {error}") from error
    for folder in made:
        os.utime(target / folder, (FIXED_MTIME_S, FIXED_MTIME_S))
    return total


def _make(tar: tarfile.TarFile, info: tarfile.TarInfo, target: Path, made: set[str]) -> None:
    parent, _, name = info.name.rpartition("/")
    if parent not in made or name in ("", ".", "..") or "\0" in info.name or info.name in made:
        raise CacheError(f"it holds the path {info.name!r}, which no layer has")
    path = os.path.join(target, info.name)
    if info.isdir():
        os.mkdir(path)
        os.chmod(path, info.mode & 0o777 | 0o700)
        made.add(info.name)
        return
    if info.issym():
        os.symlink(info.linkname, path)
    elif info.isreg():
        _write(tar, info, path)
    elif info.ischr() and (info.devmajor, info.devminor) == (0, 0):
        os.mknod(path, stat.S_IFCHR)
    else:
        raise CacheError(f"it holds {info.name!r}, which is no directory, file or link")
    os.utime(path, (FIXED_MTIME_S, FIXED_MTIME_S), follow_symlinks=False)


def _write(tar: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> None:
    source = tar.extractfile(info)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while source is not None and (chunk := source.read(CHUNK_BYTES)):
            view = memoryview(chunk)
            while view:
                view = view[os.write(fd, view) :]
        os.fchmod(fd, info.mode & 0o777)
    finally:
        os.close(fd)
