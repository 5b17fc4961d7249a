"""Files and directories that appear whole or not at all, also after a power cut."""

import ctypes
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def whole_file(path: Path) -> Generator[IO[bytes]]:
    """A file to write; readers see the old content until the block has ended well, then the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".tmp-{path.name[:64]}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that readers see whole: the old content until the rename, then the new."""
    with whole_file(path) as stream:
        stream.write(data)


def sync_filesystem(path: Path) -> None:
    """Write to disk all that is still in memory of the file system that holds `path`. Raises OSError.

    One call for thousands of files; an fsync of each would take many times longer. syncfs(2)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"syncfs of {path}: {os.strerror(error)}")
    finally:
        os.close(fd)
