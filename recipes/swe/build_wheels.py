"""From requirements to files with known hashes: what a venv is installed from, and nothing else.

uv resolves in a sandbox that reaches the package index only, without running any package's build
(`--only-binary`) where it can, and its answer, names with hashes, is all that is taken from there. The files
are then downloaded outside, by hash, into the shared folder. So a hostile build can put nothing there: the
folder is filled only from the index, builds are given read-only copies of its files, and each is verified
every time it is used. A source distribution is fetched by hash too, and built into a wheel in a sandbox of
its own; that wheel is used only where exactly this sdist is asked for, and only under the sdist's own name.
"""

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags, platform_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from recipes.swe.build_python import Interpreter
from recipes.swe.build_types import BuildError
from recipes.swe.tasks_fetch import Fetcher
from recipes.swe.tasks_projects import Download
from sandbox.cache_publish import write_atomically

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")


@dataclass(frozen=True, slots=True)
class Pin:
    """One line of a lock."""

    project: str
    """Normalised name."""
    version: str
    """Exact."""
    hashes: tuple[str, ...]
    """sha256 of the files that will do."""


def parse_lock(text: str) -> list[Pin]:
    """Pins of what `uv pip compile --generate-hashes` prints. Raises BuildError for anything else: it comes
    out of a sandbox."""
    pins: list[Pin] = []
    for entry in re.sub(r"\\\n", " ", text).split("\n"):
        entry = entry.split("#", 1)[0].strip()
        if not entry or entry.startswith(("-e ", "./", "/", "file:")):
            continue  # the repository itself is installed in place, by its own commands
        hashes = tuple(_HASH.findall(entry))
        try:
            requirement = Requirement(entry.split(" --hash", 1)[0].strip())
            (specifier,) = requirement.specifier
        except (InvalidRequirement, ValueError) as error:
            if "@ file:" in entry:
                continue
            raise BuildError(f"the resolver's answer cannot be used: {entry[:200]}") from error
        if specifier.operator != "==" or not hashes:
            raise BuildError(f"the resolver gave no exact file for {entry[:200]}")
        pins.append(Pin(canonicalize_name(requirement.name), specifier.version, hashes))
    return sorted(pins, key=lambda pin: pin.project)


def wheel_tags(python: str) -> list[Tag]:
    """What runs on this machine under that version, best first."""
    major, minor = (int(part) for part in python.split(".")[:2])
    platforms = list(platform_tags())
    abis = [f"cp{major}{minor}m"] if (major, minor) < (3, 8) else None
    found = list(cpython_tags((major, minor), abis, platforms))
    return found + list(compatible_tags((major, minor), f"cp{major}{minor}", platforms))


def order_files(pin: Pin, files: Collection[str], tags: Sequence[Tag]) -> list[str]:
    """Files of the index that can be the pinned one, best first: wheels that fit, then sdists."""
    ranks = {tag: rank for rank, tag in enumerate(tags)}
    wheels: list[tuple[int, str]] = []
    sdists: list[str] = []
    for file in files:
        try:
            if file.endswith(".whl"):
                name, version, _, fits = parse_wheel_filename(file)
            elif file.endswith((".tar.gz", ".zip")):
                name, version = parse_sdist_filename(file)
                fits = frozenset[Tag]()
            else:
                continue
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue
        if name != pin.project or str(version) != str(_version(pin.version)):
            continue
        if not file.endswith(".whl"):
            sdists.append(file)
        elif found := [ranks[tag] for tag in fits if tag in ranks]:
            wheels.append((min(found), file))
    return [file for _, file in sorted(wheels)] + sorted(sdists)


def _version(text: str) -> object:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return text


class WheelFolder:
    """The shared folder of verified files, and the locks that say which of them an environment uses."""

    def __init__(self, root: Path, fetcher: Fetcher) -> None:
        """`root` is the cache; files lie where `fetcher` puts them."""
        self._pins = root / "pins"
        self._fetcher = fetcher

    def known(self, digest: str) -> list[Download] | None:
        """The files that these inputs were resolved to before, so that a rebuild is the same."""
        try:
            data = json.loads((self._pins / f"{digest[:32]}.json").read_text("utf-8"))
            return [Download(str(name), str(file), str(sha256)) for name, file, sha256 in data["files"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember(self, digest: str, files: Sequence[Download]) -> None:
        """Keeps a resolution."""
        if self.known(digest) != list(files):
            data = {"files": [[file.project, file.file, file.sha256] for file in files]}
            write_atomically(self._pins / f"{digest[:32]}.json", (json.dumps(data, indent=1) + "\n").encode())

    async def lock(self, pins: Sequence[Pin], python: Interpreter) -> list[Download]:
        """One file for each pin, downloaded and verified. Raises BuildError, FetchError."""
        tags = wheel_tags(python.version)
        return [await asyncio.to_thread(self._lock_one, pin, tags) for pin in pins]

    def _lock_one(self, pin: Pin, tags: Sequence[Tag]) -> Download:
        files = order_files(pin, self._fetcher.files_of(pin.project), tags)
        for file in files:
            sha256 = self._fetcher.fetch_one_of(pin.project, file, pin.hashes)
            if sha256 is not None:
                return Download(pin.project, file, sha256)
        what = f"{pin.project}=={pin.version}"
        raise BuildError(f"the index has no file of {what} for this Python and system with a locked hash")

    async def fetch(self, file: Download) -> Path:
        """Path of a verified file."""
        return await asyncio.to_thread(self._fetcher.fetch, file)


def check_wheel(sdist: Download, wheel: str) -> None:
    """A built wheel may only be what its sdist is. Raises BuildError."""
    try:
        name, version, _, _ = parse_wheel_filename(wheel)
        wanted, wanted_version = parse_sdist_filename(sdist.file)
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        raise BuildError(f"{sdist.file} was built into {wheel!r}: {error}") from error
    if (name, version) != (wanted, wanted_version):
        raise BuildError(f"{sdist.file} was built into {wheel!r}, which is something else")


def sdist_digest(sdist: Download, python_layer: str, base: str) -> str:
    """Names the wheel that is built from an sdist."""
    facts = json.dumps([sdist.file, sdist.sha256, python_layer, base, sys.platform])
    return hashlib.sha256(facts.encode()).hexdigest()
