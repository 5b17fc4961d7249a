"""Python interpreters of this machine, and each of them as one read-only layer that all its venvs share.

Knows the installations that uv keeps, conda prefixes, pyenv's versions, and the system's own; none is
downloaded here. A layer holds a copy at /opt/python without site-packages, tests and caches, made in a
sandbox: paths of its former place are rewritten, a shared libpython is found there, and its standard library
is compiled so that pyc files need no time stamps, and its debug information is left out. Programs of the
interpreter are only run in the sandbox, except for asking its version.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipes.swe.build_strip import STRIP_VERSION, strip_tree
from recipes.swe.build_types import (
    BUILD_LIMITS,
    BUILD_VERSION,
    BuildError,
    facts_digest,
    publish_from,
    run_build,
)
from sandbox.cache import PYTHON_TARGET
from sandbox.cache_publish import FIXED_MTIME_S, has_layer, layer_name
from sandbox.types import GIB, Backend, BindMount, SandboxSpec

Kind = Literal["given", "uv", "conda", "pyenv", "system"]
KINDS: tuple[Kind, ...] = ("given", "uv", "conda", "pyenv", "system")
"""In order of preference among equal versions."""
LAYER_TIMEOUT_S = 600.0
LAYER_LIMIT_BYTES = 2 * GIB
_MINOR = re.compile(r"^python(3\.\d+)$")
_PATCHLEVEL = re.compile(r'#define\s+PY_VERSION\s+"([^"]+)"')
_SKIPPED = (
    "site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "turtledemo", "ensurepip",
    "conda-meta", "pkgs", "envs", "share", "man", "config-*", "*.a", "*.pyc",
)  # fmt: skip
"""Names that are not copied: what a venv has of its own, what is large and never needed to run tests."""
_KEPT = ("ensurepip",)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One installed CPython."""

    prefix: Path
    """Installation directory outside."""
    version: str
    """Full version, for example 3.12.1."""
    kind: Kind = "given"
    """Who installed it."""

    @property
    def minor(self) -> str:
        """For example 3.12."""
        return ".".join(self.version.split(".")[:2])

    @property
    def program(self) -> str:
        """Path inside a sandbox."""
        return f"{PYTHON_TARGET}/bin/python{self.minor}"


def find_interpreters(
    environ: Mapping[str, str], home: Path, *, given: Sequence[Path] = ()
) -> list[Interpreter]:
    """Every CPython 3 found, best first: newest version, then by kind. `given` are prefixes named by hand."""
    found: dict[Path, Interpreter] = {}
    for kind, prefix in _prefixes(environ, home, given):
        for version in _versions(prefix):
            real = prefix.resolve()
            found.setdefault(real / version, Interpreter(real, version, kind))
    return sorted(
        found.values(), key=lambda one: (*(-part for part in _key(one.version)), KINDS.index(one.kind))
    )


def choose(found: Sequence[Interpreter], wanted: str) -> Interpreter:
    """The best one of the wanted version (3.9, or 3.9.18). Raises BuildError naming what there is."""
    for one in found:
        if one.version == wanted or one.version.startswith(f"{wanted}."):
            return one
    there = ", ".join(f"{one.version} ({one.kind})" for one in found) or "none"
    raise BuildError(
        f"Python {wanted} is not installed; found: {there}. Install it with `uv python install {wanted}`, "
        f"pyenv or conda, or name its prefix in `build.pythons`"
    )


def _prefixes(environ: Mapping[str, str], home: Path, given: Sequence[Path]) -> Iterator[tuple[Kind, Path]]:
    for prefix in given:
        yield "given", prefix
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    uv = Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    for prefix in sorted(uv.glob("cpython-*")):
        yield "uv", prefix
    roots = [Path(environ[name]) for name in ("CONDA_ROOT", "MAMBA_ROOT_PREFIX") if environ.get(name)]
    if environ.get("CONDA_EXE"):
        roots.append(Path(environ["CONDA_EXE"]).parent.parent)
    roots += [home / name for name in ("miniconda3", "miniforge3", "anaconda3", "mambaforge", "micromamba")]
    for root in dict.fromkeys([*roots, Path("/opt/conda"), Path("/opt/miniconda3")]):
        for prefix in [root, *sorted(root.glob("envs/*"))]:
            if (prefix / "conda-meta").is_dir():
                yield "conda", prefix
    pyenv = Path(environ.get("PYENV_ROOT") or home / ".pyenv")
    for prefix in sorted(pyenv.glob("versions/*")):
        yield "pyenv", prefix
    for system in ("/usr/local", "/usr"):
        yield "system", Path(system)


def _versions(prefix: Path) -> Iterator[str]:
    """Full versions of the interpreters installed in a prefix."""
    try:
        names = sorted(path.name for path in (prefix / "bin").iterdir())
    except OSError:
        return
    for name in names:
        minor = _MINOR.match(name)
        if minor is None or not (prefix / "lib" / name / "os.py").is_file():
            continue
        version = _version(prefix, minor[1])
        if version is not None:
            yield version


def _version(prefix: Path, minor: str) -> str | None:
    for header in (prefix / "include").glob(f"python{minor}*/patchlevel.h"):
        try:
            said = _PATCHLEVEL.search(header.read_text("utf-8", "replace"))
        except OSError:
            continue
        if said and re.fullmatch(r"3\.\d+\.\d+", said[1]):
            return said[1]
    script = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    argv = [str(prefix / "bin" / f"python{minor}"), "-IS", "-c", script]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip()
    return version if done.returncode == 0 and version.startswith(f"{minor}.") else None


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


