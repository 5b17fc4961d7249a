"""Builds the layers of an environment: interpreter, repository, and the venv with all that a build left.

The venv is made in two steps. Resolving and running the commands of the row happen in sandboxes that reach
the package index and nothing else; what is installed comes from files that were fetched by hash outside and
are bound read-only (`build_wheels`). A venv without commands is made with no network at all, and shared by
every repository that asks for the same files. Layers are named by what went in: interpreter, files, commands,
repository where it matters, and the system below.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.swe.build_python import Interpreter, choose, compile_command, find_interpreters, python_layer
from recipes.swe.build_resolve import file_lines, lock, resolution_digest, resolve, wanted_lines
from recipes.swe.build_source import certificates, repo_layer
from recipes.swe.build_types import (
    BUILD_VERSION,
    BuildError,
    BuildSettings,
    base_system,
    facts_digest,
    layer_tree,
    publish_from,
    run_build,
)
from recipes.swe.build_venv import VenvScript, products
from recipes.swe.build_wheels import WheelFolder, check_wheel, sdist_digest
from recipes.swe.dataset_types import BuildSpec
from recipes.swe.tasks_fetch import Fetcher
from recipes.swe.tasks_projects import Download
from sandbox.cache import VENV_TARGET, EnvRecord, python_env
from sandbox.cache_layer import content_path
from sandbox.cache_publish import has_layer, layer_name, write_atomically
from sandbox.types import GIB, Backend, BindMount, Sandbox, SandboxSpec

VENV_LIMIT_BYTES = 8 * GIB
WHEELS_INSIDE = "/opt/wheels"
_INDEX_INSIDE = "/opt/index"
_NO_PREFIX = Path("/usr")
"""For `python_env`: an interpreter that finds its library itself, as those in layers do."""


@dataclass(frozen=True, slots=True)
class BuiltEnv:
    """Layers of an environment without a task."""

    python: str
    """Layer of the interpreter."""
    repo: str
    """Layer of the repository."""
    venv: str
    """Layer of the venv, and of what the build left in the repository; lies above it."""
    python_version: str
    """Full version."""

    def record(self, task: str | None) -> EnvRecord:
        """The environment of a task over these layers; None for the repository as it is."""
        layers = (self.venv, self.repo, self.python)
        layers = layers if task is None else (task, *layers)
        digest = facts_digest({str(at): name for at, name in enumerate(layers)})
        return EnvRecord(layers, "", self.python_version, digest)


class EnvBuilder:
    """Builds and publishes layers below one cache. One event loop; a layer is built once however many ask."""

    def __init__(self, settings: BuildSettings, backend: Backend, *, pythons: Sequence[Path] = ()) -> None:
        """`pythons`: prefixes of interpreters named by hand."""
        self.settings = settings
        self.backend = backend
        self.fetcher = Fetcher(settings.index_url, settings.cache_dir / "downloads")
        self._wheels = WheelFolder(settings.cache_dir, self.fetcher)
        in_folder = settings.index_url.startswith("file:")
        self._index = f"file://{_INDEX_INSIDE}" if in_folder else settings.index_url
        self._given = tuple(pythons)
        self._found: list[Interpreter] | None = None
        self._building: dict[str, asyncio.Task[str]] = {}

    async def build(self, spec: BuildSpec, files: Sequence[Download] | None = None) -> BuiltEnv:
        """All layers of an environment; those that exist are not built again. `files`: what to install, where
        that is known without asking an index. Raises BuildError, FetchError and SandboxError."""
        interpreter = await self.interpreter(spec.python)
        python = await self.python(interpreter)
        repo = await self.repo(spec)
        if files is None:
            files = await self._resolve(spec, interpreter, python, repo)
        else:
            self._wheels.remember(resolution_digest(spec, interpreter.version, repo), files)
        venv = await self.venv(files, interpreter, python, spec=spec, repo=repo)
        return BuiltEnv(python, repo, venv, interpreter.version)

    async def interpreter(self, version: str) -> Interpreter:
        """The interpreter of this machine for a version. Raises BuildError."""
        if self._found is None:
            self._found = await asyncio.to_thread(
                find_interpreters, os.environ, Path.home(), given=self._given
            )
        return choose(self._found, version)

    async def python(self, interpreter: Interpreter) -> str:
        """Name of the interpreter's layer."""
        root = self.settings.cache_dir
        return await self._once(
            f"python {interpreter}", lambda: python_layer(root, self.backend, interpreter)
        )

    async def repo(self, spec: BuildSpec) -> str:
        """Name of the repository's layer."""
        source = spec.source
        make = lambda: repo_layer(source, self.settings, self.backend, self.fetcher)  # noqa: E731
        return await self._once(f"repo {source}", make)

    async def venv(
        self,
        files: Sequence[Download],
        interpreter: Interpreter,
        python: str,
        *,
        spec: BuildSpec,
        repo: str,
    ) -> str:
        """Name of the venv's layer, installed from `files` and by the commands of `spec`."""
        facts = {
            "kind": "venv",
            "build": BUILD_VERSION,
            "base": base_system(),
            "python": python,
            "files": json.dumps([[file.file, file.sha256] for file in files]),
            "commands": json.dumps([spec.pre_install, spec.install, spec.variables]),
            "python_path": json.dumps(spec.python_path),
            "repo": repo if _uses_repo(spec) else "",
        }
        name = layer_name("venv", facts_digest(facts))
        if has_layer(self.settings.cache_dir, name):
            return name
        return await self._once(
            name, lambda: self._make_venv(name, facts, files, interpreter, python, spec, repo)
        )

    async def _once(self, key: str, make: Callable[[], Awaitable[str]]) -> str:
        """One build however many ask; a failed one may be tried again."""

        async def work() -> str:
            return await make()

        if key not in self._building or self._building[key].done():
            self._building[key] = asyncio.create_task(work())
        # The build goes on for the others when one that waits is cancelled.
        return await asyncio.shield(self._building[key])

    async def _resolve(
        self, spec: BuildSpec, interpreter: Interpreter, python: str, repo: str
    ) -> list[Download]:
        """The exact files to install; asked of the index once, then known."""
        digest = resolution_digest(spec, interpreter.version, repo)
        known = self._wheels.known(digest)
        if known is not None:
            return known
        lines = await asyncio.to_thread(file_lines, spec, self.settings.cache_dir, repo)
        if not lines and not wanted_lines(spec):
            return []
        async with await self._open(python, None, online=True) as sandbox:
            index, timeout_s = self._index, self.settings.timeout_s
            answer = await resolve(sandbox, spec, lines, interpreter, index, timeout_s)
        return await lock(self._wheels, digest, answer, interpreter)

    async def _make_venv(
        self,
        name: str,
        facts: dict[str, str],
        files: Sequence[Download],
        interpreter: Interpreter,
        python: str,
        spec: BuildSpec,
        repo: str,
    ) -> str:
        root = self.settings.cache_dir
        with_repo = _uses_repo(spec)
        (root / "layers").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-wheels-", dir=root / "layers") as folder:
            Path(folder).chmod(0o755)
            for file in files:
                wheel = await self._wheel(file, interpreter, python)
                await asyncio.to_thread(shutil.copyfile, wheel, Path(folder) / wheel.name)
            bind = BindMount(Path(folder), WHEELS_INSIDE)
            script = VenvScript(interpreter, spec, self._index)
            async with await self._open(
                python, repo if with_repo else None, online=with_repo, binds=(bind,)
            ) as sandbox:
                timeout_s = self.settings.timeout_s
                await run_build(
                    sandbox, script.install(WHEELS_INSIDE), "making the venv", timeout_s=timeout_s
                )
                if with_repo:
                    await self._run_commands(sandbox, script, spec)
                tidy = f"set -eu\n{script.tidy()}\n{compile_command(interpreter, VENV_TARGET + '/lib')}"
                await run_build(sandbox, tidy, "tidying the venv", timeout_s=timeout_s)
                paths = {VENV_TARGET: VENV_TARGET}
                if with_repo:
                    paths["/testbed"] = "/testbed"
                clean = layer_tree(root, repo) / "testbed"
                await publish_from(
                    sandbox, root, name, facts, paths, limit_bytes=VENV_LIMIT_BYTES,
                    tidy=lambda stage: products(stage / "testbed", clean),
                )  # fmt: skip
        return name

    async def _run_commands(self, sandbox: Sandbox, script: VenvScript, spec: BuildSpec) -> None:
        """The commands of the row, in the repository."""
        timeout_s = self.settings.timeout_s
        await run_build(
            sandbox, script.commit(), "preparing the repository", timeout_s=timeout_s, cwd="/testbed"
        )
        for name, commands in (("pre_install", spec.pre_install), ("install", spec.install)):
            if commands:
                text = script.commands(commands)
                await run_build(sandbox, text, name, timeout_s=timeout_s, cwd="/testbed")

    async def _wheel(self, file: Download, interpreter: Interpreter, python: str) -> Path:
        """Path of the wheel: the verified file, or what its sdist is built into."""
        path = await self._wheels.fetch(file)
        if file.file.endswith(".whl"):
            return path
        place = self.settings.cache_dir / "built" / sdist_digest(file, python, base_system())[:32]
        kept = sorted(place.glob("*.whl"))
        if kept:
            return kept[0]
        await self._once(f"wheel {place}", lambda: self._build_wheel(file, path, place, interpreter, python))
        return sorted(place.glob("*.whl"))[0]

    async def _build_wheel(
        self, file: Download, sdist: Path, place: Path, interpreter: Interpreter, python: str
    ) -> str:
        with tempfile.TemporaryDirectory(prefix="swe-sdist-") as folder:
            Path(folder).chmod(0o755)
            await asyncio.to_thread(shutil.copyfile, sdist, Path(folder) / file.file)
            bind = BindMount(Path(folder), "/opt/sdist")
            script = VenvScript(interpreter, None, self._index)
            async with await self._open(python, None, online=True, binds=(bind,)) as sandbox:
                what = f"building {file.file}"
                build = script.build_wheel(f"/opt/sdist/{file.file}")
                result = await run_build(sandbox, build, what, timeout_s=self.settings.timeout_s)
                names = result.text.strip().splitlines()
                if not names:
                    raise BuildError(f"{file.file} was built into nothing")
                check_wheel(file, names[-1])
                data = await sandbox.read_file(f"/tmp/built/{names[-1]}", limit_bytes=GIB)
        await asyncio.to_thread(write_atomically, place / names[-1], data)
        return names[-1]

    async def _open(
        self, python: str, repo: str | None, *, online: bool, binds: tuple[BindMount, ...] = ()
    ) -> Sandbox:
        """A sandbox to build in; `online`: the package index can be reached."""
        root = self.settings.cache_dir
        layers = tuple(content_path(root, name) for name in (repo, python) if name is not None)
        hosts: tuple[str, ...] = ()
        if online:
            hosts = await asyncio.to_thread(self.fetcher.hosts)
            if self.settings.index_url.startswith("file:"):
                folder = Path(self.settings.index_url.removeprefix("file://"))
                binds = (*binds, BindMount(folder, _INDEX_INSIDE))
        return await self.backend.open(
            SandboxSpec(
                layers=layers,
                binds=(*binds, *_uv_bind()),
                env={**python_env(_NO_PREFIX), **certificates()},
                limits=self.settings.limits,
                allowed_hosts=hosts,
                upper="disk",
            )
        )


def _uses_repo(spec: BuildSpec) -> bool:
    return bool(spec.pre_install or spec.install)


def _uv_bind() -> tuple[BindMount, ...]:
    """uv, which must be installed beside this Python or in PATH. Raises BuildError."""
    beside = str(Path(sys.executable).parent)
    uv = shutil.which("uv", path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
    if uv is None:
        raise BuildError("uv is not installed; install it with: pip install uv", lasting=False)
    return (BindMount(Path(uv).resolve().parent, "/opt/uv"),)
