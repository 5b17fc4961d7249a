"""`launch/cache.py`: what each command does, says and returns."""

import json
import shutil
from pathlib import Path

import pytest

from launch.cache import main
from sandbox.cache import EnvCache, EnvRecord
from sandbox.cache_layer import is_stored
from sandbox.cache_publish import publish_env
from sandbox.errors import CacheError
from sandbox.store import Store
from sandbox.store_push import push_envs
from sandbox.types import EnvSpec
from tests.cache.helpers import make_env, make_layer, make_store, visible


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_push_pull_and_ls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built, node, url = tmp_path / "built", tmp_path / "node", (tmp_path / "store").as_uri()
    for key in ("one", "two", "three"):
        make_env(built, key)
    status, out, _ = run(capsys, "push", "--cache-dir", built, "--store", url, "one", "two")
    assert status == 0 and "2 environments of 3 layers are in" in out and "3 layers, " in out
    assert is_stored(built, "task-one") and not is_stored(built, "task-three")
    status, out, _ = run(capsys, "push", "--cache-dir", built, "--store", url)
    assert status == 0 and "3 environments of 4 layers" in out and "1 layers, " in out
    status, out, _ = run(capsys, "ls", "--store", url)
    assert status == 0 and "task-two" in out and "3 environments, 4 layers" in out
    status, out, _ = run(capsys, "pull", "--cache-dir", node, "--store", url, "two", "three")
    assert status == 0 and "2 of 2 environments are here" in out
    assert visible(node) == ["base-00", "task-three", "task-two"]
    status, out, _ = run(capsys, "ls", "--cache-dir", node)
    assert status == 0 and "2 environments, 3 layers" in out and "stored" in out


def test_pull_takes_newer_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path, ["one"])
    cache = EnvCache(tmp_path / "node", store=store)
    assert cache.ensure(EnvSpec("one")).digest == "digest of one"
    make_layer(tmp_path / "built", "task-new", {"testbed/key": b"new"})
    publish_env(tmp_path / "built", "one", EnvRecord(("task-new", "base-00"), "", "3.12.1", "newer"))
    push_envs(tmp_path / "built", ["one"], store, say=lambda _line: None)
    assert cache.ensure(EnvSpec("one")).digest == "digest of one"  # until it is told
    assert run(capsys, "pull", "--cache-dir", tmp_path / "node", "--store", store.url)[0] == 0
    assert cache.ensure(EnvSpec("one")).digest == "newer"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    info = path.stat()
    path.write_bytes(data)
    import os

    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))  # nothing but the byte tells


def test_verify_finds_a_flipped_byte_and_repairs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, node = make_store(tmp_path, ["one"]), tmp_path / "node"
    EnvCache(node, store=store).ensure(EnvSpec("one"))
    assert run(capsys, "verify", "--cache-dir", node)[:2] == (0, "2 layers verified, 0 damaged\n")
    flip(node / "layers" / "task-one" / "root" / "testbed" / "data.bin")
    status, out, _ = run(capsys, "verify", "--cache-dir", node)
    assert status == 1
    assert "task-one: its content is not what its digest says; set aside; fetch it again" in out
    assert visible(node) == ["base-00"] and len(list((node / "quarantine").iterdir())) == 1
    EnvCache(node, store=store).ensure(EnvSpec("one"))
    flip(node / "layers" / "base-00" / "root" / "opt" / "text")
    status, out, _ = run(capsys, "verify", "--repair", "--store", store.url, "--cache-dir", node)
    assert status == 0 and "base-00: its content is not what its digest says; set aside, fetched again" in out
    assert run(capsys, "verify", "--cache-dir", node)[0] == 0


