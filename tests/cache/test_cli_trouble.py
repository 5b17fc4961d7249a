"""`launch/cache.py`: slips of the keyboard, interrupts, and what is damaged beside layers."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.cache import EnvCache
from sandbox.cache_layer import is_stored
from sandbox.errors import CacheError
from sandbox.store import Store
from sandbox.store_push import copy_envs, push_envs
from sandbox.types import EnvSpec
from tests.cache.helpers import make_env, make_store, visible
from tests.cache.test_cli import run


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def test_a_repair_of_the_store_keeps_the_last_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, node = make_store(tmp_path, ["one"]), tmp_path / "node"
    EnvCache(node, store=store).ensure(EnvSpec("one"))
    cut(next((tmp_path / "store" / "layers").glob("task-one.*.zst")))
    verify = ("verify", "--in-store", "--store", store.url, "--cache-dir", node)
    assert run(capsys, *verify)[0] == 1 and is_stored(node, "task-one")
    assert run(capsys, *verify, "--repair")[0] == 1 and not is_stored(node, "task-one")
    run(capsys, "gc", "--cache-dir", node, "--max-gib", 0, "--grace-s", 0)
    assert visible(node) == ["task-one"], "base-00 is stored and goes"


def test_a_repair_of_the_store_needs_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, nowhere = make_store(tmp_path, ["one"]), tmp_path / "nowhere"
    cut(tmp_path / "store" / "layers" / "task-one.json")
    arguments = ("--in-store", "--repair", "--store", store.url, "--cache-dir", nowhere)
    assert "task-one: the store's manifest" in run(capsys, "verify", *arguments)[1]
    assert not nowhere.exists()


def test_verify_looks_at_the_records_of_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, node = make_store(tmp_path, ["one", "two"]), tmp_path / "node"
    for key in ("one", "two"):
        EnvCache(node, store=store).ensure(EnvSpec(key))
    run(capsys, "gc", "--cache-dir", node, "--max-gib", 0, "--grace-s", 0)
    status, out, _ = run(capsys, "verify", "--cache-dir", node)
    assert (status, out) == (0, "0 layers verified, 0 damaged\n"), "what was evicted is not damaged"
    cut(node / "envs" / "two.json")
    status, out, _ = run(capsys, "verify", "--cache-dir", node)
    assert status == 1 and "record two: " in out and "0 layers verified, 0 damaged, 1 records damaged" in out
    assert run(capsys, "pull", "--cache-dir", node, "--store", store.url, "two")[0] == 0
    assert run(capsys, "verify", "--cache-dir", node)[0] == 0


def test_verify_looks_at_the_records_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path, ["one", "two"])
    verify = ("verify", "--in-store", "--store", store.url)
    cut(tmp_path / "store" / "envs" / "one.json")
    store.forget_layer("task-two")
    status, out, _ = run(capsys, *verify)
    assert status == 1 and "2 layers verified, 0 damaged, 2 records damaged" in out
    assert "record one: it is damaged" in out
    assert "record two: it names task-two, which the store lacks; push it again" in out
    assert run(capsys, *verify, "base-00")[0] == 0, "one layer was asked for"
    push_envs(tmp_path / "built", ["one", "two"], store, say=lambda _line: None)
    assert run(capsys, *verify)[0] == 0


def test_a_damaged_manifest_names_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path, ["one"])
    push = ("push", "--store", store.url, "--cache-dir", tmp_path / "built")
    cut(tmp_path / "store" / "layers" / "task-one.json")
    status, _, err = run(capsys, *push)
    assert status == 1 and "python launch/cache.py verify --in-store --repair" in err
    out = run(capsys, "verify", "--in-store", "--repair", "--store", store.url)[1]
    assert "; removed, then push it again" in out and "--repair" not in out
    assert run(capsys, *push)[0] == 0


@pytest.mark.parametrize("command", ["ls", "verify", "gc", "push", "export"])
def test_a_cache_that_is_not_there_is_a_slip(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWE_STORE", raising=False)
    more = {"push": ("--store", tmp_path / "s"), "export": ("--out", tmp_path / "o")}.get(command, ())
    status, _, err = run(capsys, command, "--cache-dir", tmp_path / "slip", *more)
    assert status == 2 and f"there is no cache folder {tmp_path / 'slip'}" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--max-gib", "--grace-s"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e999"])
def test_gc_takes_sane_numbers(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "gc", "--cache-dir", tmp_path, f"{option}={value}")
    assert status == 2 and "--max-gib is 0 to" in err
    assert run(capsys, "gc", "--cache-dir", tmp_path, "--max-gib", "1e300")[0] == 2


def test_unknown_names_are_slips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_env(tmp_path, "one")
    status, _, err = run(capsys, "push", "--cache-dir", tmp_path, "--store", tmp_path / "s", "other")
    assert status == 2 and "no such environment: other" in err
    status, _, err = run(capsys, "pull", "--cache-dir", tmp_path, "--store", "zzz://x")
    assert status == 2 and "the store zzz://x cannot be used" in err


def test_an_interrupt_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.cache.list_node", interrupted)
    monkeypatch.delenv("SWE_STORE", raising=False)
    assert run(capsys, "ls", "--cache-dir", tmp_path) == (130, "", "launch/cache.py ls: interrupted\n")


def test_an_interrupt_ends_what_a_push_is_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, begun, ended = [f"k{number}" for number in range(6)], list[str](), threading.Event()
    for key in keys:
        make_env(tmp_path, key, 1000)

    def push_layer(_root: Path, name: str, *, progress: Any, **_: Any) -> int:
        begun.append(name)
        deadline = time.monotonic() + 20
        while len(begun) > 1 and time.monotonic() < deadline:
            try:
                progress(1)
            except CacheError:
                ended.set()
                raise
            time.sleep(0.01)
        return 1

    def say(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sandbox.store_push.push_layer", push_layer)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0})
    with pytest.raises(KeyboardInterrupt):
        push_envs(tmp_path, keys, Store(str(tmp_path / "s")), say=say)
    assert begun[1:] == [] or ended.is_set()
    assert len(begun) <= 2


def test_a_base_of_many_layers_is_counted_once(tmp_path: Path) -> None:
    store = make_store(tmp_path, ["one", "two", "three"])
    for key in ("one", "two"):
        manifest = store.manifest(f"task-{key}")
        assert manifest is not None
        store.put_layer(replace(manifest, base="task-three", base_sha256="x"), tmp_path / "unread")
    done = copy_envs(store, Store(str(tmp_path / "copy")), ["one", "two"], say=lambda _line: None)
    assert (done.envs, done.layers) == (2, 4)
