"""The shell scripts by which a venv is made in a sandbox, and what a build left in the repository.

Pure text and file work: nothing is run here. Whatever the scripts leave behind that differs from one time to
the next (caches, pyc files with time stamps, records of installers) is removed, so that the same inputs give
the same bytes.
"""

import os
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.swe.build_python import Interpreter
from recipes.swe.dataset_types import BuildSpec
from sandbox.cache import VENV_TARGET
from sandbox.cache_publish import FIXED_MTIME_S

UV = "/opt/uv/uv"
INSTALLERS = ("pip", "setuptools", "wheel")
"""What commands of rows expect in an environment, as conda and older Pythons put it there."""
_GIT_ENV = (
    "export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=swe GIT_COMMITTER_NAME=swe "
    "GIT_AUTHOR_EMAIL=swe@localhost GIT_COMMITTER_EMAIL=swe@localhost"
)


@dataclass(frozen=True, slots=True)
class VenvScript:
    """Scripts for one environment."""

    interpreter: Interpreter
    """In the layer below, at /opt/python."""
    spec: BuildSpec | None
    """Of the row; None where only a wheel is built."""
    index_url: str
    """Package index, reachable in sandboxes that are online."""

    def head(self) -> str:
        """What every script begins with."""
        # No UV_FIND_LINKS or PIP_INDEX_URL of the host reaches a sandbox; all that is used is said here.
        exports = {
            "HOME": "/tmp/home",
            "UV_CACHE_DIR": "/tmp/uv-cache",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_DEFAULT_INDEX": self.index_url,
            "UV_NO_CONFIG": "1",
            "UV_LINK_MODE": "copy",
            "PIP_INDEX_URL": self.index_url,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "SOURCE_DATE_EPOCH": str(FIXED_MTIME_S),
            "PYTHONHASHSEED": "0",
            **self._version(),
        }
        lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
        return "\n".join(["set -eu", "mkdir -p /tmp/home", *lines, _GIT_ENV])

    def _version(self) -> dict[str, str]:
        """Version of an sdist: setuptools_scm would look for it in a history that is not there."""
        if self.spec is None or self.spec.source.kind != "sdist":
            return {}
        return {"SETUPTOOLS_SCM_PRETEND_VERSION": self.spec.source.location.partition("==")[2]}

    def install(self, wheels: str) -> str:
        """Makes the venv and installs all wheels of a directory, with no network."""
        options = "-q --offline --no-cache --no-index --no-deps --link-mode copy"
        paths = " ".join(shlex.quote(path) for path in self.spec.python_path) if self.spec else ""
        site = f"{VENV_TARGET}/lib/python{self.interpreter.minor}/site-packages"
        return "\n".join(
            (
                self.head(),
                f"{self.interpreter.program} -m venv --without-pip {VENV_TARGET}",
                f"if ls {wheels}/*.whl >/dev/null 2>&1; then",
                f"  {UV} pip install {options} --python {VENV_TARGET}/bin/python {wheels}/*.whl",
                "fi",
                *([f"printf '%s\\n' {paths} > {site}/testbed.pth"] if paths else []),
            )
        )

    def commit(self) -> str:
        """Makes a passing git repository of the source, which versions of builds are read from."""
        git = "git -c core.hooksPath=/dev/null"
        steps = (f"{git} init -q --template= .", f"{git} add -A -f", f"{git} commit -q --no-verify -m source")
        return "\n".join([self.head(), *steps])

    def commands(self, commands: Sequence[str]) -> str:
        """Commands of the row as one script, in the repository with the venv active."""
        variables = self.spec.variables if self.spec else ()
        exports = [f"export {name}={shlex.quote(value)}" for name, value in variables]
        paths = "export PIP_FIND_LINKS=/opt/wheels PATH=$PATH:/opt/uv"
        # Rows do not expect -u. -x names the command that failed.
        return "\n".join([self.head(), paths, *exports, "set +u -x", *commands])

    def build_wheel(self, sdist: str) -> str:
        """Builds an sdist and prints the wheel's name as the last line."""
        build = f"{UV} build -q --wheel --python {self.interpreter.program} -o /tmp/built {sdist}"
        return f"{self.head()}\n{build}\ncd /tmp/built\nls *.whl"

    def tidy(self) -> str:
        """Removes what no environment needs and what would differ next time."""
        python = f"{VENV_TARGET}/bin/python"
        return "\n".join(
            (
                f"cd {VENV_TARGET}",
                "find . -name __pycache__ -prune -exec rm -rf {} +",
                r"find . \( -name uv_cache.json -o -name '*.pyc' \) -delete",
                # Their lines come in the order of a directory listing.
                "for record in $(find . -path '*.dist-info/RECORD'); do",
                '  LC_ALL=C sort -o "$record" "$record"; sed -i "/uv_cache.json,/d; /\\.pyc,/d" "$record"',
                "done",
                "if [ -e /testbed/.git ]; then",
                "  cd /testbed; rm -rf .git; find . -name __pycache__ -prune -exec rm -rf {} +",
                "fi",
                f"{python} -c 'pass'",
                f"find {VENV_TARGET} -exec touch -h -d @{FIXED_MTIME_S} {{}} +",
            )
        )


def products(changed: Path, clean: Path) -> None:
    """Leaves of the tree `changed` only what differs from `clean`, and overlay's marks for what is gone.

    Nothing happens where a build had no repository. overlayfs documentation, "whiteouts"."""
    if not changed.exists():
        return
    _prune(changed, clean)
    if not any(changed.iterdir()):
        changed.rmdir()


def _prune(changed: Path, clean: Path) -> None:
    names = {path.name for path in clean.iterdir()}
    for path in list(changed.iterdir()):
        below = clean / path.name
        if path.name not in names:
            continue
        names.remove(path.name)
        if _is_folder(path) and _is_folder(below):
            _prune(path, below)
            if not any(path.iterdir()):
                path.rmdir()
        elif same(path, below):
            path.unlink()
    for name in names:
        whiteout(changed / name)


def whiteout(path: Path) -> None:
    """Marks a name of lower layers as removed; anyone may make these, mknod(2)."""
    os.mknod(path, stat.S_IFCHR | 0o644, os.makedev(0, 0))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def same(one: Path, other: Path) -> bool:
    """Whether two entries are the same link or file, owner and time aside."""
    first, second = one.lstat(), other.lstat()
    if stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return one.readlink() == other.readlink()
    executable = bool(first.st_mode & 0o111) == bool(second.st_mode & 0o111)
    return executable and first.st_size == second.st_size and one.read_bytes() == other.read_bytes()
