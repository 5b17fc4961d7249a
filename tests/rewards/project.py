"""A small project with a bug, its tests, and stand-ins for a sandbox of it.

The ids of its tests hold spaces, brackets, slashes, colons and letters outside ASCII.
"""

import asyncio
import difflib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rewards.types import TestSpec

CORE_BUGGY = '''"""Areas and labels."""

import functools


def area(width, height):
    """Area of a rectangle."""
    return width + height


def label(text, *, times=1):
    """The text in brackets, repeated."""
    return "[" + " ".join([text] * times) + "]"


@functools.lru_cache
def countdown(start):
    """start, start-1, ... 1."""
    return tuple(range(start, 0, -1))
'''
CORE_FIXED = CORE_BUGGY.replace("width + height", "width * height")

PYPROJECT = """\
[project]
name = "shapes"
version = "1"

[tool.pytest.ini_options]
addopts = "-ra"
"""

CONFTEST = """\
import pytest


@pytest.fixture(autouse=True, params=['plain', 'fancy mode'])
def mode(request):
    return request.param
"""

TEST_AREA = """\
import pytest

from shapes import area


@pytest.mark.parametrize(('w', 'h', 'want'), [(2, 3, 6), (2, 2, 4)], ids=['two by three', 'sq[2]::x'])
def test_area(w, h, want):
    assert area(w, h) == want


def test_zero():
    assert area(0, 0) == 0


class TestMany:
    def test_area(self):
        assert area(5, 1) == 5
"""

TEST_LABEL = """\
import unittest

import pytest

from shapes import countdown, label


TEXTS = ['a b', 'こんにちは', '\\U0001f363/é', '[x]', 'tests/test_area.py::test_zero']


@pytest.mark.parametrize('text', TEXTS)
def test_label(text):
    assert label(text) == f'[{text}]'


def test_label_twice():
    assert label('a', times=2) == '[a a]'


@pytest.mark.skip(reason='PASSED')
def test_skipped():
    pass


@pytest.mark.xfail(reason='PASSED', strict=False)
def test_expected_failure():
    assert label('') == ''
"""

FILES: dict[str, str] = {
    "shapes/__init__.py": "from shapes.core import area, countdown, label\n",
    "shapes/core.py": CORE_BUGGY,
    "shapes/data.txt": "one\ntwo\n",
    "pyproject.toml": PYPROJECT,
    "tests/__init__.py": "",
    "tests/conftest.py": CONFTEST,
    "tests/test_area.py": TEST_AREA,
    "tests/test_label.py": TEST_LABEL,
}

FAIL_TO_PASS = (
    "tests/test_area.py::test_area[plain-two by three]",
    "tests/test_area.py::test_area[fancy mode-two by three]",
    "tests/test_area.py::TestMany::test_area[plain]",
    "tests/test_area.py::TestMany::test_area[fancy mode]",
)
PASS_TO_PASS = (
    "tests/test_area.py::test_area[plain-sq[2]::x]",
    "tests/test_area.py::test_area[fancy mode-sq[2]::x]",
    "tests/test_area.py::test_zero[plain]",
    "tests/test_area.py::test_zero[fancy mode]",
    "tests/test_label.py::test_label[plain-a b]",
    "tests/test_label.py::test_label[plain-\\u3053\\u3093\\u306b\\u3061\\u306f]",
    "tests/test_label.py::test_label[plain-\\U0001f363/\\xe9]",
    "tests/test_label.py::test_label[plain-[x]]",
    "tests/test_label.py::test_label[fancy mode-tests/test_area.py::test_zero]",
    "tests/test_label.py::test_label_twice[plain]",
)
SPEC = TestSpec(
    command=(sys.executable, "-m", "pytest"),
    fail_to_pass=FAIL_TO_PASS,
    pass_to_pass=PASS_TO_PASS,
    timeout_s=60,
)


def diff(path: str, old: str | None, new: str | None, *, mode: str = "100644") -> str:
    """git-format patch of one text file; None for no file."""
    head = f"diff --git a/{path} b/{path}\n"
    if old is None:
        head += f"new file mode {mode}\n"
    if new is None:
        head += f"deleted file mode {mode}\n"
    lines = difflib.unified_diff(
        (old or "").splitlines(keepends=True),
        (new or "").splitlines(keepends=True),
        "/dev/null" if old is None else f"a/{path}",
        "/dev/null" if new is None else f"b/{path}",
    )
    body = "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )
    return head + body


def edit(path: str, new: str) -> str:
    """Patch that gives a file of the project a new content."""
    return diff(path, FILES[path], new)


GOLD = edit("shapes/core.py", CORE_FIXED)


@dataclass(frozen=True)
class LocalResult:
    """Result of a command of `LocalSandbox`."""

    output: bytes
    exit_status: int | None
    timed_out: bool


class LocalSandbox:
    """Not a sandbox: a folder that /testbed and /opt/grader are mapped into, for fast tests."""

    def __init__(self, root: Path) -> None:
        self._root = self.root = root
        self.commands: list[tuple[str, ...]] = []

    def _map(self, text: str) -> str:
        for name in ("/testbed", "/opt/grader"):
            text = text.replace(name, f"{self._root}{name}")
        return text

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        output_limit_bytes: int | None = None,
    ) -> LocalResult:
        self.commands.append(tuple(argv))
        process = await asyncio.create_subprocess_exec(
            *(self._map(word) for word in argv),
            env={"PATH": os.environ["PATH"], **(env or {}), "GIT_CEILING_DIRECTORIES": str(self._root)},
            cwd=self._map(cwd or "/testbed"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        data = stdin
        if argv[0] != "git":
            data = self._map(stdin.decode()).encode()
        output = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(data)
                process.stdin.close()
                while chunk := await process.stdout.read(65536):
                    output += chunk
                status = await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return LocalResult(bytes(output), None, True)
        return LocalResult(bytes(output), status if status >= 0 else 128 - status, False)

    async def read_file(self, path: str, *, limit_bytes: int = 16 << 20) -> bytes:
        data = Path(self._map(path)).read_bytes()
        if len(data) > limit_bytes:
            raise ValueError(f"{path} is too large")
        return data

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        target = Path(self._map(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode)


def write_project(root: Path, files: Mapping[str, str] = FILES) -> None:
    """Writes the project below `root`/testbed."""
    for path, text in files.items():
        target = root / "testbed" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
