"""A cache may be moved: nothing in it names where it lies, the interpreter included."""

import shutil
import sys
from pathlib import Path

import pytest

from sandbox.cache import EnvCache, EnvRecord
from sandbox.cache_publish import publish_env, publish_layer
from sandbox.mini import MiniBackend
from sandbox.store import Store
from sandbox.store_pack import PackedForm
from sandbox.store_push import push_envs
from sandbox.types import MIB, EnvSpec, Limits

LIMITS = Limits(memory_bytes=512 * MIB, disk_bytes=64 * MIB)
LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "config-*", "__pycache__", "lib2to3",
    "pydoc_data", "*.a", "turtledemo", "lib-dynload", "unittest", "distutils", "asyncio", "sqlite3", "xml",
)  # fmt: skip
SCRIPT = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, json.__file__]))"


def build(root: Path) -> None:
    """A small interpreter of this machine, a venv over it, a repository."""
    prefix, minor = Path(sys.base_prefix), f"python3.{sys.version_info.minor}"
    with publish_layer(root, "python-0", {"version": sys.version}) as content:
        assert content is not None
        target = content / "opt" / "python"
        shutil.copytree(prefix / "lib" / minor, target / "lib" / minor, ignore=LEFT_OUT, symlinks=True)
        (target / "bin").mkdir()
        shutil.copy2(prefix / "bin" / minor, target / "bin" / minor)
        for library in (prefix / "lib").glob("libpython3*.so*"):
            shutil.copy2(library, target / "lib" / library.name, follow_symlinks=False)
    with publish_layer(root, "venv-0", {}) as content:
        assert content is not None
        venv = content / "opt" / "venv"
        (venv / "bin").mkdir(parents=True)
        (venv / "lib" / minor / "site-packages").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(f"/opt/python/bin/{minor}")
        (venv / "pyvenv.cfg").write_text("home = /opt/python/bin\ninclude-system-site-packages = false\n")
    with publish_layer(root, "repo-0", {}) as content:
        assert content is not None
        (content / "testbed").mkdir()
        (content / "testbed" / "say.py").write_text(SCRIPT)
    record = EnvRecord(("repo-0", "venv-0", "python-0"), "", "3", "d", library_path="/opt/python/lib")
    publish_env(root, "one", record)


async def answer(root: Path, store: Store | None = None) -> str:
    env = EnvCache(root, store=store).ensure(EnvSpec("one"))
    assert env.binds == ()
    async with MiniBackend() as backend, await backend.open(env.spec(LIMITS)) as sandbox:
        result = await sandbox.exec(["/opt/venv/bin/python", "say.py"], timeout_s=60)
    assert result.exit_status == 0, result.text
    return result.text


@pytest.mark.slow
@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("form", ["tar.zst", "erofs"])
async def test_cache_and_store_move_with_interpreter_and_all(tmp_path: Path, form: PackedForm) -> None:
    build(tmp_path / "first")
    before = await answer(tmp_path / "first")
    assert '"/opt/venv/bin/python", "/opt/venv", "/opt/python", "/opt/python/lib' in before
    (tmp_path / "first").rename(tmp_path / "second")
    assert await answer(tmp_path / "second") == before
    push_envs(tmp_path / "second", ["one"], Store(str(tmp_path / "store")), form=form, say=lambda _line: None)
    shutil.rmtree(tmp_path / "second")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    moved = Store(str(tmp_path / "elsewhere"))
    assert await answer(tmp_path / "node", moved) == before
    (tmp_path / "node").rename(tmp_path / "node2")
    assert await answer(tmp_path / "node2") == before
    for path in (tmp_path / "node2").rglob("*.json"):
        assert str(tmp_path) not in path.read_text()
