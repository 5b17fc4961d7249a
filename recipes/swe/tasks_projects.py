"""What the two committed lists hold: projects to make tasks from, and the bugs to put into them.

Reads and checks `configs/data/projects.yaml` and `configs/data/local_bugs.yaml`; every fault is
reported at once. Neither list holds third-party source: a bug names lines and gives only what they
become.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

import yaml

PINNED = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!_-]+$")
SHA256 = re.compile(r"^[0-9a-f]{64}$")


class ListError(ValueError):
    """A committed list is wrong; `errors` holds one line for each fault."""

    def __init__(self, path: Path, errors: list[str]) -> None:
        """`path` is the list."""
        super().__init__("\n".join(f"{path.name}: {error}" for error in errors))
        self.errors = tuple(errors)


@dataclass(frozen=True, slots=True)
class Download:
    """One file of the package index."""

    project: str
    """Name on the index."""
    file: str
    """File name, version included."""
    sha256: str
    """Of the whole file, 64 hex digits."""


@dataclass(frozen=True, slots=True)
class Project:
    """One project: where its source comes from and how its tests are run."""

    name: str
    """Name on the index."""
    version: str
    """Version of the sdist."""
    sdist: Download
    """The source distribution."""
    repo: str
    """swesmith/<owner>__<name>.<first 8 hex digits of the sdist's sha256>."""
    image_name: str
    """Image name in SWE-smith's style."""
    python_path: tuple[str, ...]
    """Directories put on sys.path by the venv, so that the project is used in place."""
    requirements: tuple[str, ...]
    """name==version, all of them: nothing is resolved."""
    wheels: tuple[Download, ...]
    """The file of each requirement."""
    test_files: tuple[str, ...]
    """Test files to use, relative to the repository."""


@dataclass(frozen=True, slots=True)
class Bug:
    """Lines of one file replaced by others."""

    instance_id: str
    """<owner>__<name>.<8 hex>.<modifier>__<8 characters>."""
    project: str
    """Name of the project."""
    path: str
    """File, relative to the repository."""
    modifier: str
    """SWE-smith's procedural modifier that proposed it."""
    start_line: int
    """First line replaced, 1-based, in the clean file."""
    end_line: int
    """Last line replaced; start_line - 1 when lines are only put in."""
    new_lines: tuple[str, ...]
    """What these lines become, without line ends."""
    sha256: str
    """Of the clean file, so that a bug is never put anywhere else."""
    symbol: str
    """Function or class that is changed, for the problem statement."""


def load_projects(path: Path) -> dict[str, Project]:
    """Projects by name, in order. Raises ListError."""
    data = _load(path, ("wheels", "projects"))
    errors: list[str] = []
    wheels = _wheels(data["wheels"], errors)
    projects: dict[str, Project] = {}
    for number, raw in enumerate(cast(list[Any], data["projects"]), start=1):
        try:
            project = _project(cast(dict[str, Any], raw), wheels)
        except (KeyError, TypeError, ValueError) as error:
            errors.append(f"project {number}: {_reason(error)}")
            continue
        if project.name in projects:
            errors.append(f"project {number}: {project.name} is listed twice")
        projects[project.name] = project
    if errors:
        raise ListError(path, errors)
    return projects


def load_bugs(path: Path, projects: Mapping[str, Project]) -> list[Bug]:
    """Bugs in order. Raises ListError."""
    data = _load(path, ("bugs",))
    errors: list[str] = []
    bugs: list[Bug] = []
    seen: set[str] = set()
    for number, raw in enumerate(cast(list[Any], data["bugs"]), start=1):
        try:
            bug = _bug(cast(dict[str, Any], raw), projects)
        except (KeyError, TypeError, ValueError) as error:
            errors.append(f"bug {number}: {_reason(error)}")
            continue
        if bug.instance_id in seen:
            errors.append(f"bug {number}: {bug.instance_id} is listed twice")
        seen.add(bug.instance_id)
        bugs.append(bug)
    if errors:
        raise ListError(path, errors)
    return bugs


