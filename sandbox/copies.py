"""Layers merged by copying, where no overlay can be mounted.

The topmost layer that has a name decides, as in an overlay. Contents are cloned where the file system shares
blocks (FICLONE) and copied byte by byte elsewhere, so that a write can never reach the layers. Hard links
would be cheaper and are not used: the inode stays the cache's own, and whoever owns it, which as an ordinary
user is the sandbox too, could write, truncate or chmod it there. Everything goes by descriptor and follows no
symbolic link, since a fork copies from a sandbox that is running. `Relocation` serves the mode without a
root of its own. ioctl_ficlone(2), overlayfs documentation.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.marks import OPAQUE, has_attribute, is_whiteout
from sandbox.snapshot import copy_data

_FICLONE = 0x40049409
_NO_CLONE = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EPERM, errno.ENOSYS)
_SMALL_BYTES = 256 << 10

Edit = Callable[[str, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Options:
    """How a tree is copied."""

    owner: int | None = None
    """User and group id of what is made; None leaves the caller's."""
    edit_file: Edit | None = None
    """(path, contents) -> contents, for small regular files."""
    edit_link: Edit | None = None
    """(path, target) -> target, for symbolic links."""


def open_directory(name: str, parent: int) -> int | None:
    """A directory below `parent`, never through a link; None when there is no such directory."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def names_of(sources: list[int]) -> list[str]:
    """Every name in any of the directories."""
    return sorted({name for source in sources for name in os.listdir(source)})


def owners_of(sources: list[int], name: str) -> tuple[list[int], os.stat_result | None]:
    """The directories called `name` that show through, topmost first (descriptors of the caller's), or, when
    the topmost is something else, no directories and its status with that of nothing else."""
    found: list[int] = []
    for source in sources:
        try:
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            hidden = found or is_whiteout(source, name, status)
            return found, None if hidden else status
        child = open_directory(name, source)
        if child is None:
            break
        found.append(child)
        if has_attribute(child, OPAQUE):
            break
    return found, None


def merge(sources: list[int], target: int, path: str = "", options: Options | None = None) -> None:
    """Copy what the directories show together, topmost first, into the directory `target`.

    Raises OSError (ENOSPC where it does not fit). Blocks."""
    chosen = options or Options()
    for name in names_of(sources):
        copy_name(sources, name, target, f"{path}/{name}", chosen)
    if sources:
        copy_attributes(sources[0], target, chosen)


def copy_name(sources: list[int], name: str, target: int, path: str, options: Options) -> None:
    """`merge` of one name."""
    directories, status = owners_of(sources, name)
    try:
        if directories:
            # Its final mode comes last: a read-only directory could not be filled.
            child = enter_directory(name, target)
            try:
                merge(directories, child, path, options)
            finally:
                os.close(child)
        elif status is not None:
            source = next(each for each in sources if _has(each, name))
            _copy_entry(source, name, status, target, path, options)
    finally:
        for fd in directories:
            os.close(fd)


def enter_directory(name: str, target: int) -> int:
    """A new directory in `target`, or the one that is there; OSError for anything else of that name."""
    try:
        os.mkdir(name, 0o700, dir_fd=target)
    except FileExistsError:
        pass  # the skeleton's: the mode of the layer is put on it
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)


def _has(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _copy_entry(
    source: int, name: str, status: os.stat_result, target: int, path: str, options: Options
) -> None:
    if stat.S_ISLNK(status.st_mode):
        text = os.fsencode(os.readlink(name, dir_fd=source))
        if options.edit_link:
            text = options.edit_link(path, text)
        _replace(name, target)
        os.symlink(text, os.fsencode(name), dir_fd=target)
        if options.owner is not None:
            os.chown(name, options.owner, options.owner, dir_fd=target, follow_symlinks=False)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)
    elif stat.S_ISREG(status.st_mode):
        _copy_file(source, name, target, path, options)
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(name, stat.S_IMODE(status.st_mode), dir_fd=target)
    # Sockets and devices have no meaning in a copy.


def _replace(name: str, target: int) -> None:
    try:
        os.unlink(name, dir_fd=target)
    except FileNotFoundError:
        return


def _copy_file(source: int, name: str, target: int, path: str, options: Options) -> None:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    reader = os.open(name, os.O_RDONLY | flags, dir_fd=source)
    try:
        _replace(name, target)
        writer = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=target)
        try:
            size = os.fstat(reader).st_size
            if options.edit_file and size <= _SMALL_BYTES:
                _write_all(writer, options.edit_file(path, os.pread(reader, size, 0)))
            elif not _clone(reader, writer):
                copy_data(reader, writer, size)
            copy_attributes(reader, writer, options)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _clone(reader: int, writer: int) -> bool:
    """Share the blocks until one side writes; False where the file system cannot."""
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
        return False
    return True


def copy_attributes(source: int, target: int, options: Options) -> None:
    """Give `target` the owner asked for, and the source's mode without set-id bits and its times."""
    status = os.fstat(source)
    if options.owner is not None:
        os.fchown(target, options.owner, options.owner)
    os.fchmod(target, stat.S_IMODE(status.st_mode) & 0o1777)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
