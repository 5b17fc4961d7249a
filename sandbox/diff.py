"""What changed in a sandbox, read by us from its upper layer, as a git-format patch.

Nothing inside the sandbox runs for it and no symbolic link is followed. The upper layer tells which
paths changed (overlayfs: whiteouts and opaque directories mark deletions); the layers below hold the
old contents; `sandbox.diff_git` writes the patch. What cannot or may not be in a patch (huge files, more
than the limits allow, devices) is left out of it and named, never an error: debris must not lose a rollout.
"""

import heapq
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox import images
from sandbox.diff_git import Entry, is_utf8, write_patch
from sandbox.diff_look import (
    is_skipped,
    names_in,
    open_below,
    same_bytes,
    stat_in,
)
from sandbox.marks import OPAQUE, has_attribute, is_whiteout
from sandbox.types import Changes

_FILE_LIMIT_BYTES = 8 << 20
"""A larger file is left out: no fix of source code needs it."""
_TOTAL_LIMIT_BYTES = 64 << 20
_ENTRY_LIMIT = 50_000
_TOO_MANY = f"more than {_ENTRY_LIMIT} changed paths"
_DEPTH_LIMIT = 100
"""What lies deeper is left out: each level costs a descriptor per layer and a frame of the stack."""
_REPORTED_LIMIT = 1000
"""Most paths that are named as left out; the others are counted."""


