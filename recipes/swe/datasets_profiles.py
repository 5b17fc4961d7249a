"""Profile data: how known repositories are built and tested, and changes of it that a user's file makes.

Reads configs/data/profiles/ (made by launch/make_profiles.py from the registries of swebench and swesmith,
and adjusted by hand in adjustments.yaml) and files of overrides in the same form. Needs no network.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import yaml

from recipes.swe.dataset_types import BuildSpec, RepoSource
from recipes.swe.datasets_fields import unique

PROFILES_DIR = Path(__file__).resolve().parents[2] / "configs" / "data" / "profiles"
_MATCH = ("repo", "versions", "instances", "python")
_BUILD_FIELDS = {field.name: field for field in dataclasses.fields(BuildSpec)}
_SOURCE_FIELDS = tuple(field.name for field in dataclasses.fields(RepoSource))
_PAIRS = "variables"


class ProfileError(ValueError):
    """A profile or a file of overrides is wrong; the message names the file and the entry."""


@dataclass(frozen=True, slots=True)
class Override:
    """One change of how environments are built."""

    match: Mapping[str, Any]
    """`repo` and `python`: a pattern; `versions` and `instances`: lists of patterns. All that are given must
    match."""
    set: Mapping[str, Any]
    """Fields of BuildSpec -> new values."""
    add: Mapping[str, Any]
    """Fields of BuildSpec that are lists -> what comes behind them."""

    def fits(self, repos: Sequence[str], version: str, instance_id: str, python: str) -> bool:
        """Whether it is about this task. Names of repositories are compared without regard to case."""
        wanted = self.match
        return (
            any(fnmatchcase(repo.lower(), str(wanted.get("repo", "*")).lower()) for repo in repos)
            and fnmatchcase(python, str(wanted.get("python", "*")))
            and any(fnmatchcase(version, item) for item in wanted.get("versions", ("*",)))
            and any(fnmatchcase(instance_id, item) for item in wanted.get("instances", ("*",)))
        )


@dataclass(frozen=True, slots=True)
class Profiles:
    """Everything that is known without the data set itself."""

    swebench: Mapping[str, Any]
    """Repository -> facts, see launch/make_profiles.py."""
    swesmith: Mapping[str, Any]
    """Name of the mirror -> facts."""
    r2e_gym: Mapping[str, Any]
    """Name of the repository, without owner -> facts (extra.yaml, written by hand)."""
    overrides: tuple[Override, ...]
    """In order; later ones win."""

    def spec(self, repo: str, version: str) -> Mapping[str, Any] | None:
        """What swebench says about a version of a repository."""
        facts = self.swebench.get(repo) or {}
        found = (spec for spec in facts.get("specs", ()) if version in spec["versions"])
        return next(found, None)

    def adjusted(self, build: BuildSpec, repos: Sequence[str], version: str, instance_id: str) -> BuildSpec:
        """The build with all overrides that are about this task, whose repository has these names."""
        python = build.python
        for override in self.overrides:
            if override.fits(repos, version, instance_id, python):
                build = _changed(build, override)
        return build


def load_profiles(overrides: Sequence[Path] = (), folder: Path = PROFILES_DIR) -> Profiles:
    """The committed profiles with a user's files of overrides behind the adjustments. Raises ProfileError."""
    changes = [*load_overrides(folder / "adjustments.yaml")]
    for path in overrides:
        changes += load_overrides(path)
    return Profiles(
        swebench=_json(folder / "swebench.json"),
        swesmith=_json(folder / "swesmith.json"),
        r2e_gym=_yaml(folder / "extra.yaml")["r2e_gym"],
        overrides=tuple(changes),
    )


def load_overrides(path: Path) -> tuple[Override, ...]:
    """Entries of a YAML file. Raises ProfileError naming the entry that is wrong."""
    loaded = _yaml(path)
    if not isinstance(loaded, list):
        raise ProfileError(f"{path}: a list of entries is wanted")
    return tuple(
        _override(entry, f"{path}, entry {at}") for at, entry in enumerate(cast(list[Any], loaded), 1)
    )


