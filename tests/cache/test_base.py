"""Layers that are nearly the same are packed as differences, and come out whole wherever they are fetched."""

import json
from pathlib import Path

import pytest

from launch.cache import main
from sandbox import store_pack
from sandbox.cache import EnvCache, EnvRecord
from sandbox.cache_publish import publish_env, publish_layer
from sandbox.errors import CacheError
from sandbox.store import Store
from sandbox.store_pack import tree_facts
from sandbox.store_push import push_envs
from sandbox.types import EnvSpec
from tests.cache.helpers import CountingStore, noise, visible

LEVEL = store_pack.LEVEL
SIZE = 400_000
KEYS = ["one", "two", "three"]


@pytest.fixture(autouse=True)
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests pack faster, which finds less."""
    monkeypatch.setattr(store_pack, "LEVEL", LEVEL)


def make_task(root: Path, key: str, repo: str = "repo-00") -> None:
    """A task whose pack is that of its repository but for some bytes of its own."""
    pack = bytearray(noise(repo, SIZE))
    pack[SIZE // 2 : SIZE // 2 + 64] = noise(key, 64)
    with publish_layer(root, f"task-{key}", {"kind": "task", "repo": repo}) as content:
        assert content is not None
        (content / "testbed" / ".git").mkdir(parents=True)
        (content / "testbed" / ".git" / "pack").write_bytes(pack)
        (content / "testbed" / "key").write_text(key)
    with publish_layer(root, repo, {"kind": "repo"}) as content:
        if content is not None:
            (content / "file").write_text(repo)
    publish_env(root, key, EnvRecord((f"task-{key}", repo), "", "3.12.1", f"digest of {key}"))


def quiet(_line: str) -> None:
    pass


def pushed(folder: Path, name: str = "store") -> CountingStore:
    store = CountingStore((folder / name).as_uri())
    if not (folder / "built").exists():
        for key in KEYS:
            make_task(folder / "built", key)
    push_envs(folder / "built", KEYS, store, say=quiet)
    return store


def sizes(store: Store) -> dict[str, int]:
    found = {name: store.manifest(name) for name in store.names("layers")}
    return {name: manifest.file_bytes for name, manifest in found.items() if manifest is not None}


def is_whole(folder: Path, root: Path, key: str) -> bool:
    there, here = (place / "layers" / f"task-{key}" / "root" for place in (root, folder / "built"))
    return tree_facts(there) == tree_facts(here)


def test_one_is_packed_whole_and_the_others_small(tmp_path: Path) -> None:
    store = pushed(tmp_path)
    assert sizes(store)["task-one"] > SIZE
    assert all(sizes(store)[f"task-{key}"] < 4000 for key in ("two", "three"))
    files = {path.name: path.read_bytes() for path in (tmp_path / "store" / "layers").iterdir()}
    again = pushed(tmp_path, "again")
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "again" / "layers").iterdir()}
    assert push_envs(tmp_path / "built", KEYS, again, say=quiet).new_layers == 0


def test_a_later_push_finds_the_base_of_an_earlier_one(tmp_path: Path) -> None:
    """By another machine, which never had it."""
    store = pushed(tmp_path)
    make_task(tmp_path / "other", "four")
    make_task(tmp_path / "other", "alien", "repo-01")
    push_envs(tmp_path / "other", ["four", "alien"], store, say=quiet)
    assert sizes(store)["task-four"] < 4000 and sizes(store)["task-alien"] > SIZE
    EnvCache(tmp_path / "node", store=store).ensure(EnvSpec("four"))
    assert (tmp_path / "node/layers/task-four/root/testbed/key").read_text() == "four"


def test_a_node_reads_the_base_from_the_store_or_where_it_has_it(tmp_path: Path) -> None:
    store = pushed(tmp_path)
    cache = EnvCache(tmp_path / "node", store=store)
    cache.ensure(EnvSpec("two"))
    assert sorted(store.opened) == ["repo-00", "task-one", "task-two"]
    assert visible(tmp_path / "node") == ["repo-00", "task-two"] and is_whole(
        tmp_path, tmp_path / "node", "two"
    )
    cache.ensure(EnvSpec("one"))
    store.opened.clear()
    env = cache.ensure(EnvSpec("three"))
    assert store.opened == ["task-three"] and env.fetched_bytes < 4000
    assert is_whole(tmp_path, tmp_path / "node", "three")


def test_a_damaged_base_on_the_node_is_read_from_the_store(tmp_path: Path) -> None:
    store, node = pushed(tmp_path), tmp_path / "node"
    cache = EnvCache(node, store=store)
    cache.ensure(EnvSpec("one"))
    path = node / "layers/task-one/root/testbed/.git/pack"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    cache.ensure(EnvSpec("two"))
    assert is_whole(tmp_path, node, "two")


def test_a_base_that_is_another_one_here_is_not_used(tmp_path: Path) -> None:
    """A layer of the same name with other content: a build that is not reproducible."""
    store, node = pushed(tmp_path), tmp_path / "node"
    make_task(node, "one", "repo-99")
    EnvCache(node, store=store).ensure(EnvSpec("two"))
    assert is_whole(tmp_path, node, "two")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = main([str(argument) for argument in arguments])
    return status, capsys.readouterr().out


def test_a_lost_base_is_told_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = pushed(tmp_path)
    file = next((tmp_path / "store" / "layers").glob("task-one.*.zst"))
    file.write_bytes(file.read_bytes()[:-10] + bytes(10))
    with pytest.raises(CacheError, match="task-one, which others are packed against, is damaged"):
        EnvCache(tmp_path / "node", store=store).ensure(EnvSpec("two"))
    assert visible(tmp_path / "node") == []
    in_store = ("verify", "--in-store", "--store", store.url)
    status, out = run(capsys, *in_store, "--repair")
    assert status == 1 and "4 layers verified, 3 damaged" in out
    assert "task-two: it is packed against task-one, which" in out
    push_envs(tmp_path / "built", KEYS, store, say=quiet)
    assert run(capsys, *in_store)[0] == 0
    EnvCache(tmp_path / "node", store=store).ensure(EnvSpec("two"))
    assert is_whole(tmp_path, tmp_path / "node", "two")


def test_differences_of_differences_are_followed(tmp_path: Path) -> None:
    """A base that was lost alone is pushed again, against whatever serves then."""
    store = pushed(tmp_path)
    store.forget_layer("task-one")
    make_task(tmp_path / "built", "four")
    push_envs(tmp_path / "built", ["four"], store, say=quiet)
    push_envs(tmp_path / "built", ["one"], store, say=quiet)
    base = {name: getattr(store.manifest(name), "base", None) for name in store.names("layers")}
    assert base.pop("repo-00") == ""
    assert base == {
        "task-one": "task-four",
        "task-two": "task-one",
        "task-three": "task-one",
        "task-four": "",
    }
    EnvCache(tmp_path / "node", store=store).ensure(EnvSpec("two"))
    assert is_whole(tmp_path, tmp_path / "node", "two")


def test_an_export_takes_the_base_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = pushed(tmp_path)
    assert run(capsys, "export", "--store", store.url, "--out", tmp_path / "out", "three")[0] == 0
    out = Store(str(tmp_path / "out"))
    assert out.names("layers") == ["repo-00", "task-one", "task-three"] and out.names("envs") == ["three"]
    EnvCache(tmp_path / "node", store=out).ensure(EnvSpec("three"))
    assert is_whole(tmp_path, tmp_path / "node", "three")


def test_images_and_damaged_notes_are_packed_whole(tmp_path: Path) -> None:
    store = pushed(tmp_path)
    push_envs(tmp_path / "built", KEYS, Store(str(tmp_path / "images")), form="erofs", say=quiet)
    manifests = [Store(str(tmp_path / "images")).manifest(f"task-{key}") for key in KEYS]
    assert all(manifest is not None and not manifest.base for manifest in manifests)
    for note in ("{", json.dumps({"layer": "task-none"}), json.dumps({"layer": "task-two"})):
        store.write("bases/repo-00.json", note.encode())
        store.forget_layer("task-three")
        push_envs(tmp_path / "built", ["three"], store, say=quiet)
        assert sizes(store)["task-three"] > SIZE
