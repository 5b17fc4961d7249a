"""Builds the layers of an environment: venv, repository, and one task on top of it.

Code of others runs only in a sandbox without a network (pip or uv installing verified wheels, pyc
files being compiled). Unpacking an sdist and writing the one-commit repository are plain data
operations of ours; `git` runs without any configuration, hook or template.
"""

import asyncio
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.swe.tasks_fetch import Fetcher
from recipes.swe.tasks_projects import Bug, Project
from sandbox.cache import PYTHON_TARGET, VENV_TARGET, EnvRecord, layer_dir, python_env
from sandbox.cache_publish import FIXED_MTIME_S, has_layer, layer_name, publish_layer
from sandbox.types import MIB, Backend, BindMount, Limits, SandboxSpec

BUILD_VERSION = "1"
"""Raise it when a change here must rebuild layers."""
BUILD_TIMEOUT_S = 300.0
BUILD_LIMITS = Limits(memory_bytes=2048 * MIB, disk_bytes=1024 * MIB)
VENV_LIMIT_BYTES = 512 * MIB
DEBRIS = ("**/*.egg-info", "**/__pycache__", "**/*.pyc", "**/.git", "PKG-INFO", "build", "dist")
"""Left in sdists by packaging, no part of the repository (glob patterns below its root)."""


class BuildError(Exception):
    """An environment or task could not be built; the message says at which step and why."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs inside, bound at /opt/python."""

    prefix: Path
    """Installation directory outside."""
    version: str
    """Full version, for example 3.12.1."""

    @property
    def program(self) -> str:
        """Path inside."""
        return f"{PYTHON_TARGET}/bin/python{'.'.join(self.version.split('.')[:2])}"


def current_interpreter() -> Interpreter:
    """The interpreter that runs this process."""
    return Interpreter(Path(sys.base_prefix).resolve(), ".".join(map(str, sys.version_info[:3])))


class LayerBuilder:
    """Builds and publishes layers below one cache root."""

    def __init__(self, root: Path, backend: Backend, fetcher: Fetcher, python: Interpreter) -> None:
        """`root` is the cache (config paths.cache_dir)."""
        self._root = root
        self._backend = backend
        self._fetcher = fetcher
        self._python = python

    async def venv(self, project: Project) -> str:
        """Name of the venv layer of a project; built when missing. Raises BuildError, FetchError."""
        facts = {
            "kind": "venv",
            "build": BUILD_VERSION,
            "python": f"{self._python.version} at {self._python.prefix}",
            "wheels": json.dumps([[wheel.file, wheel.sha256] for wheel in project.wheels]),
            "python_path": json.dumps(project.python_path),
        }
        name = layer_name("venv", _digest(facts))
        if has_layer(self._root, name):
            return name
        wheels = [await asyncio.to_thread(self._fetcher.fetch, wheel) for wheel in project.wheels]
        archive = await self._install(wheels, project.python_path)
        await asyncio.to_thread(self._publish_tar, name, facts, archive)
        return name

    async def _install(self, wheels: Sequence[Path], python_path: Sequence[str]) -> bytes:
        """Makes the venv in a sandbox without a network and returns it as a tar archive."""
        installer, binds = _installer(self._python)
        script = "\n".join(
            (
                "set -eu",
                f"{self._python.program} -m venv --without-pip {VENV_TARGET}",
                f"{installer} /opt/wheels/*.whl",
                f"site=$({VENV_TARGET}/bin/python -c 'import site; print(site.getsitepackages()[0])')",
                *(f"echo {path} >> $site/testbed.pth" for path in python_path),
                # Unchecked: a pyc is used whatever the times of its source, which layers do not keep.
                f"{VENV_TARGET}/bin/python -m compileall -q --invalidation-mode unchecked-hash $site",
                f"tar -C / -cf /tmp/venv.tar {VENV_TARGET.lstrip('/')}",
            )
        )
        with tempfile.TemporaryDirectory(prefix="swe-wheels-") as folder:
            for wheel in wheels:
                shutil.copyfile(wheel, Path(folder) / wheel.name)
            Path(folder).chmod(0o755)
            spec = SandboxSpec(
                binds=(
                    BindMount(self._python.prefix, PYTHON_TARGET),
                    BindMount(Path(folder), "/opt/wheels"),
                    *binds,
                ),
                env=python_env(self._python.prefix),
                limits=BUILD_LIMITS,
            )
            async with await self._backend.open(spec) as sandbox:
                result = await sandbox.exec(["bash", "-c", script], timeout_s=BUILD_TIMEOUT_S)
                if result.exit_status != 0:
                    tail = result.text.strip()[-2000:]
                    raise BuildError(f"the venv cannot be built (status {result.exit_status}): {tail}")
                return await sandbox.read_file("/tmp/venv.tar", limit_bytes=VENV_LIMIT_BYTES)

    def _publish_tar(self, name: str, facts: dict[str, str], archive: bytes) -> None:
        with publish_layer(self._root, name, facts) as content:
            if content is None:
                return
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(content, filter="tar")

    async def repo(self, project: Project) -> str:
        """Name of the repository layer of a project; built when missing."""
        facts = {
            "kind": "repo",
            "build": BUILD_VERSION,
            "sdist": project.sdist.file,
            "sha256": project.sdist.sha256,
            "debris": json.dumps(DEBRIS),
        }
        name = layer_name("repo", _digest(facts))
        if not has_layer(self._root, name):
            sdist = await asyncio.to_thread(self._fetcher.fetch, project.sdist)
            await asyncio.to_thread(self._publish_repo, name, facts, sdist)
        return name

    def _publish_repo(self, name: str, facts: dict[str, str], sdist: Path) -> None:
        with publish_layer(self._root, name, facts) as content:
            if content is None:
                return
            with tempfile.TemporaryDirectory(dir=content.parent) as folder:
                try:
                    with tarfile.open(sdist) as tar:
                        tar.extractall(folder, filter="data")
                except (tarfile.TarError, OSError) as error:
                    raise BuildError(f"{sdist.name} cannot be unpacked: {error}") from error
                tops = list(Path(folder).iterdir())
                if len(tops) != 1 or not tops[0].is_dir():
                    raise BuildError(f"{sdist.name} does not hold exactly one directory")
                tops[0].rename(content / "testbed")
            for pattern in DEBRIS:
                for path in list((content / "testbed").glob(pattern)):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink(missing_ok=True)

    def task(self, project: Project, bug: Bug, repo: str, bugged: str) -> str:
        """Name of a task's layer (bugged file and one-commit .git); built when missing. Blocking."""
        facts = {
            "kind": "task",
            "build": BUILD_VERSION,
            "instance_id": bug.instance_id,
            "repo": repo,
            "path": bug.path,
            "bugged": hashlib.sha256(bugged.encode()).hexdigest(),
        }
        name = layer_name("task", _digest(facts))
        with publish_layer(self._root, name, facts) as content:
            if content is not None:
                clean = layer_dir(self._root, repo) / "root" / "testbed"
                write_task(clean, content / "testbed", bug.path, bugged.encode(), project.name)
        return name

    def record(self, venv: str, repo: str, task: str | None) -> EnvRecord:
        """The environment over these layers; without a task it is the clean project."""
        layers = (repo, venv) if task is None else (task, repo, venv)
        digest = _digest({str(at): name for at, name in enumerate(layers)})
        return EnvRecord(layers, str(self._python.prefix), self._python.version, digest)