def _override(entry: Any, where: str) -> Override:
    if not isinstance(entry, dict):
        raise ProfileError(f"{where}: no mapping")
    data = cast(dict[str, Any], entry)
    _only(data, ("match", "set", "add", "why"), where)
    match, changed, added = (data.get(name) or {} for name in ("match", "set", "add"))
    for part, name in ((match, "match"), (changed, "set"), (added, "add")):
        if not isinstance(part, dict):
            raise ProfileError(f"{where}: {name} is no mapping")
    if not match or not (changed or added):
        raise ProfileError(f"{where}: `match`, and `set` or `add`, must say something")
    _only(match, _MATCH, f"{where}: match")
    for name in ("versions", "instances"):
        if name in match and not _texts(match[name]):
            raise ProfileError(f"{where}: match.{name} is no list of texts; put versions in quotes")
    for name in ("repo", "python"):
        if name in match and not isinstance(match[name], str):
            raise ProfileError(f"{where}: match.{name} is no text; put versions in quotes")
    _only(changed, _BUILD_FIELDS, f"{where}: set")
    _only(added, [name for name in _BUILD_FIELDS if _is_list(name)], f"{where}: add")
    override = Override(match, changed, added)
    _changed(BuildSpec(RepoSource("dir", "/"), "3"), override, where)
    return override


def _only(data: Mapping[str, Any], allowed: Any, where: str) -> None:
    unknown = [name for name in data if name not in allowed]
    if unknown:
        raise ProfileError(f"{where}: unknown {', '.join(map(str, unknown))}; known: {', '.join(allowed)}")


def _changed(build: BuildSpec, override: Override, where: str = "override") -> BuildSpec:
    values = {name: _value(name, value, where) for name, value in override.set.items()}
    build = dataclasses.replace(build, **values)
    more = {
        name: unique((*getattr(build, name), *_value(name, value, where)))
        for name, value in override.add.items()
    }
    return dataclasses.replace(build, **more)


def build_value(name: str, value: Any, where: str) -> Any:
    """A field of BuildSpec from plain data. Raises ProfileError."""
    if name not in _BUILD_FIELDS:
        raise ProfileError(f"{where}: unknown {name}; known: {', '.join(_BUILD_FIELDS)}")
    return _value(name, value, where)


def _value(name: str, value: Any, where: str) -> Any:
    if name == "source":
        data = cast(dict[str, Any], value) if isinstance(value, dict) else {}
        _only(data, _SOURCE_FIELDS, f"{where}: source")
        if data.get("kind") not in ("git", "sdist", "dir") or not isinstance(data.get("location"), str):
            raise ProfileError(f"{where}: source needs a kind (git, sdist, dir) and a location")
        return RepoSource(data["kind"], data["location"], str(data.get("revision", "")))
    if name == _PAIRS:
        if isinstance(value, dict):
            return tuple((str(key), str(item)) for key, item in cast(dict[Any, Any], value).items())
        raise ProfileError(f"{where}: {name} is no mapping")
    if name in ("plugins", "lint"):
        if isinstance(value, bool):
            return value
        raise ProfileError(f"{where}: {name} is true or false")
    if _is_list(name):
        if _texts(value):
            return tuple(value)
        raise ProfileError(f"{where}: {name} is no list of texts")
    if not isinstance(value, str):
        raise ProfileError(f"{where}: {name} is no text; put versions in quotes")
    return value


def _is_list(name: str) -> bool:
    return isinstance(_BUILD_FIELDS[name].default, tuple) and name != _PAIRS


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(i, str) for i in cast(list[Any], value))


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))["repos"]
    except (OSError, ValueError, KeyError) as error:
        raise ProfileError(f"{path} cannot be read: {error}; run launch/make_profiles.py") from error


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ProfileError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
