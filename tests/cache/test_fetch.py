"""A node fetches what is missing: once, whole, checked; and says clearly why it could not."""

import asyncio
import io
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandbox import syscalls
from sandbox.cache import EnvCache, have_env
from sandbox.cache_gate import LocalGate, NoGate
from sandbox.cache_layer import has_layer, is_stored, read_info
from sandbox.errors import CacheError
from sandbox.images import kind
from sandbox.store import Store
from sandbox.store_pack import PackedForm, tree_facts
from sandbox.store_push import push_envs
from sandbox.types import EnvSpec
from tests.cache.helpers import CountingStore, clear_memory_store, make_env, make_store, visible


def quiet(_line: str) -> None:
    pass


def test_missing_layers_are_fetched_and_then_found(tmp_path: Path) -> None:
    store = CountingStore(make_store(tmp_path, ["one", "two"]).url)
    node = tmp_path / "node"
    cache = EnvCache(node, store=store)
    env = cache.ensure(EnvSpec("one"))
    assert not env.hit and env.fetched_bytes > 200_000 and env.fetch_s > 0 and env.gate_wait_s < 0.5
    assert [layer.name for layer in env.layers] == ["root", "root"]
    assert (env.layers[0] / "testbed" / "key").read_text() == "one"
    assert env.binds == () and env.digest == "digest of one"
    again = cache.ensure(EnvSpec("one"))
    assert again.hit and again.layers == env.layers and (again.fetched_bytes, again.fetch_s) == (0, 0.0)
    assert EnvCache(node).ensure(EnvSpec("one")).hit  # without the store too
    other = cache.ensure(EnvSpec("two"))
    assert not other.hit and other.layers[1] == env.layers[1]
    assert store.opened == ["task-one", "base-00", "task-two"]
    assert visible(node) == ["base-00", "task-one", "task-two"]
    for name in visible(node):
        assert read_info(node, name).tree_sha256 == tree_facts(node / "layers" / name / "root").sha256
        assert read_info(node, name) == read_info(tmp_path / "built", name) and is_stored(node, name)


@pytest.mark.parametrize("form", ["squashfs", "erofs"])
def test_images_are_kept_where_they_can_be_mounted(tmp_path: Path, form: PackedForm) -> None:
    make_env(tmp_path / "built", "one")
    store = Store((tmp_path / "store").as_uri())
    push_envs(tmp_path / "built", ["one"], store, form=form, say=quiet)
    env = EnvCache(tmp_path / "node", store=store).ensure(EnvSpec("one"))
    mountable = os.geteuid() == 0
    assert [layer.name for layer in env.layers] == ["image" if mountable else "root"] * 2
    if mountable:
        assert [kind(str(layer)) for layer in env.layers] == [form, form]
    assert read_info(tmp_path / "node", "task-one").form == (form if mountable else "tree")
    assert EnvCache(tmp_path / "node").ensure(EnvSpec("one")).layers == env.layers


