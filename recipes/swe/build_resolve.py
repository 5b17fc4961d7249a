"""What a row's environment is to be installed from: requirement lines, resolved once to exact files.

Requirement files are read out of the repository here, so that only text of it reaches the resolver's sandbox.
The answer is kept below the cache (`pins/`), by all that it depends on: a rebuild installs the same.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, cast

import yaml

from recipes.swe.build_python import Interpreter
from recipes.swe.build_types import (
    BUILD_VERSION,
    BuildError,
    base_system,
    facts_digest,
    layer_tree,
    run_build,
)
from recipes.swe.build_venv import INSTALLERS, UV, VenvScript
from recipes.swe.build_wheels import WheelFolder, parse_lock
from recipes.swe.dataset_types import BuildSpec
from recipes.swe.tasks_projects import Download
from sandbox.types import Sandbox

MAX_FILE_BYTES = 1 << 20
_SELF = re.compile(r"^(?:(?:-e|--editable)[ =]+)?\.(?:\[[^\]]*\])?/?\s*(?:#.*)?$")
_INCLUDE = re.compile(r"^(?:-r|--requirement|-c|--constraint)[ =]+(\S+)")
_CONDA = re.compile(r"^([A-Za-z0-9._-]+)\s*(.*)$")
_NOT_FROM_INDEX = re.compile(
    r"^(?:python|pip|conda|_.*|.*-forge.*|gcc.*|gxx.*|libgcc.*|c-compiler|cxx-compiler)$"
)


def resolution_digest(spec: BuildSpec, python: str, repo: str) -> str:
    """Names a resolution by all that it depends on, the index aside."""
    with_files = bool(spec.requirement_files or spec.environment_files)
    return facts_digest(
        {
            "build": BUILD_VERSION,
            "python": python,
            "platform": f"{sys.platform} {base_system()}",
            "wanted": json.dumps([wanted_lines(spec), spec.requirement_files, spec.environment_files]),
            "repo": repo if with_files else "",
        }
    )


def wanted_lines(spec: BuildSpec) -> list[str]:
    """Requirement lines of a row, with the installers that its commands need."""
    wanted = list(spec.packages)
    if spec.pre_install or spec.install:
        named = {re.split(r"[^A-Za-z0-9._-]", line.strip(), maxsplit=1)[0].lower() for line in wanted}
        # Newer ones have dropped what older setup.py files import (pkg_resources, distutils commands).
        bounds = {"setuptools": "<81"}
        wanted += [f"{name}{bounds.get(name, '')}" for name in INSTALLERS if name not in named]
    return wanted


def file_lines(spec: BuildSpec, root: Path, repo: str) -> list[str]:
    """Requirement lines in the files that the row names. Raises BuildError when one is missing."""
    if not spec.requirement_files and not spec.environment_files:
        return []
    tree = layer_tree(root, repo) / "testbed"
    lines: list[str] = []
    for choices in spec.requirement_files:
        lines += _requirement_lines(tree, _first(tree, choices), ())
    for choices in spec.environment_files:
        lines += _conda_lines(tree, _first(tree, choices))
    return lines


def _first(tree: Path, choices: str) -> str:
    for path in choices.split("|"):
        if _inside(tree, path).is_file():
            return path
    raise BuildError(f"the repository has no {choices.replace('|', ' or ')}")


def _inside(tree: Path, path: str) -> Path:
    found = (tree / path).resolve()
    if not found.is_relative_to(tree.resolve()):
        raise BuildError(f"{path} lies outside the repository")
    return found


def _read(tree: Path, path: str) -> str:
    with _inside(tree, path).open("rb") as file:
        return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")


def _requirement_lines(tree: Path, path: str, above: tuple[str, ...]) -> list[str]:
    """The lines of a file and of those it includes, without the repository itself and options of an index."""
    if path in above:
        return []
    lines: list[str] = []
    for line in re.sub(r"\\\r?\n", " ", _read(tree, path)).splitlines():
        text = line.strip()
        if not text or text.startswith("#") or _SELF.match(text):
            continue
        if match := _INCLUDE.match(text):
            included = str(PurePosixPath(path).parent / match[1])
            if _inside(tree, included).is_file():
                lines += _requirement_lines(tree, included, (*above, path))
        elif not text.startswith("-"):
            lines.append(re.split(r"\s+#", text)[0])
    return lines


def _conda_lines(tree: Path, path: str) -> list[str]:
    """Dependencies of a conda environment file under their names on the index."""
    try:
        loaded: Any = yaml.safe_load(_read(tree, path))
    except yaml.YAMLError as error:
        raise BuildError(f"{path} cannot be read: {error}") from error
    lines: list[str] = []
    found: Any = cast(dict[str, Any], loaded).get("dependencies") if isinstance(loaded, dict) else None
    for entry in cast(list[Any], found if isinstance(found, list) else []):
        if isinstance(entry, dict):
            inner: Any = cast(dict[str, Any], entry).get("pip") or []
            lines += [str(line) for line in inner if not _SELF.match(str(line).strip())]
            continue
        match = _CONDA.match(str(entry).split("::")[-1].strip())
        if match is not None and not _NOT_FROM_INDEX.match(match[1].lower()):
            lines.append(match[1] + _conda_version(match[2]))
    return [line for line in lines if not line.startswith("-")]


def _conda_version(text: str) -> str:
    """`=1.2`, `=1.2=build` and `>=1,<2` as the index has them; one `=` means any release of that series."""
    match = re.fullmatch(r"={1,2}\s*([^=\s]+)(?:=.*)?", text)
    if match is None:
        return text if text.startswith((">", "<", "!", "~")) else ""
    exact = text.startswith("==") or "*" in match[1]
    return f"=={match[1]}" if exact else f"=={match[1]}.*"


async def resolve(
    sandbox: Sandbox,
    spec: BuildSpec,
    lines: Iterable[str],
    interpreter: Interpreter,
    index_url: str,
    timeout_s: float,
) -> str:
    """The resolver's answer as text. The row's own packages may replace what its files choose."""
    script = VenvScript(interpreter, spec, index_url)
    files, own = "".join(f"{line}\n" for line in lines), "".join(f"{line}\n" for line in wanted_lines(spec))
    await sandbox.write_file("/tmp/files.txt", files.encode())
    await sandbox.write_file("/tmp/own.txt", own.encode())
    compile_ = (
        f"{UV} pip compile -q --no-header --no-annotate --generate-hashes --no-emit-index-url "
        f"--python {shlex.quote(interpreter.program)} -o /tmp/lock.txt /tmp/files.txt /tmp/own.txt"
    )
    # Without any build first: then no code of a package is run to know what it needs.
    tries = (f"{compile_} --only-binary :all:", compile_, f"{compile_} --override /tmp/own.txt")
    text = " 2>/tmp/why || ".join(tries)
    await run_build(sandbox, f"{script.head()}\n{text}", "resolving the requirements", timeout_s=timeout_s)
    return (await sandbox.read_file("/tmp/lock.txt")).decode("utf-8", "replace")


async def lock(folder: WheelFolder, digest: str, answer: str, interpreter: Interpreter) -> list[Download]:
    """Files for the resolver's answer, downloaded and remembered."""
    files = await folder.lock(parse_lock(answer), interpreter)
    folder.remember(digest, files)
    return files
