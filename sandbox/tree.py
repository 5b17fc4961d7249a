"""Files and directory trees as a stream of records, for copies into and out of a sandbox.

One side packs what it reads, the other unpacks, and both expect the worst of what they get: no link below the
top is followed, every name is one component opened relative to its directory, files that change or vanish
meanwhile are skipped, holes stay holes, devices, sockets and FIFOs are left out, set-id bits are dropped.
Used by the owner and by a sandbox's first process, therefore light on imports. Where the top is, and how it
is opened, is the caller's: `sandbox.files` and `sandbox.files_inside`.
"""

import errno
import os
import socket
import stat
import struct
from collections.abc import Callable
from typing import BinaryIO, cast

DEPTH_LIMIT = 256
ENTRY_LIMIT = 1_000_000
_CHUNK = 1 << 18
_HEADER = struct.Struct("!cIQ")
_OFFSET = struct.Struct("!Q")
_MODE_BITS = 0o777
_DIRECTORY, _UP, _FILE, _DATA, _END_FILE, _LINK, _FAILED, _DONE = (b"%c" % char for char in b"DUFCELXZ")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""What opening a name says when it is no longer what it was a moment ago."""


def writer(stream: socket.socket) -> BinaryIO:
    """A buffered file that writes to a stream."""
    return cast(BinaryIO, stream.makefile("wb", _CHUNK))


def reader(stream: socket.socket) -> BinaryIO:
    """A buffered file that reads from a stream."""
    return cast(BinaryIO, stream.makefile("rb", _CHUNK))


class Packer:
    """Writes records of one file or tree."""

    def __init__(self, out: BinaryIO, skipped_device: int | None = None) -> None:
        """`skipped_device`: directories on it (a /proc) are left out."""
        self._out = out
        self._skipped_device = skipped_device

    def pack(self, top: int) -> None:
        """Everything of an open file or directory. Raises ValueError for anything else and for what is too
        deep; the other side is told of every error."""
        try:
            status = os.fstat(top)
            if stat.S_ISDIR(status.st_mode):
                self._directory(top, b"", status, 0)
            elif stat.S_ISREG(status.st_mode):
                self._file(top, b"", status)
            else:
                raise ValueError("neither a regular file nor a directory")
            self._record(_DONE)
        except ConnectionError:
            raise
        except (OSError, ValueError) as error:
            number = (error.errno or errno.EIO) if isinstance(error, OSError) else 0
            text = error.strerror if isinstance(error, OSError) else str(error)
            self._record(_FAILED, number, (text or "").encode())
            raise
        finally:
            self._out.flush()

    def _record(self, kind: bytes, mode: int = 0, payload: bytes = b"") -> None:
        self._out.write(_HEADER.pack(kind, mode, len(payload)))
        self._out.write(payload)

    def _directory(self, fd: int, name: bytes, status: os.stat_result, depth: int) -> None:
        if depth > DEPTH_LIMIT:
            raise ValueError(f"more than {DEPTH_LIMIT} directories deep")
        self._record(_DIRECTORY, status.st_mode & _MODE_BITS, name)
        with os.scandir(fd) as entries:
            for entry in entries:
                self._entry(fd, entry.name, depth + 1)
        self._record(_UP)

    def _entry(self, directory: int, name: str, depth: int) -> None:
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                target = os.fsencode(os.readlink(name, dir_fd=directory))
                self._record(_LINK, 0, os.fsencode(name) + b"\0" + target)
                return
            if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
                return
            fd = os.open(name, _READ, dir_fd=directory)
        except OSError as error:
            if error.errno in _CHANGED or error.errno == errno.EINVAL:  # EINVAL: no link any more
                return
            raise
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                self._file(fd, os.fsencode(name), status)
            elif stat.S_ISDIR(status.st_mode) and status.st_dev != self._skipped_device:
                self._directory(fd, os.fsencode(name), status, depth)
        finally:
            os.close(fd)

    def _file(self, fd: int, name: bytes, status: os.stat_result) -> None:
        self._record(_FILE, status.st_mode & _MODE_BITS, name)
        size, offset = status.st_size, 0
        while offset < size:
            offset, end = _next_data(fd, offset, size)
            while offset < end:
                data = os.pread(fd, min(_CHUNK, end - offset), offset)
                if not data:
                    offset = size = end  # it became shorter
                    break
                self._record(_DATA, 0, _OFFSET.pack(offset) + data)
                offset += len(data)
        self._record(_END_FILE, 0, _OFFSET.pack(status.st_size))


def _next_data(fd: int, offset: int, size: int) -> tuple[int, int]:
    """Start and end of the next stretch that is no hole, lseek(2)."""
    try:
        start = os.lseek(fd, offset, os.SEEK_DATA)
        return min(start, size), min(os.lseek(fd, start, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size  # only a hole is left
        return offset, size  # a file system that knows no holes


class Unpacker:
    """Makes files from records, below one directory."""

    def __init__(
        self,
        source: BinaryIO,
        parent: int,
        name: bytes,
        *,
        limit_bytes: int | None = None,
        open_existing: Callable[[], int] | None = None,
    ) -> None:
        """The top becomes `name` in `parent`. `open_existing` opens a directory that is there already; with
        it files are replaced and directories filled up, without it nothing may exist."""
        self._source = source
        self._name = name
        self._left = limit_bytes
        self._limit = limit_bytes
        self._open_existing = open_existing
        self._directories: list[tuple[int, int]] = [(parent, -1)]
        self._entries = 0
        self.made_top = False
        """Whether the top was made, and not found."""

    def unpack(self) -> None:
        """Until the end of the stream. Raises OSError with the reason of the other side, or ValueError."""
        try:
            while self._one_record():
                continue
        finally:
            for fd, _ in self._directories[1:]:
                os.close(fd)

    def _next(self) -> tuple[bytes, int, bytes]:
        kind, mode, length = _HEADER.unpack(self._read(_HEADER.size))
        if length > 2 * _CHUNK:
            raise ValueError("a record is too long")
        return kind, mode & _MODE_BITS if kind != _FAILED else mode, self._read(length)

    def _read(self, length: int) -> bytes:
        data = self._source.read(length)
        if len(data) != length:
            raise EOFError("the copy ended too early")
        return data

    def _one_record(self) -> bool:
        kind, mode, payload = self._next()
        if kind == _DONE:
            return False
        if kind == _FAILED:
            text = payload.decode("utf-8", "replace")
            raise OSError(mode, os.strerror(mode)) if mode else ValueError(text)
        if kind == _UP and len(self._directories) > 1:
            fd, bits = self._directories.pop()
            try:
                if bits >= 0:
                    os.fchmod(fd, bits)
            finally:
                os.close(fd)
        elif kind in (_DIRECTORY, _FILE, _LINK):
            name, _, target = payload.partition(b"\0")
            self._make(kind, self._checked(name), mode, target)
        else:
            raise ValueError("records out of order")
        return True

    def _checked(self, name: bytes) -> bytes:
        if len(self._directories) == 1:
            if self._entries:
                raise ValueError("two tops")
            name = self._name
        self._entries += 1
        if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
            raise ValueError(f"{name!r} is no file name")
        if self._entries > ENTRY_LIMIT or len(self._directories) > DEPTH_LIMIT + 1:
            raise ValueError(f"more than {ENTRY_LIMIT} files, or {DEPTH_LIMIT} directories deep")
        return name

    def _take(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                raise ValueError(f"larger than {self._limit} bytes")

    def _make(self, kind: bytes, name: bytes, mode: int, target: bytes) -> None:
        parent = self._directories[-1][0]
        if kind == _DIRECTORY:
            self._make_directory(parent, name, mode)
            return
        if self._open_existing:
            try:
                os.unlink(name, dir_fd=parent)
            except FileNotFoundError:
                pass  # the usual case: nothing is replaced
        if kind == _LINK:
            self._take(len(target))
            os.symlink(target, name, dir_fd=parent)
            self.made_top = True
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=parent)
        self.made_top = True
        try:
            self._fill(fd)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def _make_directory(self, parent: int, name: bytes, mode: int) -> None:
        is_top = len(self._directories) == 1
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not self._open_existing:
                raise
            fd = self._open_existing() if is_top else os.open(name, flags, dir_fd=parent)
            self._directories.append((fd, -1))
            return
        self.made_top = True
        self._directories.append((os.open(name, flags, dir_fd=parent), mode))

    def _fill(self, fd: int) -> None:
        while True:
            kind, _, payload = self._next()
            if kind == _FAILED or len(payload) < _OFFSET.size:
                raise ValueError("the file could not be read to its end")
            (offset,) = _OFFSET.unpack_from(payload)
            view = memoryview(payload)[_OFFSET.size :]
            if kind == _END_FILE:
                os.ftruncate(fd, offset)
                return
            if kind != _DATA:
                raise ValueError("records out of order")
            self._take(len(view))
            while view:
                written = os.pwrite(fd, view, offset)
                view, offset = view[written:], offset + written
