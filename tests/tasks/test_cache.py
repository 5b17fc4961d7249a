"""The cache of environments: whole layers or none, and errors that name the remedy."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.cache import EnvCache, EnvRecord, env_path, layer_dir
from sandbox.cache_publish import FIXED_MTIME_S, has_layer, layer_name, publish_env, publish_layer
from sandbox.errors import CacheError
from sandbox.types import EnvSpec, Limits


def publish(root: Path, name: str = "repo-00", text: str = "x") -> str:
    """A layer with one file."""
    with publish_layer(root, name, {"kind": "repo"}) as content:
        if content is not None:
            (content / "testbed").mkdir()
            (content / "testbed" / "file").write_text(text)
            (content / "testbed" / "file").chmod(0o700)
    return name


def publish_one(root: Path, prefix: Path, key: str = "one") -> None:
    """An environment of one layer."""
    (prefix / "bin").mkdir(parents=True, exist_ok=True)
    publish_env(root, key, EnvRecord((publish(root),), str(prefix), "3.12.1", "d"))


def test_environment_is_found(tmp_path: Path) -> None:
    prefix = tmp_path / "python"
    publish_one(tmp_path, prefix)
    cache = EnvCache(tmp_path)
    env = cache.ensure(EnvSpec("one"))
    assert env.layers == (tmp_path / "layers" / "repo-00" / "root",)
    assert env.hit and env.workdir == "/testbed" and env.binds[0].target == "/opt/python"
    assert "LD_LIBRARY_PATH" not in env.env
    assert env.spec(Limits()).layers == env.layers
    (prefix / "lib").mkdir()
    (prefix / "lib" / "libpython3.12.so.1.0").touch()
    assert EnvCache(tmp_path).ensure(EnvSpec("one")).env["LD_LIBRARY_PATH"] == "/opt/python/lib"
    started = time.perf_counter()
    for _ in range(100):
        cache.ensure(EnvSpec("one"))
    assert (time.perf_counter() - started) / 100 < 0.003


def test_an_environment_of_another_state_is_refused(tmp_path: Path) -> None:
    publish_one(tmp_path, Path(sys.base_prefix))
    cache = EnvCache(tmp_path)
    env = cache.ensure(EnvSpec("one"))
    assert cache.ensure(EnvSpec("one", env.digest)) == env
    for _ in range(2):  # a known one too
        with pytest.raises(CacheError, match=r"another than its task was validated with; run: python launch"):
            cache.ensure(EnvSpec("one", "other"))


def test_what_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    prefix = tmp_path / "python"
    cache = EnvCache(tmp_path)
    with pytest.raises(CacheError, match=r"one is not in .*python launch/prepare\.py"):
        cache.ensure(EnvSpec("one"))
    publish_one(tmp_path, prefix)
    (prefix / "bin").rmdir()
    with pytest.raises(CacheError, match=r"Python 3\.12\.1 is no longer at"):
        cache.ensure(EnvSpec("one"))
    (prefix / "bin").mkdir()
    (layer_dir(tmp_path, "repo-00") / "layer.json").unlink()
    with pytest.raises(CacheError, match="incomplete"):
        cache.ensure(EnvSpec("one"))
    env_path(tmp_path, "one").write_text("{")
    with pytest.raises(CacheError, match="damaged"):
        cache.ensure(EnvSpec("one"))
    for key in ("", "../x", "a/b", ".hidden"):
        with pytest.raises(CacheError, match="cannot be the key"):
            cache.ensure(EnvSpec(key))


def test_a_rebuilt_environment_is_noticed(tmp_path: Path) -> None:
    publish_one(tmp_path, tmp_path / "python")
    cache = EnvCache(tmp_path)
    assert cache.ensure(EnvSpec("one")).digest == "d"
    publish_env(tmp_path, "one", EnvRecord(("repo-00",), str(tmp_path / "python"), "3.12.1", "e"))
    assert cache.ensure(EnvSpec("one")).digest == "e"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), publish_layer(tmp_path, "repo-00", {}) as content:
        assert content is not None
        (content / "half").touch()
        raise RuntimeError
    assert not has_layer(tmp_path, "repo-00")
    assert not list((tmp_path / "layers").iterdir())


def test_leftovers_of_a_killed_build_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "layers" / ".tmp-repo-00-abc" / "root").mkdir(parents=True)
    (layer_dir(tmp_path, "repo-00") / "root").mkdir(parents=True)  # no layer.json: never published
    publish(tmp_path, text="whole")
    assert [path.name for path in (tmp_path / "layers").iterdir()] == ["repo-00"]
    assert (layer_dir(tmp_path, "repo-00") / "root" / "testbed" / "file").read_text() == "whole"


def test_layers_are_normal_and_not_built_twice(tmp_path: Path) -> None:
    publish(tmp_path, text="first")
    publish(tmp_path, text="second")
    file = layer_dir(tmp_path, "repo-00") / "root" / "testbed" / "file"
    info = file.stat()
    assert file.read_text() == "first"
    assert (info.st_uid, info.st_mtime, info.st_mode & 0o777) == (os.getuid(), FIXED_MTIME_S, 0o755)
    assert layer_name("repo", "0123456789abcdef0123") == "repo-0123456789abcdef"


def test_two_processes_build_one_layer_once(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from sandbox.cache_publish import publish_layer\n"
        "with publish_layer(Path(sys.argv[1]), 'repo-00', {}) as content:\n"
        "    print('built' if content else 'found')\n"
        "    time.sleep(0.3)\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate(timeout=60)[0].strip() for process in both) == ["built", "found"]