def write_task(clean: Path, target: Path, path: str, bugged: bytes, project: str) -> None:
    """Writes the bugged file and a `.git` with one commit of the whole bugged tree below `target`."""
    with tempfile.TemporaryDirectory(prefix="swe-task-") as folder:
        work = Path(folder) / "work"
        shutil.copytree(clean, work, symlinks=True)  # keeps times
        changed = work / path
        changed.write_bytes(bugged)
        os.utime(changed, (FIXED_MTIME_S, FIXED_MTIME_S))
        _commit(work, Path(folder), project)
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(changed, target / path)
        shutil.copytree(work / ".git", target / ".git")


GIT_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = false
\tcheckStat = minimal
\ttrustctime = false
[gc]
\tauto = 0
[user]
\tname = swe
\temail = swe@localhost
"""
"""Of the task's repository. Inside, only size and time are as git saw them, so it compares no more."""


def _commit(work: Path, home: Path, project: str) -> None:
    stamp = f"{FIXED_MTIME_S} +0000"
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "swe",
        "GIT_AUTHOR_EMAIL": "swe@localhost",
        "GIT_COMMITTER_NAME": "swe",
        "GIT_COMMITTER_EMAIL": "swe@localhost",
        "GIT_AUTHOR_DATE": stamp,
        "GIT_COMMITTER_DATE": stamp,
    }

    def git(*arguments: str) -> None:
        done = subprocess.run(
            ["git", "-C", str(work), *arguments], env=env, capture_output=True, check=False, timeout=60
        )
        if done.returncode != 0:
            message = done.stderr.decode("utf-8", "replace").strip()
            raise BuildError(f"git {arguments[0]} failed (status {done.returncode}): {message}")

    git("init", "-q", "--template=", "-b", "main")
    (work / ".git" / "config").write_text(GIT_CONFIG)
    git("add", "-A", "-f")
    git("commit", "-q", "--no-verify", "-m", f"{project}: initial commit")
    git("-c", "pack.threads=1", "repack", "-adq")
    git("pack-refs", "--all")
    for leftover in ("COMMIT_EDITMSG", "logs", "description", "hooks", "branches"):
        path = work / ".git" / leftover
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _installer(python: Interpreter) -> tuple[str, tuple[BindMount, ...]]:
    """Command that installs the wheels named after it, and what it needs bound: uv if found, else pip."""
    beside = str(Path(sys.executable).parent)
    uv = shutil.which("uv", path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
    target = f"{VENV_TARGET}/bin/python"
    if uv is None:
        return f"{python.program} -m pip --python {target} install -q --no-index --no-deps --no-compile", ()
    options = "-q --offline --no-cache --no-index --no-deps --link-mode copy"
    folder = Path(uv).resolve().parent
    return f"/opt/uv/uv pip install {options} --python {target}", (BindMount(folder, "/opt/uv"),)


def _digest(facts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
