"""Builds: interpreters that are found, files by hash only, and hostile packages that get nothing out."""

import asyncio
import hashlib
import io
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.tags import Tag

from recipes.swe.build_env import EnvBuilder
from recipes.swe.build_python import Interpreter, choose, find_interpreters, python_layer
from recipes.swe.build_resolve import file_lines
from recipes.swe.build_types import BuildError, BuildSettings
from recipes.swe.build_wheels import Pin, check_wheel, order_files, parse_lock, wheel_tags
from recipes.swe.dataset_types import BuildSpec, RepoSource
from recipes.swe.tasks_projects import Download
from sandbox.cache import layer_dir
from sandbox.mini import MiniBackend
from sandbox.types import Limits, SandboxSpec
from tests.tasks.conftest import Workshop

PYTHON = ".".join(map(str, sys.version_info[:3]))
HASH = "a" * 64


def install_python(prefix: Path, version: str) -> None:
    """What a finder looks for, without a program."""
    minor = ".".join(version.split(".")[:2])
    for folder in ("bin", f"lib/python{minor}", f"include/python{minor}"):
        (prefix / folder).mkdir(parents=True)
    (prefix / "bin" / f"python{minor}").touch()
    (prefix / "lib" / f"python{minor}" / "os.py").touch()
    (prefix / "include" / f"python{minor}" / "patchlevel.h").write_text(f'#define PY_VERSION "{version}"\n')


def test_interpreters_of_every_kind_are_found(tmp_path: Path) -> None:
    install_python(tmp_path / ".local/share/uv/python/cpython-3.9.18-linux-x86_64-gnu", "3.9.18")
    install_python(tmp_path / "miniconda3/envs/old", "3.6.13")
    (tmp_path / "miniconda3/envs/old/conda-meta").mkdir()
    install_python(tmp_path / "miniconda3/envs/no-conda", "3.5.1")
    install_python(tmp_path / ".pyenv/versions/3.9.20", "3.9.20")
    install_python(tmp_path / ".pyenv/versions/3.9.18", "3.9.18")
    install_python(tmp_path / "by-hand", "3.7.1")
    found = find_interpreters({}, tmp_path, given=[tmp_path / "by-hand", tmp_path / "nothing"])
    mine = [one for one in found if one.prefix.is_relative_to(tmp_path)]
    assert [(one.version, one.kind) for one in mine] == [
        ("3.9.20", "pyenv"),
        ("3.9.18", "uv"),
        ("3.9.18", "pyenv"),
        ("3.7.1", "given"),
        ("3.6.13", "conda"),
    ]
    assert choose(mine, "3.9").version == "3.9.20" and choose(mine, "3.9.18").kind == "uv"
    with pytest.raises(BuildError, match=r"Python 3\.1 is not installed; found: 3\.9\.20 \(pyenv\)"):
        choose(mine, "3.1")


async def test_two_versions_lie_side_by_side_without_their_former_places(
    workshop: Workshop, tmp_path: Path
) -> None:
    """The one that runs this, and another one that Debian or pyenv has."""
    cache = workshop.seeded(tmp_path)
    found = find_interpreters(os.environ, Path.home())
    other = next((one for one in found if one.minor not in (f"3.{sys.version_info.minor}",)), None)
    assert other is not None, "these tests want two versions of Python on the machine"
    mine = Interpreter(Path(sys.base_prefix).resolve(), PYTHON)
    script = "import sys, json, ctypes, asyncio; print(sys.version.split()[0], sys.prefix, json.__cached__)"
    async with MiniBackend() as backend:
        for python in (mine, other):
            layer = layer_dir(cache, await python_layer(cache, backend, python)) / "root"
            async with await backend.open(SandboxSpec(layers=(layer,), limits=Limits())) as sandbox:
                done = await sandbox.exec([python.program, "-c", script], timeout_s=60)
            version, prefix, cached = done.text.split()
            assert (version, prefix) == (python.version, "/opt/python")
            assert (layer / cached.lstrip("/")).is_file()
            assert not list(layer.glob("opt/python/lib/python*/site-packages/*"))


def test_a_lock_names_files_or_is_refused() -> None:
    text = f"""# a comment
-e file:///testbed
requests==2.0 ; python_version >= "3" \\
    --hash=sha256:{HASH} \\
    --hash=sha256:{"b" * 64}
Typing_Extensions==4.0 --hash=sha256:{HASH}
"""
    assert parse_lock(text) == [
        Pin("requests", "2.0", (HASH, "b" * 64)),
        Pin("typing-extensions", "4.0", (HASH,)),
    ]
    for bad in (
        "requests==2.0",
        f"requests>=2 --hash=sha256:{HASH}",
        f"x @ https://evil.example/x.whl --hash=sha256:{HASH}",
        "--index-url https://evil.example",
        "requests==2.0 --hash=md5:aaaa",
        "$(touch /tmp/owned)",
    ):
        with pytest.raises(BuildError):
            parse_lock(bad)


