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

    def without(self, gone: Iterable[FilePatch], reason: str) -> "Division":
        """The division with these parts, which are kept so far, left out too."""
        those = {id(part) for part in gone}
        if not those:
            return self
        kept = tuple(part for part in self.kept if id(part) not in those)
        left = [(path, reason) for part in self.kept if id(part) in those for path in part.paths]
        return Division(kept, (*self.dropped, *left))

    def without_blocked(self) -> "Division":
        """The division without parts that lie where a dropped file does, nor where one of these does."""
        at: dict[str, list[FilePatch]] = {}
        below: dict[str, list[FilePatch]] = {}
        for file in self.kept:
            for path in file.paths:
                at.setdefault(path, []).append(file)
                for folder in _folders(path):
                    below.setdefault(folder, []).append(file)
        hit: dict[int, FilePatch] = {}
        waiting = [path for path, _ in self.dropped]
        while waiting:
            path = waiting.pop()
            found = [*at.pop(path, ()), *below.pop(path, ())]
            found += [file for folder in _folders(path) for file in at.pop(folder, ())]
            waiting += [other for file in found if id(file) not in hit for other in file.paths]
            hit.update((id(file), file) for file in found)
        return self.without(hit.values(), "lies where a dropped file does")


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
        "makefile", "gnumakefile", "*.mk", "justfile", ".justfile", "dodo.py", "runtests*", "run_tests*",
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
        return Division(tuple(kept), tuple(dropped)).without_blocked()

    def new_modules(self, files: Iterable[FilePatch], test_files: Sequence[str]) -> dict[str, set[str]]:
        """Top-level modules that new files would make -> their paths before the module's own name: the known
        roots, and any folder at the top, which the project may have put on the path. Whether they hide an
        installed module only the environment can tell."""
        found: dict[str, set[str]] = {}
        for file in files:
            for path in file.paths if file.old_path is None or file.old_path != file.new_path else ():
                for root, name in self._module_names(path, test_files):
                    found.setdefault(name, set()).add(root)
                top, slash, rest = path.partition("/")
                if slash and path.lower().endswith(".py"):
                    found.setdefault(rest.split("/", 1)[0].removesuffix(".py"), set()).add(top)
        return found

    def roots(self, test_files: Collection[str]) -> set[str]:
        """Folders that are known to be on the path, relative to the repository."""
        own = {str(PurePosixPath(file).parent) for file in test_files}
        return {"" if root == "." else root for root in {*self.import_roots, *own}}

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
        for root in self.roots(test_files):
            above = root.split("/") if root else []
            if parts[: len(above)] == above and len(parts) > len(above):
                yield root, parts[len(above)].removesuffix(".py")


def _folders(path: str) -> Iterator[str]:
    """The folders that it lies in."""
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))
