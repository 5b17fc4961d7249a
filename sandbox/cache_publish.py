"""Write side of the cache: layers appear whole or not at all, and are never changed afterwards.

A layer is filled in a temporary directory beside its final place, its files get one owner, sane
modes and one fixed time stamp, all of it is written to disk, and a rename publishes it. Two processes that
build the same layer take turns at a lock; the second finds the work done. A killed build leaves only a
temporary directory, which the next build of that layer removes.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sandbox.cache_files import sync_filesystem
from sandbox.cache_files import write_atomically as write_atomically
from sandbox.cache_layer import LayerInfo, allocated_bytes, check_name, layer_dir, write_info
from sandbox.cache_layer import has_layer as has_layer
from sandbox.cache_lease import locked
from sandbox.cache_record import EnvRecord, dump_record, env_path
from sandbox.store_pack import FIXED_MTIME_S as FIXED_MTIME_S
from sandbox.store_pack import tree_facts


def layer_name(kind: str, digest: str) -> str:
    """Name of a layer: its kind (venv, repo, task) and 16 hex digits of the digest of its inputs."""
    return f"{kind}-{digest[:16]}"


@contextmanager
def publish_layer(root: Path, name: str, facts: dict[str, str]) -> Generator[Path | None]:
    """Gives the directory to fill, or None when the layer exists; publishes it when the block ends.

    `facts` is kept in `layer.json` for people. Blocks while another process builds the same layer."""
    with layer_lock(root, name):
        if has_layer(root, name):
            yield None
            return
        with new_layer(root, name) as temporary:
            content = temporary / "root"
            content.mkdir()
            yield content
            normalise(content)
            found = tree_facts(content)
            write_info(
                temporary,
                LayerInfo(name, "tree", facts, found.sha256, allocated_bytes(temporary), found.bytes),
            )


@contextmanager
def layer_lock(root: Path, name: str) -> Generator[None]:
    """The right to make one layer on this node; waits for whoever has it."""
    (root / "locks").mkdir(parents=True, exist_ok=True)
    with locked(root / "locks" / f"{check_name(name)}.lock"):
        yield


@contextmanager
def new_layer(root: Path, name: str) -> Generator[Path]:
    """A directory to make a layer in, `layer.json` included; it becomes the layer when the block ends well.

    The caller holds the layer's lock."""
    (root / "layers").mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root, name)
    temporary = Path(tempfile.mkdtemp(prefix=f".tmp-{name}-", dir=root / "layers"))
    try:
        yield temporary
        temporary.chmod(0o755)
        # Before the rename: after a power cut the layer is there with all its bytes, or not at all.
        sync_filesystem(temporary)
        try:
            temporary.rename(layer_dir(root, name))
        except OSError as error:
            # Another machine was faster, where a cache is shared in spite of all; its layer is as good.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not has_layer(root, name):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(root: Path, name: str) -> None:
    """Removes what a killed build of this layer left; the caller holds its lock."""
    for stale in (root / "layers").glob(f".tmp-{name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    if not has_layer(root, name):
        shutil.rmtree(layer_dir(root, name), ignore_errors=True)


def normalise(content: Path) -> None:
    """One owner (us), modes 755/644 with the x bit kept, and one time stamp, for all files below."""
    owner, group = os.getuid(), os.getgid()
    for folder, folders, files in os.walk(content, topdown=False):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for entry in [*(os.path.join(folder, name) for name in (*files, *links)), folder]:
            info = os.lstat(entry)
            if info.st_uid != owner or info.st_gid != group:
                os.chown(entry, owner, group, follow_symlinks=False)
            if not stat.S_ISLNK(info.st_mode):
                executable = stat.S_ISDIR(info.st_mode) or info.st_mode & 0o111
                os.chmod(entry, 0o755 if executable else 0o644)
            os.utime(entry, (FIXED_MTIME_S, FIXED_MTIME_S), follow_symlinks=False)


def publish_env(root: Path, key: str, record: EnvRecord) -> None:
    """Makes the environment visible under its key; replaces an older record at once."""
    write_atomically(env_path(root, key), dump_record(record))