def test_verify_finds_a_flipped_byte_in_an_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_env(tmp_path / "built", "one")
    store, node = Store((tmp_path / "store").as_uri()), tmp_path / "node"
    push_envs(tmp_path / "built", ["one"], store, form="erofs", say=lambda _line: None)
    [image, _] = EnvCache(node, store=store).ensure(EnvSpec("one")).layers
    assert run(capsys, "verify", "--cache-dir", node)[0] == 0
    flip(image if image.is_file() else image / "testbed" / "data.bin")
    assert run(capsys, "verify", "--cache-dir", node)[0] == 1


def test_verify_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path, ["one", "two"])
    assert run(capsys, "verify", "--in-store", "--store", store.url)[:2] == (
        0,
        "3 layers verified, 0 damaged\n",
    )
    flip(next((tmp_path / "store" / "layers").glob("task-one.*.zst")))
    next((tmp_path / "store" / "layers").glob("task-two.*.zst")).unlink()
    status, out, _ = run(capsys, "verify", "--in-store", "--store", store.url)
    assert status == 1 and "3 layers verified, 2 damaged" in out
    assert "task-one: its sha256" in out and "task-two: " in out and "lacks" in out
    assert run(capsys, "verify", "--in-store", "--store", store.url, "base-00")[0] == 0
    assert run(capsys, "verify", "--in-store", "--repair", "--store", store.url)[0] == 1
    push_envs(tmp_path / "built", ["one", "two"], store, say=lambda _line: None)
    assert run(capsys, "verify", "--in-store", "--store", store.url)[0] == 0


def test_verify_tells_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_env(tmp_path, "one")
    status, out, _ = run(capsys, "verify", "--cache-dir", tmp_path, "nothing-0", "task-one")
    assert status == 1 and "nothing-0: is not on this node" in out


def test_damaged_layers_of_an_old_node_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_layer(tmp_path, "repo-00", {"file": b"x"})
    (tmp_path / "layers" / "repo-00" / "layer.json").write_text(json.dumps({"kind": "repo"}))
    status, out, _ = run(capsys, "verify", "--cache-dir", tmp_path)
    assert status == 0 and "1 of an older version have no digest" in out
    (tmp_path / "layers" / "repo-00" / "layer.json").write_text("{")
    status, out, _ = run(capsys, "verify", "--cache-dir", tmp_path)
    assert status == 1 and "layer.json is damaged" in out and visible(tmp_path) == []


def test_gc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, node = make_store(tmp_path, ["one"]), tmp_path / "node"
    EnvCache(node, store=store).ensure(EnvSpec("one"))
    node_ = ("--cache-dir", node)
    status, out, _ = run(capsys, "gc", *node_)
    assert status == 0 and "0 layers would be removed" in out and "wanted a moment ago" in out
    status, out, _ = run(capsys, "gc", *node_, "--grace-s", 0)
    assert status == 0 and "task-one would be removed" in out and "2 layers would be removed" in out
    assert "nothing was removed; say how much may stay" in out
    run(capsys, "gc", *node_, "--grace-s", 0, "--max-gib", 0, "--dry-run")
    assert visible(node) == ["base-00", "task-one"]
    status, out, _ = run(capsys, "gc", *node_, "--grace-s", 0, "--max-gib", 0)
    assert status == 0 and "2 layers removed" in out and visible(node) == []
    make_env(node, "here")
    everything = ("gc", *node_, "--grace-s", 0, "--max-gib", 0)
    assert "0 layers removed" in run(capsys, *everything)[1]
    assert "2 layers removed" in run(capsys, *everything, "--unstored")[1]
    assert run(capsys, "gc", *node_, "--max-gib", "-1")[0] == 2


def test_push_says_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("one", "two"):
        make_env(tmp_path, key, 3_000_000)
    _, out, _ = run(capsys, "push", "--cache-dir", tmp_path, "--store", tmp_path / "store")
    lines = [line for line in out.splitlines() if line.startswith("packed ")]
    counts = [int(line.split()[1]) for line in lines]
    assert len(lines) >= 2 and counts == sorted(counts)
    assert all(line.endswith(f" of {counts[-1]} bytes") for line in lines), "it ends with all of it"


