"""Composes a configuration with Hydra's own loader and collects every fault on the way.

Hydra stops at the first bad override; here the overrides are then tried one after the other, so
that each bad one is named. Hydra's `main` decorator is not used: it exits 1 on a bad
configuration, creates output folders and takes over logging. Imports hydra, nothing heavier.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launch.config_resolvers import register_resolvers

ROOT = Path(__file__).resolve().parents[1]
CONFIG_DIR = ROOT / "configs"
_DOTTED = re.compile(r"^([A-Za-z_]\w*(?:\.\w+)+=)")
"""An override of a nested key. Hydra wants `+` before keys that its files do not hold; here the schema
check says what is unknown (and what it may be a slip of), so `+` is never needed for these."""


class ConfigError(Exception):
    """The configuration is wrong; `errors` holds every fault, one line each."""

    def __init__(self, errors: Sequence[str]) -> None:
        """`errors`: one line each, for a person."""
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


def compose_config(
    overrides: Sequence[str], *, config_name: str = "train", config_dir: Path = CONFIG_DIR
) -> tuple[DictConfig, list[str]]:
    """The composed configuration, and one line for each override that does not compose.

    With faults it is composed from the other overrides, so that these can be checked too. Raises
    ConfigError when not even the bare configuration composes."""
    register_resolvers()
    lenient = [_DOTTED.sub(r"++\1", override) for override in overrides]
    with initialize_config_dir(version_base="1.3", config_dir=str(config_dir)):
        try:
            return compose(config_name, lenient), []
        except (HydraException, OmegaConfBaseException) as whole:
            accepted, errors = _blame(config_name, lenient)
            return compose(config_name, accepted), errors or [_one_line(whole)]


def _blame(config_name: str, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides that compose on top of each other, and what is wrong with the others."""
    try:
        compose(config_name, [])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([_one_line(error)]) from error
    accepted: list[str] = []
    errors: list[str] = []
    # Group choices first: a value may belong to a group that is chosen later on the command line.
    for override in sorted(overrides, key=lambda text: "." in text.split("=", 1)[0]):
        try:
            compose(config_name, [*accepted, override])
        except (HydraException, OmegaConfBaseException) as error:
            errors.append(f"{override.removeprefix('++')}: {_one_line(error)}")
        else:
            accepted.append(override)
    return accepted, errors


def to_plain(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """The configuration as plain data, and one line for each value that cannot be resolved.

    A value that is required and missing stays as "???", for the schema check to report."""
    errors: list[str] = []
    plain = _plain(config, "", errors)
    return cast(dict[str, Any], plain), errors


def _plain(node: Any, path: str, errors: list[str]) -> Any:
    if isinstance(node, DictConfig):
        return {str(key): _child(node, key, f"{path}.{key}" if path else str(key), errors) for key in node}
    if isinstance(node, ListConfig):
        return [_child(node, index, f"{path}[{index}]", errors) for index in range(len(node))]
    return node


def _child(node: DictConfig | ListConfig, key: Any, path: str, errors: list[str]) -> Any:
    if OmegaConf.is_missing(node, key):
        return "???"
    try:
        value = node[key]
    except OmegaConfBaseException as error:
        errors.append(f"{path}: {_one_line(error)}")
        return None
    return _plain(value, path, errors)


def _one_line(error: Exception) -> str:
    """The part of a Hydra or OmegaConf message that a person needs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    drop = ("full_key:", "object_type=", "Set the environment variable", "reference_type=")
    text = " ".join(line for line in lines if not line.startswith(drop))
    text = text.split("Config search path:")[0].removeprefix("In 'train': ").strip()
    cause = error.__cause__
    return f"{text} ({_one_line(cause)})" if isinstance(cause, OmegaConfBaseException) else text