def test_the_best_file_for_an_interpreter_is_taken() -> None:
    files = [
        "demo-1.0.tar.gz",
        "demo-1.0-py3-none-any.whl",
        "demo-1.0-cp36-cp36m-manylinux1_x86_64.whl",
        "demo-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "demo-1.0-cp312-cp312-win_amd64.whl",
        "demo-1.1-py3-none-any.whl",
        "demo_extra-1.0-py3-none-any.whl",
        "nonsense.whl",
    ]
    pin = Pin("demo", "1.0", (HASH,))
    plain = [Tag("cp312", "cp312", "manylinux2014_x86_64"), Tag("py3", "none", "any")]
    assert order_files(pin, files, plain) == [files[3], files[1], files[0]]
    assert order_files(pin, files, [Tag("py2", "none", "any")]) == [files[0]]
    assert Tag("cp36", "cp36m", "any") not in wheel_tags("3.9") and Tag("py3", "none", "any") in wheel_tags(
        "3.6"
    )
    assert any(tag.abi == "cp36m" for tag in wheel_tags("3.6.15"))


def test_a_wheel_is_what_its_sdist_is() -> None:
    sdist = Download("my-demo", "my_demo-1.0.tar.gz", HASH)
    check_wheel(sdist, "my_demo-1.0-py3-none-any.whl")
    for other in (
        "pip-99.0-py3-none-any.whl",
        "my_demo-1.1-py3-none-any.whl",
        "../x.whl",
        "my_demo-1.0.tar.gz",
    ):
        with pytest.raises(BuildError):
            check_wheel(sdist, other)


def test_requirement_files_are_read_without_the_repository_itself(tmp_path: Path) -> None:
    tree = tmp_path / "layers" / "repo-x" / "root" / "testbed"
    (tree / "requirements").mkdir(parents=True)
    (tree / "requirements" / "dev.txt").write_text(
        "-r base.txt\n-e .[test]\n.\n--index-url https://evil.example\npytest  # the runner\n-r dev.txt\n"
    )
    (tree / "requirements" / "base.txt").write_text("six==1.0 \\\n  ; python_version < '4'\n\n# nothing\n")
    (tree / "env.yml").write_text(
        "dependencies:\n- python=3.9\n- numpy=1.2\n- conda-forge::scipy==1.5.*\n- gcc_linux-64\n"
        "- pip:\n  - -e .\n  - toml\n"
    )
    (tree / "out.txt").symlink_to("/etc/passwd")
    source = RepoSource("dir", "/x")
    spec = BuildSpec(
        source, "3.9", requirement_files=("none.txt|requirements/dev.txt",), environment_files=("env.yml",)
    )
    assert [line.split(";")[0].strip() for line in file_lines(spec, tmp_path, "repo-x")] == [
        "six==1.0", "pytest", "numpy==1.2.*", "scipy==1.5.*", "toml",
    ]  # fmt: skip
    for bad in ("out.txt", "../../layer.json", "missing.txt"):
        with pytest.raises(BuildError):
            file_lines(BuildSpec(source, "3.9", requirement_files=(bad,)), tmp_path, "repo-x")


