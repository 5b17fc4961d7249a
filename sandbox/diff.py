"""What changed in a sandbox, read by us from its upper layer, as a git-format patch.

Nothing inside the sandbox runs for it and no symbolic link is followed. The upper layer tells which
paths changed (overlayfs: whiteouts and opaque directories mark deletions); the layers below hold the
old contents. Both states go into a throw-away object store by `git fast-import`, and `git diff`
between the two trees writes the patch: modes, links, binary files and odd names come out as git wants
them. The store has no work tree and no configuration, so neither attributes nor drivers apply.
"""

import fnmatch
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox import images
from sandbox.errors import SandboxError

_SKIPPED_DIRECTORIES = frozenset({
    ".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis",
})  # fmt: skip
_SKIPPED_FILES = ("*.pyc", "*.pyo")
_FILE_LIMIT_BYTES = 8 << 20
"""A larger file is left out: no fix of source code needs it."""
_TOTAL_LIMIT_BYTES = 64 << 20
_ENTRY_LIMIT = 50_000
_DEPTH_LIMIT = 100
"""What lies deeper is left out: each level costs a descriptor per layer and a frame of the stack."""
_COMPARE_BYTES = 1 << 20
_GIT_TIMEOUT_S = 120
_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
_WHITEOUT = ("user.overlay.whiteout", "trusted.overlay.whiteout")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file as git sees it."""

    mode: str
    """100644, 100755 or 120000."""
    data: bytes
    """Contents, or the target of a link."""


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


def make_patch(
    upper: int, layers: tuple[Path, ...], root: str, *, complete: bool = False, covered: Sequence[str] = ()
) -> str:
    """The patch of everything below `root`; empty when nothing changed. Blocks: call it in a thread.

    `complete`: `upper` is a whole tree, copied from the layers, and not only what was written since.
    `covered`: absolute paths inside on which something is mounted; what lies there is not looked at."""
    parts = [part for part in root.split("/") if part]
    hidden = [[part for part in path.split("/") if part] for path in covered]
    if any(parts[: len(path)] == path for path in hidden):
        return ""
    below = [_open_below(images.open_layer(str(layer)), parts) for layer in layers]
    top = _open_below(os.dup(upper), parts)
    lower = [fd for fd in below if fd is not None]
    try:
        if top is None:
            return ""
        below_root = ("/".join(path[len(parts) :]) for path in hidden if path[: len(parts)] == parts)
        changes = _Changes(os.fstat(top).st_dev if complete else None, frozenset(below_root))
        changes.walk(top, lower, "", 0)
        return changes.patch()
    finally:
        for fd in [*lower, *([] if top is None else [top])]:
            os.close(fd)


def _open_below(directory: int, parts: list[str]) -> int | None:
    """Descend without following links; closes `directory`. None where the path does not exist."""
    for part in parts:
        try:
            child = os.open(
                part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        finally:
            os.close(directory)
        directory = child
    return directory


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def _skipped(name: str, mode: int) -> bool:
    if stat.S_ISDIR(mode):
        return name in _SKIPPED_DIRECTORIES
    return name == ".git" or any(fnmatch.fnmatchcase(name, pattern) for pattern in _SKIPPED_FILES)


def _has_attribute(fd: int, names: tuple[str, ...]) -> bool:
    try:
        return any(name in names for name in os.listxattr(fd))
    except OSError:
        return False  # a file system without attributes holds no markers


def _is_whiteout(directory: int, name: str, status: os.stat_result) -> bool:
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if not (stat.S_ISREG(status.st_mode) and status.st_size == 0):
        return False
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return False
    try:
        return _has_attribute(fd, _WHITEOUT)
    finally:
        os.close(fd)


def _stat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _same_bytes(one: int, other: int, name: str) -> bool:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with (
            open(os.open(name, flags, dir_fd=one), "rb", buffering=0) as first,
            open(os.open(name, flags, dir_fd=other), "rb", buffering=0) as second,
        ):
            while True:
                chunk = first.read(_COMPARE_BYTES)
                if chunk != second.read(_COMPARE_BYTES):
                    return False
                if not chunk:
                    return True
    except OSError:
        return False  # replaced or closed to us meanwhile: looked at as any change


class _Changes:
    """Old and new state of every path that may differ."""

    def __init__(self, complete_on: int | None, covered: frozenset[str]) -> None:
        """`complete_on`: device of a tree that is complete; what is on another one is a mount, which nothing
        inside can have changed. `covered`: paths left out."""
        self._complete_on = complete_on
        self._covered = covered
        self._old: dict[str, _Entry] = {}
        self._new: dict[str, _Entry] = {}
        self._bytes = 0
        self._seen = 0

    def walk(self, upper: int, lower: list[int], prefix: str, depth: int) -> None:
        """Compare one directory of the upper layer with the directories it lies over, topmost first."""
        opaque = self._complete_on is not None or (depth > 0 and _has_attribute(upper, _OPAQUE))
        names = _names(upper)
        if opaque:
            for name in self._lower_names(lower):
                if name not in names:
                    self._take_old(lower, name, prefix)
        for name in names:
            status = _stat(upper, name)
            if (
                status is None
                or prefix + name in self._covered
                or _skipped(name, status.st_mode)
                or self._untouched(upper, lower, name, status)
            ):
                continue
            self._count()
            path = prefix + name
            if _is_whiteout(upper, name, status):
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
            old = _stat(directory, name)
            if old is not None:
                same_mode = (old.st_mode ^ status.st_mode) & (0o170000 | 0o100) == 0
                return same_mode and old.st_size == status.st_size and _same_bytes(upper, directory, name)
        return False

    def _walk_directory(self, upper: int, lower: list[int], name: str, path: str, depth: int) -> None:
        child = self._open_directory(upper, name) if depth < _DEPTH_LIMIT else None
        if child is None:
            return
        below = self._lower_directories(lower, name)
        try:
            if not below:
                self._take_old(lower, name, path[: -len(name)])  # a file became a directory
            self.walk(child, below, path + "/", depth + 1)
        finally:
            for fd in [child, *below]:
                os.close(fd)

    def _count(self) -> None:
        self._seen += 1
        if self._seen > _ENTRY_LIMIT:
            raise SandboxError(f"more than {_ENTRY_LIMIT} changed paths: no patch is made of that")

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
            status = _stat(directory, name)
            if status is None:
                continue
            child = self._open_directory(directory, name) if stat.S_ISDIR(status.st_mode) else None
            if child is None:
                break
            found.append(child)
            if _has_attribute(child, _OPAQUE):
                break
        return found

    @staticmethod
    def _lower_names(lower: list[int]) -> Iterator[str]:
        yield from sorted({name for directory in lower for name in _names(directory)})

    def _take_old(self, lower: list[int], name: str, prefix: str) -> None:
        """Record what the layers below show under `name`, a whole tree if it is a directory."""
        if prefix + name in self._covered:
            return
        for directory in lower:
            status = _stat(directory, name)
            if status is None:
                continue
            if _skipped(name, status.st_mode) or _is_whiteout(directory, name, status):
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
            self._count()
            entry = self._read(directory, name, status)
            if entry:
                self._old[prefix + name] = entry
            return

    def _take_new(self, directory: int, name: str, path: str, status: os.stat_result) -> None:
        entry = self._read(directory, name, status)
        if entry is None:
            self._old.pop(path, None)
        elif self._old.get(path) == entry:
            del self._old[path]  # copied up, by chmod or touch, and otherwise as it was
        else:
            self._new[path] = entry

    def _read(self, directory: int, name: str, status: os.stat_result) -> _Entry | None:
        if stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=directory))
            # git has no binary form for links, and a patch is text: such a link is left out.
            return _Entry("120000", target) if _is_utf8(target) else None
        if not stat.S_ISREG(status.st_mode) or status.st_size > _FILE_LIMIT_BYTES:
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            data = read_regular(os.open(name, flags, dir_fd=directory), name, _FILE_LIMIT_BYTES)
        except (OSError, ValueError):
            return None  # replaced since it was listed
        self._bytes += len(data)
        if self._bytes > _TOTAL_LIMIT_BYTES:
            raise SandboxError(f"changes of more than {_TOTAL_LIMIT_BYTES} bytes: no patch is made of that")
        return _Entry("100755" if status.st_mode & 0o100 else "100644", data)

    def patch(self) -> str:
        """Let git write the difference."""
        if not self._old and not self._new:
            return ""
        with tempfile.TemporaryDirectory(prefix="minisandbox-diff-") as directory:
            store = Path(directory)
            (store / "objects").mkdir()
            (store / "refs").mkdir()
            (store / "info").mkdir()
            (store / "HEAD").write_text("ref: refs/heads/none\n")
            (store / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
            (store / "info" / "attributes").write_bytes(self._attributes())
            stream = _commit("old", self._old) + _commit("new", self._new)
            _git(store, ["fast-import", "--quiet", "--force"], stream)
            arguments = ["diff", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"]
            text = _git(store, [*arguments, "refs/heads/old", "refs/heads/new", "--"], b"")
        return text.decode("utf-8")

    def _attributes(self) -> bytes:
        """Files that are not UTF-8 go as binary patches, so that the patch is always text."""
        lines: list[bytes] = []
        for path in {**self._old, **self._new}:
            texts = [entry.data for entry in (self._old.get(path), self._new.get(path)) if entry]
            if not all(_is_utf8(text) for text in texts):
                escaped = "".join("\\" + char if char in "\\*?[" else char for char in path)
                lines.append(_quote("/" + escaped) + b" -text -diff\n")
        return b"".join(lines)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _quote(path: str) -> bytes:
    """A path as a C-style quoted string, as git's formats take it."""
    quoted = b"".join(
        bytes([byte]) if 0x20 <= byte < 0x7F and byte not in b'"\\' else b"\\%03o" % byte
        for byte in os.fsencode(path)
    )
    return b'"' + quoted + b'"'


def _commit(branch: str, entries: dict[str, _Entry]) -> bytes:
    parts = [f"commit refs/heads/{branch}\ncommitter x <x> 0 +0000\ndata 0\ndeleteall\n".encode()]
    for path, entry in entries.items():
        parts.append(b"M %s inline %s\ndata %d\n" % (entry.mode.encode(), _quote(path), len(entry.data)))
        parts.append(entry.data + b"\n")
    return b"".join(parts)


def _git(store: Path, arguments: list[str], data: bytes) -> bytes:
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_DIR": str(store),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "HOME": str(store),
        "LC_ALL": "C",
    }
    done = subprocess.run(
        ["git", "-c", "core.attributesFile=/dev/null", *arguments],
        input=data, env=env, cwd=store, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SandboxError(f"git {arguments[0]}: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout
