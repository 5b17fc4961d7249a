"""Looks at single entries of a sandbox's layers by descriptor, following no link; used by `sandbox.diff`.

Also says what never is part of a patch (caches of tools, compiled files, `.git`).
"""

import fnmatch
import os
import stat

_SKIPPED_DIRECTORIES = frozenset({
    ".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis",
})  # fmt: skip
_SKIPPED_FILES = ("*.pyc", "*.pyo")
_COMPARE_BYTES = 1 << 20


def open_below(directory: int, parts: list[str]) -> int | None:
    """Descend without following links; closes `directory`. None where the path does not exist."""
    for part in parts:
        try:
            child = os.open(
                part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
            )
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        finally:
            os.close(directory)
        directory = child
    return directory


def names_in(directory: int) -> list[str]:
    """Sorted."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def is_skipped(name: str, mode: int) -> bool:
    """Whether such a path never is in a patch."""
    if stat.S_ISDIR(mode):
        return name in _SKIPPED_DIRECTORIES
    return name == ".git" or any(fnmatch.fnmatchcase(name, pattern) for pattern in _SKIPPED_FILES)


def stat_in(directory: int, name: str) -> os.stat_result | None:
    """Of the entry itself; None when there is none."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def same_bytes(one: int, other: int, name: str) -> bool:
    """Whether both directories hold the same contents under the name."""
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