def backend_sdist(name: str, wheel: str, attack: str) -> bytes:
    """A source distribution that brings its own build backend, which does whatever it likes."""
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    project += f'[project]\nname = "{name}"\nversion = "1.0"\n'
    code = f"""
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
{attack}
    with zipfile.ZipFile(os.path.join(folder, {wheel!r}), "w") as archive:
        info = "{name}-1.0.dist-info/"
        archive.writestr({name!r} + ".py", "found = " + repr(found))
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        tags = "Root-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\n" + tags)
        archive.writestr(info + "RECORD", "")
    return {wheel!r}
"""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in (
            ("pyproject.toml", project),
            ("backend.py", code),
            ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"),
        ):
            info = tarfile.TarInfo(f"{name}-1.0/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


ATTACK = """
    import glob, socket
    found = []
    folders = ["wheels", "sdist", "index", "python/bin"]
    for path in [path for folder in folders for path in glob.glob("/opt/" + folder + "/*")]:
        try:
            open(path if os.path.isfile(path) else path + "/evil", "ab").write(b"evil")
        except OSError:
            pass
    for address in (("127.0.0.1", 22), ("1.1.1.1", 443)):
        try:
            socket.create_connection(address, 1)
            found.append(address)
        except OSError:
            pass
    found += [name for name in os.environ if "TOKEN" in name]
"""


def index_with(folder: Path, workshop: Workshop, files: Mapping[str, bytes]) -> str:
    """The workshop's index with more files."""
    simple = folder / "simple"
    shutil.copytree(workshop.folder / "simple", simple)
    for file, data in files.items():
        page = simple / file.split("-")[0]
        page.mkdir(exist_ok=True)
        (page / file).write_bytes(data)
        (page / "index.html").write_text(
            f'<a href="{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>'
        )
    return f"file://{simple}"


def build(cache: Path, index: str, spec: BuildSpec, timeout_s: float = 120.0) -> Path:
    """The venv's layer."""

    async def work() -> str:
        async with MiniBackend() as backend:
            return (
                await EnvBuilder(BuildSettings(cache, index, timeout_s=timeout_s), backend).build(spec)
            ).venv

    return layer_dir(cache, asyncio.run(work())) / "root"


def spec_of(folder: Path, *packages: str, install: tuple[str, ...] = ()) -> BuildSpec:
    """A repository with one file."""
    (folder / "repo").mkdir(exist_ok=True)
    (folder / "repo" / "module.py").write_text("x = 1\n")
    source = RepoSource("dir", str(folder / "repo"))
    return BuildSpec(source, PYTHON, packages=packages, install=install)


def test_a_hostile_sdist_gets_nothing_out_and_nothing_in(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    cache = workshop.seeded(tmp_path / "cache")
    data = backend_sdist("hostile", "hostile-1.0-py3-none-any.whl", ATTACK)
    index = index_with(tmp_path, workshop, {"hostile-1.0.tar.gz": data})
    venv = build(cache, index, spec_of(tmp_path, "hostile==1.0", "iniconfig"))
    (module,) = venv.glob("opt/venv/lib/python*/site-packages/hostile.py")
    assert module.read_text() == "found = []"
    for file in (cache / "downloads").iterdir():
        assert b"evil" not in file.read_bytes()[-8:]
    wheel = next((cache / "downloads").glob("iniconfig*.whl"))
    assert zipfile.ZipFile(wheel).testzip() is None
    assert not list(tmp_path.rglob("evil"))
    kept = sorted(path.name for path in (cache / "built").rglob("*.whl"))
    assert kept == ["hostile-1.0-py3-none-any.whl"]


def test_a_hostile_sdist_cannot_become_another_package(workshop: Workshop, tmp_path: Path) -> None:
    cache = workshop.seeded(tmp_path / "cache")
    data = backend_sdist("hostile", "pytest-99.0-py3-none-any.whl", "    found = []")
    index = index_with(tmp_path, workshop, {"hostile-1.0.tar.gz": data})
    with pytest.raises(BuildError, match=r"something else|hostile-1\.0\.tar\.gz"):
        build(cache, index, spec_of(tmp_path, "hostile==1.0"))
    assert not list(cache.glob("built/**/*.whl")) and not list(cache.glob("layers/venv-*"))


@pytest.mark.slow
def test_a_build_that_does_not_end_is_ended(workshop: Workshop, tmp_path: Path) -> None:
    cache = workshop.seeded(tmp_path / "cache")
    attack = "    import time\n    time.sleep(600)"
    data = backend_sdist("slowly", "slowly-1.0-py3-none-any.whl", attack)
    index = index_with(tmp_path, workshop, {"slowly-1.0.tar.gz": data})
    with pytest.raises(BuildError, match=r"building slowly-1\.0\.tar\.gz: not done after") as caught:
        build(cache, index, spec_of(tmp_path, "slowly==1.0"), timeout_s=20.0)
    assert caught.value.timed_out and not list(cache.glob("layers/venv-*"))


def test_commands_need_installers_and_a_venv_without_them_none(workshop: Workshop, tmp_path: Path) -> None:
    cache = workshop.seeded(tmp_path / "cache")
    commands = ("echo made > made.txt", "echo 'x = 2' > module.py", "mkdir -p build/x && touch build/x/y")
    spec = spec_of(tmp_path, "iniconfig", install=commands)
    pinned = BuildSpec(spec.source, PYTHON, packages=("iniconfig",), pre_install=commands)
    index = index_with(tmp_path, workshop, {})
    with pytest.raises(BuildError, match="resolving the requirements"):  # this index has no installers
        build(cache, index, pinned)
    bare = BuildSpec(spec.source, PYTHON, packages=())
    assert not (build(cache, index, bare) / "testbed").exists()


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes(workshop: Workshop, tmp_path: Path) -> None:
    index = index_with(tmp_path, workshop, {})
    spec = spec_of(tmp_path, "pytest")
    first = build(workshop.seeded(tmp_path / "a"), index, spec)
    second = build(workshop.seeded(tmp_path / "b"), index, spec)
    assert first.parent.name == second.parent.name
    names = sorted(str(path.relative_to(first)) for path in first.rglob("*"))
    assert names == sorted(str(path.relative_to(second)) for path in second.rglob("*")) and len(names) > 100
    for name in names:
        one, other = first / name, second / name
        if one.is_symlink():
            assert one.readlink() == other.readlink()
        elif one.is_file():
            assert one.read_bytes() == other.read_bytes(), name
