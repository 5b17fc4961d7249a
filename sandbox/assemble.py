"""The root of a sandbox where no overlay can be mounted: layers copied into its writable area.

Runs in the sandbox's first process, before its root is entered. What commands are meant to write (the working
directory and the usual places) and what several layers share is copied, contents by reference where the file
system can. A tree that one layer alone provides may be bound instead, read-only, which costs nothing and no
write gets through; hard links are never used, see `sandbox.copies`. A lone tree is taken as it is: overlay's
own marks in it, which would have nothing to hide, are not looked for.
"""

import errno
import os
from typing import NamedTuple

from sandbox import copies, syscalls

WRITABLE = ("/tmp", "/root", "/home", "/var", "/etc", "/run")
"""Always copied, whatever the working directory is."""
_MOST_BINDS = 128
_MOST_LINKS = 40


class Plan(NamedTuple):
    """What is made of which layers."""

    layers: list[str]
    """Directories, topmost first; the last one is the skeleton."""
    own: list[str]
    """Absolute paths inside that must be writable or hold mounts."""
    covered: list[str]
    """Absolute paths inside on which something is mounted: contents of the layers there are left out."""
    bind: bool
    """Whether trees may be bound."""
    filled: bool
    """The target has its files already (a fork): nothing is copied, only binds are found."""


def fill(target: int, plan: Plan) -> list[tuple[int, str]]:
    """Fill the directory `target`; returns detached trees, to be mounted read-only at the paths given.

    Raises OSError (ENOSPC where it does not fit)."""
    sources = [os.open(layer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for layer in plan.layers]
    filler = _Filler(plan)
    try:
        filler.directory(sources, -1 if plan.filled else target, "")
        return filler.trees
    except OSError as error:
        for tree, _ in filler.trees:
            os.close(tree)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = "the copy of the layers does not fit into disk_bytes (no overlay here, so they are copied)"
            raise OSError(error.errno, text) from error
        raise
    finally:
        for fd in sources:
            os.close(fd)


class _Filler:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._covered = {_resolve(plan.layers, path) for path in plan.covered}
        self._own = (*WRITABLE, *(_resolve(plan.layers, path) for path in plan.own), *self._covered)
        self.trees: list[tuple[int, str]] = []

    def directory(self, sources: list[int], target: int, path: str) -> None:
        """Everything that the sources show together, topmost first. `target` is -1 in a filled root."""
        for name in copies.names_of(sources):
            directories, status = copies.owners_of(sources, name)
            try:
                if directories:
                    self._subdirectory(directories, name, target, f"{path}/{name}")
                elif status is not None and target >= 0:
                    copies.copy_name(sources, name, target, f"{path}/{name}", copies.Options())
            finally:
                for fd in directories:
                    os.close(fd)
        if target >= 0:
            copies.copy_attributes(sources[0], target, copies.Options())

    def _subdirectory(self, directories: list[int], name: str, target: int, path: str) -> None:
        child = -1 if target < 0 else copies.enter_directory(name, target)
        try:
            if path in self._covered:
                if child >= 0:
                    copies.copy_attributes(directories[0], child, copies.Options())
            elif self._may_bind(directories, path):
                # Through the descriptor: nothing of the path is walked again.
                self.trees.append((syscalls.open_tree(f"proc/self/fd/{directories[0]}"), path))
            else:
                self.directory(directories, child, path)
        finally:
            if child >= 0:
                os.close(child)

    def _may_bind(self, directories: list[int], path: str) -> bool:
        if not self._plan.bind or len(directories) != 1 or len(self.trees) >= _MOST_BINDS:
            return False
        if any(_is_below(path, own) or _is_below(own, path) for own in self._own):
            return False
        skeleton = _status(self._plan.layers[-1] + path)
        return skeleton is None or not os.path.samestat(skeleton, os.fstat(directories[0]))


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _resolve(layers: list[str], path: str) -> str:
    """Where an absolute path leads inside, if the layers have symbolic links on the way."""
    done, todo, links = "", path.split("/"), 0
    while todo:
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = os.path.dirname(done).rstrip("/")
            continue
        places = (f"{layer}{done}/{part}" for layer in layers)
        place = next((each for each in places if _status(each)), "")
        if place and os.path.islink(place) and links < _MOST_LINKS:
            links += 1
            target = os.readlink(place)
            done, todo = ("" if target.startswith("/") else done), [*target.split("/"), *todo]
        else:
            done = f"{done}/{part}"
    return done or "/"