def test_export_makes_a_store_that_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path, ["one", "two"])
    fresh = tmp_path / "fresh"
    make_env(fresh, "mine")
    for source, key in ((("--store", store.url), "two"), (("--cache-dir", fresh), "mine")):
        out_dir = tmp_path / f"export-{key}"
        status, out, _ = run(capsys, "export", *source, "--out", out_dir, key)
        assert status == 0 and "1 environments of 2 layers" in out
        moved = out_dir.rename(tmp_path / f"moved-{key}")
        assert not EnvCache(tmp_path / f"node-{key}", store=str(moved)).ensure(EnvSpec(key)).hit
        with pytest.raises(CacheError):
            EnvCache(tmp_path / f"node-{key}", store=str(moved)).ensure(EnvSpec("one"))
        status, _, err = run(capsys, "export", *source, "--out", moved, key)
        assert status == 2 and "exists already" in err
    assert not is_stored(fresh, "task-mine")  # a folder for somebody else is no store of ours


def test_a_damaged_file_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path, ["one"])
    flip(next((tmp_path / "store" / "layers").glob("task-one.*.zst")))
    status, _, err = run(capsys, "export", "--store", store.url, "--out", tmp_path / "out")
    assert status == 1 and "task-one in" in err and "damaged" in err


def test_a_damaged_layer_is_not_pushed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_env(tmp_path / "built", "one")
    flip(tmp_path / "built" / "layers" / "task-one" / "root" / "testbed" / "data.bin")
    status, _, err = run(capsys, "push", "--cache-dir", tmp_path / "built", "--store", tmp_path / "store")
    assert status == 1 and "task-one is damaged; run: python launch/cache.py verify" in err
    assert Store(str(tmp_path / "store")).names("envs") == []


def test_an_interpreter_of_this_machine_is_not_pushed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_layer(tmp_path, "repo-00", {"file": b"x"})
    publish_env(tmp_path, "old", EnvRecord(("repo-00",), "/usr", "3.12.1", "d"))
    status, _, err = run(capsys, "push", "--cache-dir", tmp_path, "--store", tmp_path / "store")
    assert status == 1 and "binds the interpreter at /usr of this machine" in err


def test_tasks_choose_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_env(tmp_path, "one")
    row = {
        "instance_id": "one", "patch": "diff --git a/x b/x\n", "FAIL_TO_PASS": ["t"], "PASS_TO_PASS": ["u"],
        "image_name": "i", "repo": "r", "problem_statement": "p",
    }  # fmt: skip
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(row) + "\n")
    status, out, _ = run(capsys, "push", "--cache-dir", tmp_path, "--store", tmp_path / "s", "--tasks", file)
    assert status == 0 and "1 environments" in out
    file.write_text("{}\n")
    assert run(capsys, "push", "--cache-dir", tmp_path, "--store", tmp_path / "s", "--tasks", file)[0] == 1


def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWE_STORE", raising=False)
    for command in (("push",), ("pull",), ("verify", "--repair"), ("verify", "--in-store")):
        status, _, err = run(capsys, *command, "--cache-dir", tmp_path)
        assert status == 2 and "no store is named" in err
    assert (
        "there are no environments"
        in run(capsys, "push", "--cache-dir", tmp_path, "--store", tmp_path / "s")[2]
    )
    assert "is no store" in run(capsys, "pull", "--cache-dir", tmp_path, "--store", tmp_path / "s")[2]
    store = make_store(tmp_path, ["one"])
    shutil.rmtree(tmp_path / "store" / "layers")
    status, out, err = run(capsys, "pull", "--cache-dir", tmp_path / "node", "--store", store.url)
    assert status == 1 and "one: layer task-one is neither" in err and "0 of 1 environments" in out
    for wrong in (["bogus"], [], ["export"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