def read_regular(fd: int, path: str, limit_bytes: int) -> bytes:
    """Read a descriptor that must be a regular file of at most `limit_bytes`; closes it."""
    with open(fd, "rb", closefd=True, buffering=0) as file:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(path)
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path} is not a regular file")
        chunks: list[bytes] = []
        left = limit_bytes + 1
        while left > 0 and (chunk := file.read(min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
        if left == 0:
            raise ValueError(f"{path} is larger than {limit_bytes} bytes")
        return b"".join(chunks)


def find_changes(
    upper: int,
    layers: tuple[Path, ...],
    root: str,
    *,
    complete: bool = False,
    covered: Sequence[str] = (),
    scratch: Path | None = None,
) -> Changes:
    """Everything that changed below `root`. Blocks: call it in a thread.

    `complete`: `upper` is a whole tree, copied from the layers, and not only what was written since.
    `covered`: absolute paths inside on which something is mounted; what lies there is not looked at.
    `scratch`: where temporary files may lie, best where the owner's leftovers are looked for."""
    parts = [part for part in root.split("/") if part]
    hidden = [[part for part in path.split("/") if part] for path in covered]
    if any(parts[: len(path)] == path for path in hidden):
        return Changes("")
    below = [open_below(images.open_layer(str(layer)), parts) for layer in layers]
    top = open_below(os.dup(upper), parts)
    lower = [fd for fd in below if fd is not None]
    try:
        if top is None:
            return Changes("")
        below_root = ("/".join(path[len(parts) :]) for path in hidden if path[: len(parts)] == parts)
        found = _Finder(os.fstat(top).st_dev if complete else None, frozenset(below_root))
        found.walk(top, lower, "", 0)
        found.walk_new(top)
        return found.changes(scratch)
    finally:
        for fd in [*lower, *([] if top is None else [top])]:
            os.close(fd)


class _Finder:
    """Old and new state of every path that may differ."""

    def __init__(self, complete_on: int | None, covered: frozenset[str]) -> None:
        """`complete_on`: device of a tree that is complete; what is on another one is a mount, which nothing
        inside can have changed. `covered`: paths left out."""
        self._complete_on = complete_on
        self._covered = covered
        self._old: dict[str, Entry] = {}
        self._new: dict[str, Entry] = {}
        self._left_out: dict[str, str] = {}
        self._unnamed = 0
        self._sizes: list[tuple[int, str]] = []
        self._bytes = 0
        self._seen = 0
        self._new_directories: deque[tuple[str, int]] = deque()

    def walk(self, upper: int, lower: list[int], prefix: str, depth: int) -> None:
        """Compare one directory of the upper layer with the directories it lies over, topmost first."""
        opaque = self._complete_on is not None or (depth > 0 and has_attribute(upper, OPAQUE))
        names = names_in(upper)
        if opaque:
            for name in self._lower_names(lower):
                if name not in names:
                    self._take_old(lower, name, prefix)
        for name in names:
            status = stat_in(upper, name)
            if (
                status is None
                or prefix + name in self._covered
                or is_skipped(name, status.st_mode)
                or self._untouched(upper, lower, name, status)
            ):
                continue
            path = prefix + name
            if not self._counted():
                self._one_too_many(path)
                continue
            if is_whiteout(upper, name, status):
                self._take_old(lower, name, prefix)
            elif stat.S_ISDIR(status.st_mode):
                self._walk_directory(upper, lower, name, path, depth)
            else:
                self._take_old(lower, name, prefix)
                self._take_new(upper, name, path, status)

    def _untouched(self, upper: int, lower: list[int], name: str, status: os.stat_result) -> bool:
        """In a complete tree: a mount, or a file that is as the topmost layer has it. Times tell nothing, for
        they can be set back, so contents are compared."""
        if self._complete_on is None:
            return False
        if status.st_dev != self._complete_on:
            return True
        if not stat.S_ISREG(status.st_mode):
            return False
        for directory in lower:
            old = stat_in(directory, name)
            if old is not None:
                same_mode = (old.st_mode ^ status.st_mode) & (0o170000 | 0o100) == 0
                return same_mode and old.st_size == status.st_size and same_bytes(upper, directory, name)
        return False

    def _walk_directory(self, upper: int, lower: list[int], name: str, path: str, depth: int) -> None:
        if depth >= _DEPTH_LIMIT:
            self._leave_out(path, f"deeper than {_DEPTH_LIMIT} directories")
            return
        child = self._open_directory(upper, name)
        if child is None:
            self._leave_out(path, "cannot be opened")
            return
        below = self._lower_directories(lower, name)
        try:
            if below:
                self.walk(child, below, path + "/", depth + 1)
            else:
                self._take_old(lower, name, path[: -len(name)])  # a file became a directory
                self._new_directories.append((path, depth + 1))
        finally:
            for fd in [child, *below]:
                os.close(fd)

    def walk_new(self, top: int) -> None:
        """Directories that no layer has, once all else is known: debris must not displace the change."""
        while self._new_directories:
            path, depth = self._new_directories.popleft()
            child = open_below(os.dup(top), path.split("/"))
            if child is None:
                self._leave_out(path, "cannot be opened")
                continue
            try:
                self.walk(child, [], path + "/", depth)
            finally:
                os.close(child)

    def _counted(self) -> bool:
        """Whether there is room for one more path."""
        self._seen += 1
        return self._seen <= _ENTRY_LIMIT

    def _one_too_many(self, path: str) -> None:
        if len(self._left_out) < _ENTRY_LIMIT:
            self._leave_out(path, _TOO_MANY)
        else:
            self._unnamed += 1  # nothing else is asked about a path that was never looked at

    def _leave_out(self, path: str, reason: str) -> None:
        self._old.pop(path, None)
        self._new.pop(path, None)
        self._left_out.setdefault(path, reason)

    @staticmethod
    def _open_directory(directory: int, name: str) -> int | None:
        try:
            return os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
            )
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None  # removed or replaced since it was listed, or closed to an ordinary user

    def _lower_directories(self, lower: list[int], name: str) -> list[int]:
        """The directories called `name`, down to where something else hides the ones below."""
        found: list[int] = []
        for directory in lower:
            status = stat_in(directory, name)
            if status is None:
                continue
            child = self._open_directory(directory, name) if stat.S_ISDIR(status.st_mode) else None
            if child is None:
                break
            found.append(child)
            if has_attribute(child, OPAQUE):
                break
        return found

    @staticmethod
    def _lower_names(lower: list[int]) -> Iterator[str]:
        yield from sorted({name for directory in lower for name in names_in(directory)})

    def _take_old(self, lower: list[int], name: str, prefix: str) -> None:
        """Record what the layers below show under `name`, a whole tree if it is a directory."""
        if prefix + name in self._covered:
            return
        for directory in lower:
            status = stat_in(directory, name)
            if status is None:
                continue
            if is_skipped(name, status.st_mode) or is_whiteout(directory, name, status):
                return
            if stat.S_ISDIR(status.st_mode):
                children = self._lower_directories(lower, name)
                try:
                    for child in self._lower_names(children):
                        self._take_old(children, child, f"{prefix}{name}/")
                finally:
                    for fd in children:
                        os.close(fd)
                return
            path = prefix + name
            if not self._counted():
                self._leave_out(path, _TOO_MANY)
            elif entry := self._read(directory, name, path, status):
                self._old[path] = entry
            return

    def _take_new(self, directory: int, name: str, path: str, status: os.stat_result) -> None:
        entry = self._read(directory, name, path, status)
        if entry is None or path in self._left_out:
            self._old.pop(path, None)
        elif self._old.get(path) == entry:
            del self._old[path]  # copied up, by chmod or touch, and otherwise as it was
        else:
            self._new[path] = entry

    def _read(self, directory: int, name: str, path: str, status: os.stat_result) -> Entry | None:
        """None for what is left out."""
        if stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=directory))
            if is_utf8(target):
                return Entry("120000", target)
            # git has no binary form for links, and a patch is text.
            return self._leave_out(path, "a link whose target is not UTF-8")
        if not stat.S_ISREG(status.st_mode):
            return self._leave_out(path, "neither a file nor a link")
        if status.st_size > _FILE_LIMIT_BYTES:
            return self._leave_out(path, f"larger than {_FILE_LIMIT_BYTES} bytes")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            data = read_regular(os.open(name, flags, dir_fd=directory), name, _FILE_LIMIT_BYTES)
        except (OSError, ValueError):
            return self._leave_out(path, "cannot be read, or was replaced meanwhile")
        self._bytes += len(data)
        heapq.heappush(self._sizes, (-len(data), path))
        self._keep_within_total()
        if path in self._left_out:
            return None
        return Entry("100755" if status.st_mode & 0o100 else "100644", data)

    def _keep_within_total(self) -> None:
        """The largest files go first, so that a fix stays beside whatever a build left."""
        while self._bytes > _TOTAL_LIMIT_BYTES:
            size, path = heapq.heappop(self._sizes)
            self._bytes += size
            self._leave_out(path, f"the largest of changes of more than {_TOTAL_LIMIT_BYTES} bytes")

    def changes(self, scratch: Path | None) -> Changes:
        """The patch, and what is not in it."""
        blocked = set(self._left_out) | {parent for path in self._left_out for parent in _parents(path)}
        for path in list(self._new):
            if path in blocked or any(parent in self._left_out for parent in _parents(path)):
                self._leave_out(path, "lies where something left out does")
        named = sorted(self._left_out.items(), key=lambda item: (item[0].count("/"), item[0]))
        named = named[:_REPORTED_LIMIT]
        more = len(self._left_out) - len(named) + self._unnamed
        if more:
            named.append(("…", f"and {more} more"))
        return Changes(write_patch(self._old, self._new, scratch), tuple(named))


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
