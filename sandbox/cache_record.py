"""Records of environments: which layers, and what programs in them need to be told.

    <root>/envs/<key>.json    layers, topmost first, and the interpreter

A record names layers only, so it means the same on every node. The interpreter is a layer too; records of the
first version bound a directory of the machine that built them instead, and still work there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sandbox.cache_layer import check_name, content_path
from sandbox.errors import CacheError
from sandbox.types import BindMount, CachedEnv

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
    """Directory of this machine bound read-only at /opt/python; empty when the interpreter is a layer."""
    python_version: str
    """Full version, for messages."""
    digest: str
    """Content digest over the layers."""
    library_path: str = ""
    """LD_LIBRARY_PATH inside, for an interpreter in a layer whose libpython lies at no usual place."""


def env_path(root: Path, key: str) -> Path:
    """Record of an environment. The key is used as a file name, so it must be one."""
    return root / "envs" / f"{check_key(key)}.json"


def check_key(key: str) -> str:
    """The key, if it can be one. Raises CacheError."""
    if not key or "/" in key or "\0" in key or key.startswith("."):
        raise CacheError(f"{key!r} cannot be the key of an environment")
    return key


def python_env(prefix: Path) -> dict[str, str]:
    """Variables that programs inside need to use the venv and the interpreter bound at /opt/python."""
    # A shared libpython is found by an absolute path outside, which does not exist inside.
    shared = prefix != Path("/usr") and any(prefix.glob("lib/libpython*.so*"))
    return layer_env(f"{PYTHON_TARGET}/lib" if shared else "")


def layer_env(library_path: str) -> dict[str, str]:
    """The same for an interpreter whose LD_LIBRARY_PATH is known (empty for none)."""
    env = {
        "PATH": f"{VENV_TARGET}/bin:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": VENV_TARGET,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
    }
    if library_path:
        env["LD_LIBRARY_PATH"] = library_path
    return env


def open_record(root: Path, key: str, record: EnvRecord) -> CachedEnv:
    """The environment that a record describes, from what is on this node. Raises CacheError when part of it
    is not there."""
    try:
        layers = tuple(content_path(root, name) for name in record.layers)
    except CacheError as error:
        raise CacheError(f"environment {key}: {error}; {PREPARE_HINT}") from error
    prefix = Path(record.python_prefix)
    if record.python_prefix and not (prefix / "bin").is_dir():
        raise CacheError(
            f"environment {key}: Python {record.python_version} is no longer at {prefix}; {PREPARE_HINT}"
        )
    return CachedEnv(
        layers=layers,
        binds=(BindMount(source=prefix, target=PYTHON_TARGET),) if record.python_prefix else (),
        env=python_env(prefix) if record.python_prefix else layer_env(record.library_path),
        workdir=WORKDIR,
        digest=record.digest,
        hit=True,
    )


def dump_record(record: EnvRecord) -> bytes:
    """As kept on disk and in stores."""
    data: dict[str, Any] = {
        "layers": record.layers,
        "python_prefix": record.python_prefix,
        "python_version": record.python_version,
        "digest": record.digest,
    }
    if record.library_path:
        data["library_path"] = record.library_path
    return (json.dumps(data, indent=1) + "\n").encode()


def parse_record(where: str, text: bytes) -> EnvRecord:
    """Raises CacheError when it is not what `dump_record` writes; `where` names it in the message."""
    try:
        data = cast(Mapping[str, Any], json.loads(text))
        return EnvRecord(
            layers=tuple(check_name(str(name)) for name in data["layers"]),
            python_prefix=str(data["python_prefix"]),
            python_version=str(data["python_version"]),
            digest=str(data["digest"]),
            library_path=str(data.get("library_path", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(f"{where} is damaged ({error}); delete it and {PREPARE_HINT}") from error


def read_record(path: Path) -> EnvRecord:
    """Reads one record. Raises CacheError when it is missing or damaged."""
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise CacheError(f"{path} is missing; {PREPARE_HINT}") from error
    return parse_record(str(path), text)
