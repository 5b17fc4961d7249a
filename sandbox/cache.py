"""The cache of environments of one node: finds what `launch/prepare.py` built, and says what is missing.

An environment is a stack of read-only layers (task over repository over venv) and a few facts about
the interpreter. Layers are directories named by the digest of everything that went into them, so
that tasks of one project share theirs. Nothing here runs a program or opens a sandbox; building
lies in `recipes.swe.tasks_build`, publishing in `sandbox.cache_publish`.

    <root>/layers/<kind>-<digest>/root/        what the sandbox sees
    <root>/layers/<kind>-<digest>/layer.json   written last: a layer without it does not exist
    <root>/envs/<key>.json                     layers, topmost first, and the interpreter
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sandbox.errors import CacheError
from sandbox.types import BindMount, CachedEnv, EnvSpec

PREPARE_HINT = "run: python launch/prepare.py"
WORKDIR = "/testbed"
PYTHON_TARGET = "/opt/python"
VENV_TARGET = "/opt/venv"


@dataclass(frozen=True, slots=True)
class EnvRecord:
    """What `envs/<key>.json` holds."""

    layers: tuple[str, ...]
    """Names below `layers/`, topmost first."""
    python_prefix: str
    """Host directory of the interpreter, bound read-only at /opt/python; empty when a layer holds it."""
    python_version: str
    """Full version, for messages."""
    digest: str
    """Content digest over the layers."""


def layer_dir(root: Path, name: str) -> Path:
    """Directory of a layer: `root/` and `layer.json` lie in it."""
    return root / "layers" / name


def env_path(root: Path, key: str) -> Path:
    """Record of an environment. The key is used as a file name, so it must be one."""
    if not key or "/" in key or "\0" in key or key.startswith("."):
        raise CacheError(f"{key!r} cannot be the key of an environment")
    return root / "envs" / f"{key}.json"


def python_env(prefix: Path | None = None) -> dict[str, str]:
    """Variables that programs inside need to use the venv. `prefix`: the interpreter is bound from there; one
    in a layer finds its library itself."""
    env = {
        "PATH": f"{VENV_TARGET}/bin:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": VENV_TARGET,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
    }
    # A shared libpython is found by an absolute path outside, which does not exist inside.
    if prefix is not None and prefix != Path("/usr") and any(prefix.glob("lib/libpython*.so*")):
        env["LD_LIBRARY_PATH"] = f"{PYTHON_TARGET}/lib"
    return env


class EnvCache:
    """Read side of the cache below `root` (config `paths.cache_dir`). Cheap to make; safe to share."""

    def __init__(self, root: Path) -> None:
        """`root` may not exist yet."""
        self._root = root.absolute()
        self._memo: dict[str, tuple[int, CachedEnv]] = {}

    @property
    def root(self) -> Path:
        """Absolute path of the cache."""
        return self._root

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        """The environment, ready to open. Raises CacheError, naming what is missing and the remedy."""
        path = env_path(self._root, spec.key)
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError as error:
            raise CacheError(f"environment {spec.key} is not in {self._root}; {PREPARE_HINT}") from error
        known = self._memo.get(spec.key)
        if known is not None and known[0] == stamp:
            return known[1]
        env = self._load(spec.key, path)
        self._memo[spec.key] = (stamp, env)
        return env

    def _load(self, key: str, path: Path) -> CachedEnv:
        return open_record(self._root, key, read_record(path))


def open_record(root: Path, key: str, record: EnvRecord) -> CachedEnv:
    """The environment that a record describes. Raises CacheError when part of it is not there."""
    layers = tuple(layer_dir(root, name) for name in record.layers)
    for layer in layers:
        if not (layer / "layer.json").is_file() or not (layer / "root").is_dir():
            raise CacheError(f"environment {key}: layer {layer} is incomplete; {PREPARE_HINT}")
    prefix = Path(record.python_prefix) if record.python_prefix else None
    if prefix is not None and not (prefix / "bin").is_dir():
        raise CacheError(
            f"environment {key}: Python {record.python_version} is no longer at {prefix}; {PREPARE_HINT}"
        )
    return CachedEnv(
        layers=tuple(layer / "root" for layer in layers),
        binds=(BindMount(source=prefix, target=PYTHON_TARGET),) if prefix is not None else (),
        env=python_env(prefix),
        workdir=WORKDIR,
        digest=record.digest,
        hit=True,
    )


def read_record(path: Path) -> EnvRecord:
    """Reads one record. Raises CacheError when it is missing or not what `write_record` writes."""
    try:
        loaded: Any = json.loads(path.read_text("utf-8"))
        data = cast(Mapping[str, Any], loaded)
        return EnvRecord(
            layers=tuple(str(name) for name in data["layers"]),
            python_prefix=str(data["python_prefix"]),
            python_version=str(data["python_version"]),
            digest=str(data["digest"]),
        )
    except FileNotFoundError as error:
        raise CacheError(f"{path} is missing; {PREPARE_HINT}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(f"{path} is damaged ({error}); delete it and {PREPARE_HINT}") from error
