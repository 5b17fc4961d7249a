"""What an agent's patch may not touch, and why: the judge of the task and everything that steers it.

Test files, helpers and the runner's configuration decide the verdict, start-up hooks and shadowing
modules run before the judge does, and binaries cannot be read. Such files are left out of the patch
and named in the verdict; the rest is graded. A dropped file is no accusation: honest agents add tests.

What would lie where a dropped file is (a directory in place of a dropped link, say) is dropped with it:
else the patch could not be applied, and a change of the policy's would look like a fault of ours.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from rewards.patches import FilePatch


@dataclass(frozen=True, slots=True)
class Division:
    """A patch taken apart."""

    kept: tuple[FilePatch, ...]
    """Parts to apply."""
    dropped: tuple[tuple[str, str], ...]
    """(path, reason) of everything left out, in order."""


@dataclass(frozen=True, slots=True)
class PatchPolicy:
    """What is left out of a patch; names are compared in lower case."""

    directories: tuple[str, ...] = (
        "test", "tests", "testdata", "test_data", "test-data", "unittests", "unit_tests", "__pycache__",
    )  # fmt: skip
    """A path with one of these directories in it is dropped."""
    directory_patterns: tuple[str, ...] = (".git*", "*.egg-info", "*.dist-info")
    """The same as patterns; they hold for a file's name too."""
    files: tuple[str, ...] = (
        "test_*.py", "*_test.py", "test.py", "tests.py", "conftest.py",
        "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml",
        "setup.py", "manifest.in", ".coveragerc", "noxfile.py", "toxfile.py", "tests_*.py", "*_tests.py",
        "sitecustomize.py", "usercustomize.py", "*.pth", "pyvenv.cfg",
        "*.so", "*.so.*", "*.pyd", "*.dll", "*.dylib", "*.pyc", "*.pyo",
    )  # fmt: skip
    """Patterns of file names, wherever they lie."""
    runner_modules: tuple[str, ...] = (
        "pytest", "_pytest", "pluggy", "iniconfig", "pygments", "py", "exceptiongroup",
    )  # fmt: skip
    """Modules that may not be shadowed by a new file, at any depth."""
    import_roots: tuple[str, ...] = ("", "src", "lib")
    """Directories where a new file may not shadow the standard library or an installed module either;
    the directories of the task's test files, which pytest puts on the path, count as well."""
    drop_binary: bool = True
    """Whether binary files are dropped."""
    lint: bool = True
    """Whether suspicious added code (see `rewards.lint`) makes the reward 0."""

    def divide(self, files: Iterable[FilePatch], test_files: Sequence[str]) -> Division:
        """The parts to apply and those left out. `test_files` are those of the task's tests."""
        kept: list[FilePatch] = []
        dropped: list[tuple[str, str]] = []
        for file in files:
            reason = self.why_dropped(file, test_files)
            if reason is None:
                kept.append(file)
            else:
                dropped += [(path, reason) for path in file.paths]
        blocked = {path for path, _ in dropped}
        # Repeated, since what is dropped here may block something else.
        while hit := [file for file in kept if any(_overlaps(path, blocked) for path in file.paths)]:
            kept = [file for file in kept if file not in hit]
            dropped += [(path, "lies where a dropped file does") for file in hit for path in file.paths]
            blocked |= {path for file in hit for path in file.paths}
        return Division(tuple(kept), tuple(dropped))

    def new_modules(self, files: Iterable[FilePatch], test_files: Sequence[str]) -> dict[str, set[str]]:
        """Top-level modules that new files would make -> their paths before the module's own name. Whether
        they hide an installed module only the environment can tell."""
        found: dict[str, set[str]] = {}
        for file in files:
            for path in file.paths if file.old_path is None or file.old_path != file.new_path else ():
                for root, name in self._module_names(path, test_files):
                    found.setdefault(name, set()).add(root)
        return found

    def why_path_dropped(self, path: str, test_files: Collection[str]) -> str | None:
        """The reason why a path may not be touched at all, or None."""
        return self._why(path, test_files)

    def why_dropped(self, file: FilePatch, test_files: Collection[str]) -> str | None:
        """The reason to leave the file out, or None. `test_files` are those of the task's tests."""
        if not file.modes <= {"100644", "100755"}:
            return "not a regular file"
        if file.binary and self.drop_binary:
            return "binary"
        for path in file.paths:
            reason = self._why(path, test_files) or (
                self._shadows(path, test_files) if file.old_path != path else None
            )
            if reason is not None:
                return reason
        return None

    def _why(self, path: str, test_files: Collection[str]) -> str | None:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or re.search(r"[\0-\x1f\\]", path):
            return "unsafe path"
        if any(path == test_file or path.startswith(test_file + "/") for test_file in test_files):
            return "a test file of the task"
        *folders, name = (part.lower() for part in parts)
        if any(folder in self.directories for folder in folders):
            return "in a test directory"
        if any(fnmatchcase(part, glob) for part in (*folders, name) for glob in self.directory_patterns):
            return "git or packaging metadata"
        if any(fnmatchcase(name, glob) for glob in self.files):
            return "test, configuration or start-up file"
        return None

    def _shadows(self, path: str, test_files: Collection[str]) -> str | None:
        """For a file that was not there before: whether it hides a module that the judge imports."""
        names = [part.split(".", 1)[0].lower() for part in PurePosixPath(path).parts]
        if any(name in self.runner_modules for name in names):
            return "shadows the test runner"
        modules = self._module_names(path, test_files)
        if any(name.lower() in sys.stdlib_module_names for _, name in modules):
            return "shadows the standard library"
        return None

    def _module_names(self, path: str, test_files: Collection[str]) -> Iterator[tuple[str, str]]:
        """(import root, top-level module) for every root that the path lies below."""
        if not path.lower().endswith(".py"):
            return
        parts = path.split("/")
        for root in {*self.import_roots, *(str(PurePosixPath(file).parent) for file in test_files)}:
            above = [] if root in ("", ".") else root.split("/")
            if parts[: len(above)] == above and len(parts) > len(above):
                yield "/".join(above), parts[len(above)].removesuffix(".py")


def _overlaps(path: str, blocked: Collection[str]) -> bool:
    """Whether the path is, or lies above or below, one of `blocked`."""
    parts = path.split("/")
    above = {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return any(other in above or other.startswith(path + "/") for other in blocked)