def test_images_are_unpacked_where_they_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_env(tmp_path / "built", "one")
    store = Store((tmp_path / "store").as_uri())
    push_envs(tmp_path / "built", ["one"], store, form="squashfs", say=quiet)

    def refused(*_arguments: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("sandbox.images.fscontext.mount_read_only", refused)
    env = EnvCache(tmp_path / "node", store=store).ensure(EnvSpec("one"))
    assert [layer.name for layer in env.layers] == ["root", "root"]
    assert read_info(tmp_path / "node", "task-one").form == "tree"
    assert not (env.layers[0].parent / "image").exists()


def test_a_store_in_memory_and_plain_paths_work(tmp_path: Path) -> None:
    make_env(tmp_path / "built", "one")
    clear_memory_store()
    for url in ("memory://team/store", str(tmp_path / "plain")):
        push_envs(tmp_path / "built", ["one"], Store(url), say=quiet)
        node = tmp_path / f"node{len(url)}"
        assert not EnvCache(node, store=url).ensure(EnvSpec("one")).hit
        assert Store(url).names("envs") == ["one"]
        assert Store(url).names("layers") == ["base-00", "task-one"]


STARTS = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from sandbox.cache import EnvCache, have_env
from sandbox.store import Store
from sandbox.types import EnvSpec

class Logged(Store):
    def open_layer(self, manifest):
        with open(sys.argv[3], "a") as log:
            log.write(manifest.name + "\\n")
        return super().open_layer(manifest)

cache = EnvCache(Path(sys.argv[1]), store=Logged(sys.argv[2]))
while time.time() < float(sys.argv[4]):
    time.sleep(0.001)
with ThreadPoolExecutor(32) as pool:
    found = list(pool.map(lambda _: cache.ensure(EnvSpec("one")), range(32)))
assert all((env.layers[0] / "testbed" / "key").read_text() == "one" for env in found)
print(sum(not env.hit for env in found))
"""


def test_128_simultaneous_starts_of_a_cold_layer_fetch_it_once(tmp_path: Path) -> None:
    """Four processes of 32 threads each, from one moment on."""
    store = make_store(tmp_path, ["one"], size_bytes=700_000)
    log, begin = tmp_path / "log", time.time() + 4
    argv = [sys.executable, "-c", STARTS, str(tmp_path / "node"), store.url, str(log), str(begin)]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(log.read_text().split()) == ["base-00", "task-one"]
    assert 1 <= sum(counts) <= 2  # one of them fetched both layers, or two one each
    assert visible(tmp_path / "node") == ["base-00", "task-one"]


def test_first_use_costs_little_more_than_the_bytes_and_later_ones_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path, [f"env{number}" for number in range(7)], size_bytes=700_000)
    extra: list[float] = []
    later: list[float] = []
    cache = EnvCache(tmp_path / "node", store=store)
    cache.ensure(EnvSpec("env0"))  # what is imported once per process is not of a layer
    for number in range(1, 7):
        started = time.monotonic()
        env = cache.ensure(EnvSpec(f"env{number}"))
        extra.append(time.monotonic() - started - env.fetch_s)
        assert not env.hit
        for _ in range(20):
            started = time.monotonic()
            assert cache.ensure(EnvSpec(f"env{number}")).hit
            later.append(time.monotonic() - started)
    assert statistics.median(extra) < 0.1
    assert statistics.median(later) < 0.005


SLOW = """
import sys, time
from pathlib import Path
from sandbox.cache import EnvCache, have_env
from sandbox.store import Store
from sandbox.types import EnvSpec
import sandbox.store_fetch as fetch

original = fetch.Checked.readinto
def slowly(self, buffer):
    count = original(self, memoryview(buffer)[:20_000])
    print("read", flush=True)
    time.sleep(0.05)
    return count
fetch.Checked.readinto = slowly
EnvCache(Path(sys.argv[1]), store=sys.argv[2]).ensure(EnvSpec("one"))
"""


def test_a_fetcher_killed_while_unpacking_blocks_nobody_and_leaves_nothing(tmp_path: Path) -> None:
    store, node = make_store(tmp_path, ["one"]), tmp_path / "node"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(node), store.url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    unfinished = visible(node)
    assert len(unfinished) == 1 and unfinished[0].startswith(".tmp-")
    with ThreadPoolExecutor(2) as pool:
        # Another one waits for it, with a gate of one unit that it holds too.
        cache = EnvCache(node, store=store, gate=LocalGate(node / "gate", units=40))
        waiting = pool.submit(cache.ensure, EnvSpec("one"))
        time.sleep(0.3)
        assert not waiting.done() and not has_layer(node, "task-one")
        process.send_signal(signal.SIGKILL)
        process.wait()
        env = waiting.result(timeout=30)
    assert not env.hit
    assert visible(node) == ["base-00", "task-one"]
    assert tree_facts(env.layers[0]) == tree_facts(tmp_path / "built" / "layers" / "task-one" / "root")


def layer_file(tmp_path: Path, name: str) -> Path:
    [found] = [path for path in (tmp_path / "store" / "layers").glob(f"{name}.*") if path.suffix != ".json"]
    return found


def refused(tmp_path: Path, store: Store | None, match: str) -> None:
    """Asking for the environment fails so, and nothing of it is to be seen."""
    node = tmp_path / "node"
    with pytest.raises(CacheError, match=match):
        EnvCache(node, store=store).ensure(EnvSpec("one"))
    assert "task-one" not in visible(node)
    assert not [name for name in visible(node) if name.startswith(".")]


@pytest.mark.parametrize("place", [0.0, 0.3, 0.999])
def test_a_flipped_byte_in_the_store_is_refused(tmp_path: Path, place: float) -> None:
    store = make_store(tmp_path, ["one"])
    file = layer_file(tmp_path, "task-one")
    data = bytearray(file.read_bytes())
    data[int(place * len(data))] ^= 1
    file.write_bytes(data)
    refused(tmp_path, store, r"task-one arrives damaged from .*sha256.*push it again")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path, ["one"])
    file = layer_file(tmp_path, "task-one")
    size = file.stat().st_size
    os.truncate(file, size - 1000)
    refused(tmp_path, store, rf"task-one arrives damaged.*{size - 1000} bytes instead of {size}")


def test_a_file_with_something_behind_it_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path, ["one"])
    with layer_file(tmp_path, "task-one").open("ab") as file:
        file.write(b"more")
    refused(tmp_path, store, "task-one arrives damaged.*instead of")


def test_a_damaged_image_is_refused_before_it_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_env(tmp_path / "built", "one")
    store = Store((tmp_path / "store").as_uri())
    push_envs(tmp_path / "built", ["one"], store, form="squashfs", say=quiet)
    file = layer_file(tmp_path, "task-one")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    monkeypatch.setattr("sandbox.images.attach", lambda path: pytest.fail(f"{path} was mounted"))
    refused(tmp_path, store, "task-one arrives damaged")


def test_a_download_that_breaks_off_once_is_tried_again(tmp_path: Path) -> None:
    class Flaky(CountingStore):
        def open_layer(self, manifest: Any) -> Any:
            whole = super().open_layer(manifest)
            if self.opened.count(manifest.name) == 1:
                return io.BytesIO(whole.read(1000))
            return whole

    store = Flaky(make_store(tmp_path, ["one"]).url)
    assert not EnvCache(tmp_path / "node", store=store).ensure(EnvSpec("one")).hit
    assert store.opened == ["task-one"] * 2 + ["base-00"] * 2


def test_a_store_that_breaks_off_in_the_middle(tmp_path: Path) -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise ConnectionResetError("peer went away")

    class Breaking(Store):
        def open_layer(self, manifest: Any) -> Any:
            return Broken()

    store = Breaking(make_store(tmp_path, ["one"]).url)
    refused(tmp_path, store, "task-one arrives damaged.*broke off after 0 bytes: peer went away")


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path, Store((tmp_path / "nothing").as_uri()), "is no store: not mounted")
    (tmp_path / "empty").mkdir()  # a share that is not mounted
    refused(tmp_path, Store((tmp_path / "empty").as_uri()), "is no store: not mounted")
    refused(tmp_path, Store("teapot://x"), "the store teapot://x cannot be used")


def test_a_store_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, attempts = make_store(tmp_path, ["one"]), list[str]()

    class Dead:
        protocol = "dead"

        def cat_file(self, path: str) -> bytes:
            attempts.append(path)
            raise TimeoutError("no answer")

    monkeypatch.setattr("sandbox.store.PAUSE_S", 0.001)
    monkeypatch.setattr(store, "_opened", (Dead(), "/x"))
    refused(tmp_path, store, "does not answer.*no answer")
    assert len(attempts) == 3


def test_what_is_in_no_place_is_named_with_the_remedy(tmp_path: Path) -> None:
    store = make_store(tmp_path, ["one"])
    with pytest.raises(
        CacheError, match=r"environment two is neither in .* nor in .*prepare\.py.*cache\.py push"
    ):
        EnvCache(tmp_path / "node", store=store).ensure(EnvSpec("two"))
    (tmp_path / "store" / "layers" / "task-one.json").unlink()
    refused(tmp_path, store, r"layer task-one is neither on this node nor in .*launch/cache\.py push")


@pytest.mark.parametrize("damage", ["not json", "other format", "other name", "path in file"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, damage: str) -> None:
    store = make_store(tmp_path, ["one"])
    path = tmp_path / "store" / "layers" / "task-one.json"
    data = json.loads(path.read_text())
    data |= {
        "other format": {"format": 9},
        "other name": {"name": "x"},
        "path in file": {"file": "../x"},
    }.get(damage, {})
    path.write_text("{" if damage == "not json" else json.dumps(data))
    refused(tmp_path, store, "damaged|cannot be the name")


def test_a_record_that_names_a_path_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path, ["one"])
    path = tmp_path / "store" / "envs" / "one.json"
    path.write_text(path.read_text().replace("task-one", "../../etc"))
    refused(tmp_path, store, "cannot be the name of a layer")
    assert not (tmp_path / "node" / "envs" / "one.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 1.2 MB."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user cannot mount a small disk")
    place = tmp_path / "small"
    place.mkdir()
    syscalls.mount("tmpfs", str(place), "tmpfs", 0, "size=1200k")
    yield place
    syscalls.umount_detach(str(place))


def test_a_full_disk_is_said_and_nothing_half_done_is_left(tmp_path: Path, small_disk: Path) -> None:
    make_store(tmp_path, ["large"], size_bytes=1_500_000)
    store = make_store(tmp_path, ["small"], size_bytes=200_000)
    cache = EnvCache(small_disk, store=store)
    with pytest.raises(
        CacheError, match=r"the disk of the cache .* is full: layer task-large needs 1500005 bytes"
    ):
        cache.ensure(EnvSpec("large"))
    assert visible(small_disk) == []
    assert not cache.ensure(EnvSpec("small")).hit  # and it goes on


def test_a_full_disk_is_made_room_on(tmp_path: Path, small_disk: Path) -> None:
    """Layers that nobody wanted for a while go, even where no bound is set."""
    store = make_store(tmp_path, ["one", "two", "three"], size_bytes=450_000)
    cache = EnvCache(small_disk, store=store, grace_s=0.2)
    cache.ensure(EnvSpec("one"))
    cache.ensure(EnvSpec("two"))
    time.sleep(0.3)
    assert not cache.ensure(EnvSpec("three")).hit
    assert "task-three" in visible(small_disk) and "task-one" not in visible(small_disk)


def test_a_full_store_is_said(tmp_path: Path, small_disk: Path) -> None:
    make_env(tmp_path / "built", "one", 1_500_000)
    store = Store((small_disk / "store").as_uri())
    with pytest.raises(CacheError, match="is full"):
        push_envs(tmp_path / "built", ["one"], store, say=quiet)
    assert "task-one" not in store.names("layers") and store.names("envs") == []
    assert not [path for path in (small_disk / "store" / "layers").iterdir() if "base-00" not in path.name]


def test_a_layer_that_lost_its_content_is_set_aside_and_fetched_again(tmp_path: Path) -> None:
    store, node = make_store(tmp_path, ["one"]), tmp_path / "node"
    EnvCache(node, store=store).ensure(EnvSpec("one"))
    shutil.rmtree(node / "layers" / "task-one" / "root")
    assert not EnvCache(node, store=store).ensure(EnvSpec("one")).hit
    assert [path.name.partition(".")[0] for path in (node / "quarantine").iterdir()] == ["task-one"]
    shutil.rmtree(node / "layers" / "task-one" / "root")
    with pytest.raises(CacheError, match=r"task-one is incomplete.*prepare\.py"):
        EnvCache(node).ensure(EnvSpec("one"))


async def test_an_event_loop_is_not_held_up(tmp_path: Path) -> None:
    """As rollouts call it: in threads, many at once, on a node that has nothing."""
    store = make_store(tmp_path, [f"env{number}" for number in range(4)])
    cache = EnvCache(tmp_path / "node", store=store, gate=LocalGate(tmp_path / "gate", units=1))
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.002)
            beats += 1

    heart = asyncio.create_task(beat())
    found = await asyncio.gather(
        *(asyncio.to_thread(cache.ensure, EnvSpec(f"env{number % 4}")) for number in range(40))
    )
    heart.cancel()
    assert len({env.layers for env in found}) == 4
    assert beats > 3


def test_no_gate_gates_nothing() -> None:
    with NoGate().hold(1 << 40) as first, NoGate().hold(1 << 40) as second:
        assert (first, second) == (0.0, 0.0)


async def test_what_is_here_needs_no_thread_and_a_fetch_does_not_hold_up_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, ["one", "two"])
    cache = EnvCache(tmp_path / "node", store=store)
    threads: list[object] = []
    really = asyncio.to_thread

    async def noted(function: Any, *arguments: Any) -> Any:
        threads.append(function)
        return await really(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    first = await have_env(cache, EnvSpec("one"))
    assert not first.hit and len(threads) == 1
    for other in (cache, EnvCache(tmp_path / "node", store=store), EnvCache(tmp_path / "node")):
        again = await have_env(other, EnvSpec("one"))
        assert again.hit and again.layers == first.layers and again.fetched_bytes == 0
    assert len(threads) == 1
    with pytest.raises(CacheError, match="another than its task was validated with"):
        await have_env(cache, EnvSpec("one", "other"))
    shutil.rmtree(tmp_path / "node" / "layers" / "task-one" / "root")
    mended = await have_env(cache, EnvSpec("one"))
    assert not mended.hit and len(threads) == 2 and mended.layers[0].is_dir()
