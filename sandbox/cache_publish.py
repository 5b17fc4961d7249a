"""Write side of the cache: layers appear whole or not at all, and are never changed afterwards.

A layer is filled in a temporary directory beside its final place, its files get one owner, sane
modes and one fixed time stamp, and a rename publishes it. Two processes that build the same layer
take turns at a lock; the second finds the work done. A killed build leaves only a temporary
directory, which the next build of that layer removes.
"""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from sandbox.cache import EnvRecord, env_path, layer_dir

FIXED_MTIME_S = 1_600_000_000
"""Time stamp of every cached file: digests, git's index and pyc files then never depend on the day."""


def layer_name(kind: str, digest: str) -> str:
    """Name of a layer: its kind (venv, repo, task) and 16 hex digits of the digest of its inputs."""
    return f"{kind}-{digest[:16]}"


def has_layer(root: Path, name: str) -> bool:
    """Whether the layer was published whole."""
    return (layer_dir(root, name) / "layer.json").is_file()


@contextmanager
def publish_layer(root: Path, name: str, facts: dict[str, str]) -> Generator[Path | None]:
    """Gives the directory to fill, or None when the layer exists; publishes it when the block ends.

    `facts` is kept in `layer.json` for people. Blocks while another process builds the same layer."""
    (root / "layers").mkdir(parents=True, exist_ok=True)
    (root / "locks").mkdir(parents=True, exist_ok=True)
    with FileLock(root / "locks" / f"{name}.lock"):
        if has_layer(root, name):
            yield None
            return
        final = layer_dir(root, name)
        _remove_leftovers(root, name)
        temporary = Path(tempfile.mkdtemp(prefix=f".tmp-{name}-", dir=root / "layers"))
        try:
            content = temporary / "root"
            content.mkdir()
            yield content
            normalise(content)
            (temporary / "layer.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
            temporary.chmod(0o755)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(root: Path, name: str) -> None:
    """Removes what a killed build of this layer left; the caller holds its lock."""
    for stale in (root / "layers").glob(f".tmp-{name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    shutil.rmtree(layer_dir(root, name), ignore_errors=True)


def normalise(content: Path) -> None:
    """One owner (us), modes 755/644 with the x bit kept, and one time stamp, for all files below."""
    owner, group = os.getuid(), os.getgid()
    for folder, _, files in os.walk(content, topdown=False):
        for entry in [*(os.path.join(folder, name) for name in files), folder]:
            info = os.lstat(entry)
            if info.st_uid != owner or info.st_gid != group:
                os.chown(entry, owner, group, follow_symlinks=False)
            if not stat.S_ISLNK(info.st_mode):
                executable = stat.S_ISDIR(info.st_mode) or info.st_mode & 0o111
                os.chmod(entry, 0o755 if executable else 0o644)
            os.utime(entry, (FIXED_MTIME_S, FIXED_MTIME_S), follow_symlinks=False)


def publish_env(root: Path, key: str, record: EnvRecord) -> None:
    """Makes the environment visible under its key; replaces an older record at once."""
    data: dict[str, str | Sequence[str]] = {
        "layers": record.layers,
        "python_prefix": record.python_prefix,
        "python_version": record.python_version,
        "digest": record.digest,
    }
    write_atomically(env_path(root, key), (json.dumps(data, indent=1) + "\n").encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that readers see whole: the old content until the rename, then the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".tmp-{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
