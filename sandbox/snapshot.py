"""A copy of a sandbox's writable files as the start of another one's: what `Sandbox.fork` is made of.

Runs in the new sandbox's first process before its root is made, over descriptors, so no path of the host is
ever followed. Overlay's own marks are copied as they are: whiteouts (character device 0/0) and `user.*`
attributes, overlayfs documentation "userxattr". Processes, sockets and open files are not copied.
"""

import os
import stat

_COPIED = ("upper", "tmp", "shm")
_CHUNK = 8 << 20


def copy_writable(source: int, target: str) -> None:
    """Copy the parts of a writable area, given by descriptor, into the empty one at `target`.

    Raises OSError (ENOSPC where it does not fit) and RecursionError for trees nested beyond reason."""
    target_root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in _COPIED:
            # Beside a disk upper there is no /dev/shm, which stays in memory and is not copied then.
            if name not in os.listdir(source):
                continue
            copier = _Copier(target_root)
            from_directory = _open_directory(name, source)
            to_directory = _open_directory(name, target_root)
            try:
                copier.copy_directory(from_directory, to_directory, name)
            finally:
                os.close(from_directory)
                os.close(to_directory)
    finally:
        os.close(target_root)


def _open_directory(name: str, parent: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


class _Copier:
    """One copy; knows the files with several names that it met."""

    def __init__(self, target_root: int) -> None:
        self._root = target_root
        self._linked: dict[int, str] = {}
        """Inode -> path of its first copy, relative to the target's root."""

    def copy_directory(self, source: int, target: int, path: str) -> None:
        """All entries, then the directory's own attributes, which adding entries would change."""
        with os.scandir(source) as entries:
            for entry in entries:
                self._copy(entry, source, target, f"{path}/{entry.name}")
        _copy_attributes(source, target)

    def _copy(self, entry: os.DirEntry[str], source: int, target: int, path: str) -> None:
        name = entry.name
        status = entry.stat(follow_symlinks=False)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(name, 0o700, dir_fd=target)
            from_directory, to_directory = _open_directory(name, source), _open_directory(name, target)
            try:
                self.copy_directory(from_directory, to_directory, path)
            finally:
                os.close(from_directory)
                os.close(to_directory)
            return
        if status.st_nlink > 1 and not stat.S_ISLNK(mode):
            first = self._linked.setdefault(status.st_ino, path)
            if first != path:
                os.link(first, name, src_dir_fd=self._root, dst_dir_fd=target, follow_symlinks=False)
                return
        if stat.S_ISREG(mode):
            _copy_file(name, source, target)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            _set_times(name, target, status)
        elif stat.S_ISFIFO(mode):
            os.mkfifo(name, stat.S_IMODE(mode), dir_fd=target)
        elif stat.S_ISCHR(mode):
            # Only whiteouts can be made by an unprivileged root, mknod(2): so only they can be met here.
            os.mknod(name, mode, status.st_rdev, dir_fd=target)


def _copy_file(name: str, source: int, target: int) -> None:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    reader = os.open(name, os.O_RDONLY | flags, dir_fd=source)
    try:
        writer = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=target)
        try:
            copy_data(reader, writer, os.fstat(reader).st_size)
            _copy_attributes(reader, writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def copy_data(reader: int, writer: int, size: int) -> None:
    """Copy `size` bytes, only what is there: a sparse file of a terabyte stays one."""
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(reader, offset, os.SEEK_DATA)
        except OSError:
            break  # ENXIO: only a hole is left
        end = os.lseek(reader, offset, os.SEEK_HOLE)
        os.lseek(writer, offset, os.SEEK_SET)
        while offset < end:
            sent = os.sendfile(writer, reader, offset, min(_CHUNK, end - offset))
            if not sent:
                break
            offset += sent
    os.ftruncate(writer, size)


def _copy_attributes(source: int, target: int) -> None:
    for attribute in os.listxattr(source):
        if attribute.startswith("user."):
            os.setxattr(target, attribute, os.getxattr(source, attribute))
    status = os.fstat(source)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _set_times(name: str, directory: int, status: os.stat_result) -> None:
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
