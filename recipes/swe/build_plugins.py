"""Which pytest plugins an environment holds, by the names that `-p` takes: read from what is installed."""

import configparser
from collections.abc import Iterator
from pathlib import Path

from recipes.swe.build_env import BuiltEnv
from recipes.swe.build_types import layer_tree
from sandbox.cache import VENV_TARGET


def plugins_of(root: Path, built: BuiltEnv) -> tuple[str, ...]:
    """Names of the plugins in the venv, and of the repository's own where it was installed in place."""
    content = layer_tree(root, built.venv)
    venv = content / VENV_TARGET.lstrip("/")
    files = [*venv.glob("lib/python*/site-packages/*.dist-info/entry_points.txt")]
    files += [*venv.glob("lib/python*/site-packages/*.egg-info/entry_points.txt")]
    files += [
        path
        for top in ("testbed", "testbed/src")
        for path in (content / top).glob("*.egg-info/entry_points.txt")
    ]
    return tuple(sorted({name for path in files for name in _plugins(path)}))


def _plugins(path: Path) -> Iterator[str]:
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] names keep their case
    try:
        parser.read_string(path.read_text("utf-8", "replace"))
    except (configparser.Error, OSError):
        return
    if parser.has_section("pytest11"):
        for name, module in parser.items("pytest11"):
            yield name or module
