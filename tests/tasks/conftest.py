"""A tiny project with its sdist, and a package index in a folder: all that prepare needs."""

import asyncio
import base64
import gzip
import hashlib
import io
import os
import shutil
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from recipes.swe.build_python import Interpreter, python_layer
from sandbox.mini import MiniBackend

MODULE = '''\
"""Arithmetic."""


def clamp(value, low, high):
    """Value, but not below low or above high."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def double(value):
    return value * 2


UNUSED = 1
'''
TESTS = """\
import os
import pytest
from tiny import clamp, double


@pytest.mark.parametrize("value, expected", [(-1, 0), (5, 5), (11, 10)], ids=["low", "in the middle", "high"])
def test_clamp(value, expected):
    assert clamp(value, 0, 10) == expected


def test_double():
    assert double(4) == 8


def test_independent():
    assert True


@pytest.mark.parametrize("number", range(20))
def test_chance(number):
    assert double(0) == 0 or os.urandom(1)[0] % 2


def test_skipped():
    pytest.skip("always")
"""


def link_or_copy(source: str, target: str) -> str:
    """One inode for both: layers are never changed."""
    if Path(source).is_symlink():
        shutil.copy2(source, target, follow_symlinks=False)
    else:
        os.link(source, target)
    return target


@dataclass(frozen=True)
class Workshop:
    """A folder with an index and the two lists."""

    folder: Path
    index_url: str
    projects_file: Path
    bugs_file: Path
    layers: Path
    """A cache with the layer of the interpreter that runs this, which takes seconds to build."""

    def seeded(self, cache: Path) -> Path:
        """The cache, with the interpreter's layer in it."""
        for layer in (self.layers / "layers").iterdir():
            if not (cache / "layers" / layer.name).exists():
                shutil.copytree(
                    layer, cache / "layers" / layer.name, symlinks=True, copy_function=link_or_copy
                )
        return cache

    def overrides(self, cache: Path, *more: str) -> list[str]:
        """Command line of launch/prepare.py that uses all this."""
        return [
            f"paths.cache_dir={cache}",
            f"tasks_file={cache}/tasks/local.jsonl",
            f"projects_file={self.projects_file}",
            f"bugs_file={self.bugs_file}",
            f"index_url={self.index_url}",
            "min_tasks=1",
            "min_projects=1",
            "parallel=2",
            *more,
        ]


def wheel_of(name: str) -> tuple[str, str, bytes]:
    """(requirement, file name, content) of a wheel packed from the installed pure-Python distribution."""
    dist = metadata.distribution(name)
    buffer = io.BytesIO()
    record: list[str] = []
    record_name = ""
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in dist.files or ():
            path = str(file)
            if path.startswith("..") or path.endswith(".pyc"):
                continue
            if path.endswith(".dist-info/RECORD"):
                record_name = path
                continue
            if path.endswith((".dist-info/INSTALLER", ".dist-info/REQUESTED")):
                continue
            data = Path(str(dist.locate_file(file))).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
            archive.writestr(path, data)
        archive.writestr(record_name, "\n".join([*record, f"{record_name},,"]) + "\n")
    return f"{name}=={dist.version}", f"{name}-{dist.version}-py3-none-any.whl", buffer.getvalue()


def tiny_sdist() -> bytes:
    """tiny-1.0.tar.gz, with packaging debris in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, text in (
            ("tiny.py", MODULE),
            ("test_tiny.py", TESTS),
            ("PKG-INFO", "Name: tiny\n"),
            ("tiny.egg-info/SOURCES.txt", "tiny.py\n"),
            (".gitignore", "ignored.txt\n"),
            ("ignored.txt", "kept all the same\n"),
            ("build/lib/tiny.py", "old = 1\n"),
            ("package/build/__init__.py", ""),
        ):
            info = tarfile.TarInfo(f"tiny-1.0/{path}")
            info.size, info.uid, info.mode = len(text.encode()), 4711, 0o600
            archive.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(buffer.getvalue(), mtime=0)


def bug(repo: str, name: str, line: int, new: list[str], **other: object) -> dict[str, object]:
    """One entry of the bug list; replaces one line of tiny.py."""
    return {
        "instance_id": f"{repo.removeprefix('swesmith/')}.func_pm_test__{name}",
        "project": "tiny",
        "path": "tiny.py",
        "symbol": "clamp",
        "modifier": "func_pm_test",
        "start_line": line,
        "end_line": line,
        "new_lines": new,
        "sha256": hashlib.sha256(MODULE.encode()).hexdigest(),
        **other,
    }


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Index, project and bugs: one of each fate."""
    folder = tmp_path_factory.mktemp("workshop")
    files = [wheel_of(name) for name in ("pytest", "iniconfig", "packaging", "pluggy", "pygments")]
    sdist = tiny_sdist()
    repo = f"swesmith/someone__tiny.{hashlib.sha256(sdist).hexdigest()[:8]}"
    for project, file, data in (
        *((requirement.split("==")[0], file, data) for requirement, file, data in files),
        ("tiny", "tiny-1.0.tar.gz", sdist),
    ):
        page = folder / "simple" / project
        page.mkdir(parents=True)
        (page / file).write_bytes(data)
        link = f'<a href="{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>'
        (page / "index.html").write_text(f"<html>{link}</html>")
    projects = {
        "wheels": {
            requirement: {"file": file, "sha256": hashlib.sha256(data).hexdigest()}
            for requirement, file, data in files
        },
        "projects": [
            {
                "name": "tiny",
                "version": "1.0",
                "sdist": "tiny-1.0.tar.gz",
                "sha256": hashlib.sha256(sdist).hexdigest(),
                "repo": repo,
                "image_name": "swebench/swesmith.x86_64.someone_1776_tiny",
                "python_path": ["/testbed"],
                "requirements": [requirement for requirement, _, _ in files],
                "test_files": ["test_tiny.py"],
            }
        ],
    }
    bugs = [
        bug(repo, "validaaa", 6, ["    if value > low:"]),
        bug(repo, "validbbb", 9, ["        return low"]),
        bug(repo, "harmless", 17, ["UNUSED = 2"]),
        bug(repo, "noimport", 17, ["UNUSED = missing"]),
        bug(repo, "stalexxx", 6, ["    if value > low:"], sha256="0" * 64),
    ]
    flaky = [bug(repo, "chanceaa", 14, ["    return value * 2 or 1"])]
    (folder / "flaky.yaml").write_text(yaml.safe_dump({"bugs": flaky}))
    projects_file, bugs_file = folder / "projects.yaml", folder / "bugs.yaml"
    projects_file.write_text(yaml.safe_dump(projects))
    bugs_file.write_text(yaml.safe_dump({"bugs": bugs}))
    layers = tmp_path_factory.mktemp("layers")
    asyncio.run(build_interpreter(layers))
    return Workshop(folder, f"file://{folder}/simple", projects_file, bugs_file, layers)


async def build_interpreter(cache: Path) -> None:
    """The layer of the interpreter that runs this."""
    version = ".".join(map(str, sys.version_info[:3]))
    async with MiniBackend() as backend:
        await python_layer(cache, backend, Interpreter(Path(sys.base_prefix).resolve(), version))