async def python_layer(root: Path, backend: Backend, python: Interpreter) -> str:
    """Name of the interpreter's layer below the cache `root`; built when missing. Raises BuildError."""
    facts = {
        "kind": "python",
        "build": BUILD_VERSION,
        "version": python.version,
        "tree": _fingerprint(python),
        "skipped": " ".join(_SKIPPED),
        "stripped": STRIP_VERSION,
    }
    name = layer_name("python", facts_digest(facts))
    if has_layer(root, name):
        return name
    spec = SandboxSpec(
        binds=(BindMount(python.prefix, "/opt/former"),), limits=BUILD_LIMITS, upper="disk", workdir="/"
    )
    async with await backend.open(spec) as sandbox:
        await run_build(sandbox, _script(python), f"Python {python.version}", timeout_s=LAYER_TIMEOUT_S)
        await publish_from(
            sandbox, root, name, facts, {PYTHON_TARGET: PYTHON_TARGET}, limit_bytes=LAYER_LIMIT_BYTES,
            tidy=strip_tree,
        )  # fmt: skip
    return name


def _fingerprint(python: Interpreter) -> str:
    """Digest of what the copy is made from: names and sizes of all files, contents of the programs."""
    digest = hashlib.sha256()
    base = python.prefix
    for path in sorted((base / "bin" / f"python{python.minor}", *(base / "lib").glob("libpython3*.so*"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for folder, folders, files in os.walk(base / "lib" / f"python{python.minor}"):
        folders[:] = sorted(set(folders) - set(_SKIPPED))
        place = Path(folder).relative_to(base)
        for name in sorted(files):
            if not name.endswith((".pyc", ".a")):
                size = os.lstat(Path(folder) / name).st_size
                digest.update(os.fsencode(f"{place}/{name}\0{size}\n"))
    return digest.hexdigest()


def _script(python: Interpreter) -> str:
    """Copies the interpreter, rewrites the paths of its former place, and compiles its library."""
    former = str(python.prefix)
    skip = " ".join(f"--exclude='{name}'" for name in _SKIPPED if name not in _KEPT)
    whole = (python.prefix / "conda-meta").is_dir()  # whose libraries lie anywhere below lib
    parts = "bin lib include" if whole else " ".join(_parts(python))
    patch = f"old, new = {former.encode()!r}, {PYTHON_TARGET.encode()!r}\n" + _REWRITE
    return "\n".join(
        (
            "set -eu",
            f"mkdir -p {PYTHON_TARGET}; cd /opt/former",
            f"tar -cf - {skip} {parts} | tar -xf - -C {PYTHON_TARGET}",
            f"cd {PYTHON_TARGET}",
            f"mkdir -p lib/python{python.minor}/site-packages lib/python{python.minor}/lib-dynload",
            f"ln -sfn python{python.minor} bin/python3; ln -sfn python3 bin/python",
            "find . -xtype l -delete",
            f"cat > /tmp/rewrite.py <<'END_OF_PROGRAM'\n{patch}\nEND_OF_PROGRAM",
            # The former place is still needed by a program that finds its library there.
            f"LD_LIBRARY_PATH={PYTHON_TARGET}/lib {python.program} -IS /tmp/rewrite.py",
            f"find . -exec touch -h -d @{FIXED_MTIME_S} {{}} +",
            f"found=$({python.program} -c 'import sys, json, zlib, hashlib, ctypes; print(sys.prefix)')",
            f'test "$found" = {PYTHON_TARGET}',
            f"{python.program} -c 'import venv, ssl, sqlite3' || echo 'some modules are missing'",
            compile_command(python, f"{PYTHON_TARGET}/lib/python{python.minor}"),
        )
    )


def compile_command(python: Interpreter, folder: str) -> str:
    """Shell command that compiles a tree whose files have the fixed time stamp. Files that no Python of
    this version can compile (templates, tests of syntax) are no fault."""
    unchecked = _key(python.version) >= (3, 7)  # before, the fixed time stamps must do
    mode = " --invalidation-mode unchecked-hash" if unchecked else ""
    return f"{python.program} -m compileall -qq{mode} {folder} || true"


def _parts(python: Interpreter) -> Iterator[str]:
    """What of a prefix shared with other programs (or Pythons) belongs to this one."""
    base = python.prefix
    yield f"bin/python{python.minor}"
    yield f"lib/python{python.minor}"
    for pattern in (f"lib/libpython{python.minor}*.so*", f"include/python{python.minor}*"):
        yield from (str(path.relative_to(base)) for path in sorted(base.glob(pattern)))


_REWRITE = r"""
import os, sys

def rewrite(path):
    with open(path, "rb") as file:
        data = file.read()
    if old not in data or old == b"/usr":
        return
    if data[:4] == b"\x7fELF":
        # Run paths: strings that end with a NUL. A shorter one fits in their place, elf(5).
        parts = data.split(old + b"/lib\0")
        found = old + b"/lib"
        fill = (new + b"/lib").ljust(len(found), b"\0")
        if len(parts) == 1 or len(fill) != len(found):
            return
        data = (fill + b"\0").join(parts)
    else:
        data = data.replace(old, new)
    with open(path + ".new", "wb") as file:  # never in place: some of these files are running
        file.write(data)
    os.chmod(path + ".new", os.stat(path).st_mode)
    os.rename(path + ".new", path)

for folder, _, files in os.walk("."):
    for name in files:
        path = os.path.join(folder, name)
        wanted = name.startswith(("_sysconfigdata", "libpython")) or name.endswith((".pc", "Makefile"))
        if not os.path.islink(path) and (wanted or os.path.basename(folder) == "bin"):
            rewrite(path)
"""