def _load(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        loaded: Any = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ListError(path, [f"cannot be read: {error}"]) from error
    if not isinstance(loaded, dict):
        raise ListError(path, ["is no mapping"])
    data = cast(dict[str, Any], loaded)
    missing = [key for key in keys if not data.get(key)]
    if missing:
        raise ListError(path, [f"missing {key}" for key in missing])
    return data


def _wheels(raw: Any, errors: list[str]) -> dict[str, Download]:
    wheels: dict[str, Download] = {}
    for requirement, entry in cast(dict[str, Any], raw).items():
        try:
            if not PINNED.match(requirement):
                raise ValueError("is not name==version")
            wheels[requirement] = Download(
                requirement.split("==")[0], _file_name(entry["file"]), _digest(entry["sha256"])
            )
        except (KeyError, TypeError, ValueError) as error:
            errors.append(f"wheel {requirement}: {_reason(error)}")
    return wheels


def _project(raw: dict[str, Any], wheels: Mapping[str, Download]) -> Project:
    requirements = _texts(raw, "requirements")
    unknown = [name for name in requirements if name not in wheels]
    if unknown:
        raise ValueError(f"no wheel is listed for {', '.join(unknown)}")
    name, sha256 = str(raw["name"]), _digest(raw["sha256"])
    repo = str(raw["repo"])
    if not re.fullmatch(r"swesmith/[^/]+__[^/]+\." + sha256[:8], repo):
        raise ValueError(f"repo {repo} is not swesmith/<owner>__<name>.{sha256[:8]}")
    return Project(
        name=name,
        version=str(raw["version"]),
        sdist=Download(name, _file_name(raw["sdist"]), sha256),
        repo=repo,
        image_name=str(raw["image_name"]),
        python_path=_texts(raw, "python_path"),
        requirements=requirements,
        wheels=tuple(wheels[requirement] for requirement in requirements),
        test_files=tuple(_inside(file) for file in _texts(raw, "test_files")),
    )


def _bug(raw: dict[str, Any], projects: Mapping[str, Project]) -> Bug:
    bug = Bug(
        instance_id=str(raw["instance_id"]),
        project=str(raw["project"]),
        path=_inside(str(raw["path"])),
        modifier=str(raw["modifier"]),
        start_line=int(raw["start_line"]),
        end_line=int(raw["end_line"]),
        new_lines=tuple(str(line) for line in raw["new_lines"]),
        sha256=_digest(raw["sha256"]),
        symbol=str(raw["symbol"]),
    )
    if bug.project not in projects:
        raise ValueError(f"{bug.instance_id}: project {bug.project} is not listed")
    if not 1 <= bug.start_line <= bug.end_line + 1:
        raise ValueError(f"{bug.instance_id}: lines {bug.start_line}-{bug.end_line} are no range")
    prefix = projects[bug.project].repo.removeprefix("swesmith/")
    if not bug.instance_id.startswith(f"{prefix}.{bug.modifier}__"):
        raise ValueError(f"{bug.instance_id}: does not start with {prefix}.{bug.modifier}__")
    return bug


def _texts(raw: dict[str, Any], key: str) -> tuple[str, ...]:
    value: Any = raw[key]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} is no list with something in it")
    return tuple(str(item) for item in cast(list[Any], value))


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not SHA256.match(value):
        raise ValueError(f"{value!r} is no sha256")
    return value


def _file_name(value: Any) -> str:
    if not isinstance(value, str) or "/" in value or value.startswith("."):
        raise ValueError(f"{value!r} is no file name")
    return value


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or ".git" in pure.parts:
        raise ValueError(f"{path} does not lie inside the repository")
    return path


def _reason(error: Exception) -> str:
    return f"missing {error.args[0]}" if isinstance(error, KeyError) else str(error)
