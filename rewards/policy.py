"""What an agent's patch may not touch, and why: the judge of the task and everything that steers it.

Test files, helpers and the runner's configuration decide the verdict, start-up hooks and shadowing
modules run before the judge does, and binaries cannot be read. Such files are left out of the patch
and named in the verdict; the rest is graded. A dropped file is no accusation: honest agents add tests.
"""

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from rewards.patches import FilePatch


@dataclass(frozen=True, slots=True)
class PatchPolicy:
    """What is left out of a patch; names are compared in lower case."""

    directories: tuple[str, ...] = ("test", "tests", "__pycache__")
    """A path with one of these directories in it is dropped."""
    directory_patterns: tuple[str, ...] = (".git*", "*.egg-info", "*.dist-info")
    """The same as patterns; they hold for a file's name too."""
    files: tuple[str, ...] = (
        "test_*.py", "*_test.py", "test.py", "tests.py", "conftest.py",
        "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml",
        "setup.py", "manifest.in", ".coveragerc", "noxfile.py",
        "sitecustomize.py", "usercustomize.py", "*.pth", "pyvenv.cfg",
        "*.so", "*.so.*", "*.pyd", "*.dll", "*.dylib", "*.pyc", "*.pyo",
    )  # fmt: skip
    """Patterns of file names, wherever they lie."""
    runner_modules: tuple[str, ...] = (
        "pytest", "_pytest", "pluggy", "iniconfig", "pygments", "py", "exceptiongroup",
    )  # fmt: skip
    """Modules that may not be shadowed by a new file, at any depth."""
    import_roots: tuple[str, ...] = ("", "src", "lib")
    """Directories where a new file may not shadow the standard library either."""
    drop_binary: bool = True
    """Whether binary files are dropped."""
    lint: bool = True
    """Whether suspicious added code (see `rewards.lint`) makes the reward 0."""

    def why_dropped(self, file: FilePatch, test_files: Collection[str]) -> str | None:
        """The reason to leave the file out, or None. `test_files` are those of the task's tests."""
        if not file.modes <= {"100644", "100755"}:
            return "not a regular file"
        if file.binary and self.drop_binary:
            return "binary"
        for path in file.paths:
            reason = self._why(path, test_files) or (self._shadows(path) if file.old_path != path else None)
            if reason is not None:
                return reason
        return None

    def _why(self, path: str, test_files: Collection[str]) -> str | None:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or re.search(r"[\0-\x1f\\]", path):
            return "unsafe path"
        if path in test_files:
            return "a test file of the task"
        *folders, name = (part.lower() for part in parts)
        if any(folder in self.directories for folder in folders):
            return "in a test directory"
        if any(fnmatchcase(part, glob) for part in (*folders, name) for glob in self.directory_patterns):
            return "git or packaging metadata"
        if any(fnmatchcase(name, glob) for glob in self.files):
            return "test, configuration or start-up file"
        return None

    def _shadows(self, path: str) -> str | None:
        """For a file that was not there before: whether it hides a module that the judge imports."""
        names = [part.split(".", 1)[0].lower() for part in PurePosixPath(path).parts]
        if any(name in self.runner_modules for name in names):
            return "shadows the test runner"
        for root in self.import_roots:
            below = names[1:] if root and names[0] == root else names if not root else []
            if below and below[0] in sys.stdlib_module_names and path.lower().endswith(".py"):
                return "shadows the standard library"
        return None
