"""How sandboxes get their root here: over an overlay, or by copies; found out by doing it once.

The helper calls `choose` when it starts. A forked child with the ids of a sandbox mounts an overlay over the
very file systems that sandboxes will use and removes and remakes a directory in it, for which an upper layer
needs attributes: tmpfs has them since Linux 6.6. Versions are never asked. overlayfs documentation.
"""

import errno
import os
from typing import TYPE_CHECKING, Literal, NamedTuple

from sandbox import namespaces, syscalls

if TYPE_CHECKING:
    from sandbox.stage import Stage, Tree

Mode = Literal["overlay", "copies", "extract"]
"""`overlay`: layers shared below a private upper. `copies`: what commands may write is copied, trees of one
layer alone are bound read-only. `extract`: all of the layers is copied."""

MODES: tuple[Mode, ...] = ("overlay", "copies", "extract")
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV


class MarksError(OSError):
    """An overlay can be mounted here, but its upper layer cannot mark what was removed."""


class Way(NamedTuple):
    """What was chosen."""

    mode: Mode
    """How roots are made."""
    upper: Literal["tmpfs", "disk"]
    """Where what is written goes when the request says tmpfs."""
    reason: str
    """Why not the best way, or ''."""


def mount(lower: str) -> None:
    """Mount the overlay of the working directory: `upper/upper` over `lower` at `root`."""
    # userxattr: unprivileged in the first user namespace, only user.* attributes can mark opaque directories.
    options = f"userxattr,lowerdir={lower},upperdir=upper/upper,workdir=upper/work"
    syscalls.mount("overlay", "root", "overlay", _FLAGS, options)


def exercise(lower: str = "") -> None:
    """Make, mount and try an overlay over `lower` and a directory of its own, in the working directory, which
    has `root` and an empty `upper` to write to. Raises MarksError, or OSError when it cannot be mounted."""
    for name in ("upper/upper", "upper/work", "upper/lower/dir/below"):
        os.makedirs(name)
    mount(":".join(part for part in ("upper/lower", lower) if part))
    try:
        os.rmdir("root/dir/below")
        os.rmdir("root/dir")
        os.mkdir("root/dir")
        if os.listdir("root/dir"):
            raise OSError("a removed directory comes back")
    except OSError as error:
        text = f"removed directories cannot be marked: {error.strerror or error}"
        raise MarksError(error.errno or errno.EIO, text) from error


def choose(wanted: str, stage: "Stage", state: str, userns: int) -> Way:
    """The best way that works, or the one that is wanted. `userns`: a user namespace with shifted ids, or -1.

    Raises OSError when an overlay is wanted and cannot be had."""
    way = _choose(wanted, stage, state, userns)
    if way.mode != "overlay":
        # Here, for no sandbox can import, and not always: what is loaded is in every sandbox's memory.
        from sandbox import assemble as _  # noqa: F401
    return way


def _choose(wanted: str, stage: "Stage", state: str, userns: int) -> Way:
    if wanted == "copies" or wanted == "extract":
        return Way(wanted, "tmpfs", "asked for")
    problem = _attempt(stage, "", userns)
    if not problem:
        return Way("overlay", "tmpfs", "")
    disk = os.path.join(state, "disk-probe")
    os.mkdir(disk, 0o700)
    try:
        if userns >= 0:
            os.chown(disk, namespaces.SHIFT_BASE, namespaces.SHIFT_BASE)
        if not _attempt(stage, disk, userns):
            return Way("overlay", "disk", f"overlay on tmpfs: {problem}")
    finally:
        _remove(disk)
    if wanted == "overlay":
        raise OSError(f"no overlay here: {problem}")
    return Way("copies", "tmpfs", f"no overlay here: {problem}")


def _remove(directory: str) -> None:
    for path, _, _ in os.walk(directory):
        os.chmod(path, 0o700)  # overlay leaves a closed one
    for path, directories, files in os.walk(directory, topdown=False):
        for name in files:
            os.unlink(os.path.join(path, name))
        for name in directories:
            os.rmdir(os.path.join(path, name))
    os.rmdir(directory)


def _attempt(stage: "Stage", disk: str, userns: int) -> str:
    """What goes wrong with an upper layer on tmpfs, or in the directory `disk`; '' for nothing."""
    trees = [*stage.fixed(userns, network=False), *([stage.disk(disk)] if disk else [])]
    attached: list[str] = []
    os.chdir(stage.directory)
    try:
        for tree, slot in trees:
            syscalls.move_mount(tree, slot)
            attached.append(slot)
        return _in_child(trees[-1] if disk else None, shifted=userns >= 0)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for tree, _ in trees:
            os.close(tree)
        for slot in attached:
            syscalls.umount_detach(slot)


def _in_child(disk: "Tree | None", *, shifted: bool) -> str:
    result_read, result_write = os.pipe2(os.O_CLOEXEC)
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    uid, gid = os.geteuid(), os.getegid()
    pid = syscalls.clone(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    if pid == 0:
        text = "the attempt broke off"
        try:
            os.close(ready_write)
            text = _body(disk, shifted=shifted) if os.read(ready_read, 1) else text
        except OSError as error:
            text = error.strerror or str(error)
        finally:
            os.write(result_write, text.encode())
            os._exit(0)
    os.close(ready_read)
    os.close(result_write)
    try:
        base = namespaces.SHIFT_BASE if shifted else None
        namespaces.write_maps(pid, base=base, outside_uid=uid, outside_gid=gid)
        os.write(ready_write, b"g")
    finally:
        os.close(ready_write)
        with os.fdopen(result_read, "rb") as file:
            text = file.read().decode("utf-8", "replace")
        os.waitpid(pid, 0)
    return text


def _body(disk: "Tree | None", *, shifted: bool) -> str:
    namespaces.become_root_inside(shifted=shifted)
    if disk is None:
        syscalls.mount("tmpfs", "upper", "tmpfs", _FLAGS, "mode=755")
    else:
        tree = syscalls.open_tree(disk[1])
        syscalls.move_mount(tree, "upper")
    exercise("base")
    return ""
