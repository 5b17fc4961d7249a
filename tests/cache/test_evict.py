"""A bounded cache: the oldest goes first; what is used or wanted stays, whoever uses it."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.cache import EnvCache
from sandbox.cache_evict import evict, layer_uses, remove_unused
from sandbox.cache_layer import has_layer, layer_dir
from sandbox.cache_lease import LAYER_FILE, Leases, locked
from sandbox.errors import SandboxStartError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, EnvSpec, Limits, SandboxSpec
from tests.cache.helpers import make_layer, make_store, noise, visible

LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=32 * MIB)


def aged(root: Path, name: str, age_s: float) -> None:
    moment = time.time() - age_s
    os.utime(layer_dir(root, name) / LAYER_FILE, (moment, moment))


def three_layers(root: Path) -> None:
    for number, name in enumerate(("old-0", "middle-0", "new-0")):
        make_layer(root, name, {"file": noise(name, 100_000)})
        (layer_dir(root, name) / "stored").touch()
        aged(root, name, 3000 - 1000 * number)


def test_what_was_wanted_longest_ago_goes_first(tmp_path: Path) -> None:
    three_layers(tmp_path)
    sizes = {use.name: use.disk_bytes for use in layer_uses(tmp_path)}
    assert list(sizes) == ["old-0", "middle-0", "new-0"] and min(sizes.values()) > 100_000
    done = evict(tmp_path, sum(sizes.values()) - 1)
    assert (done.layers, done.freed_bytes) == (("old-0",), sizes["old-0"])
    assert done.left_bytes == sizes["middle-0"] + sizes["new-0"]
    assert visible(tmp_path) == ["middle-0", "new-0"]
    assert evict(tmp_path, 0).layers == ("middle-0", "new-0")
    assert visible(tmp_path) == []


def test_what_was_asked_for_lately_is_kept_and_no_store_holds_stays(tmp_path: Path) -> None:
    three_layers(tmp_path)
    aged(tmp_path, "old-0", 10)
    (layer_dir(tmp_path, "middle-0") / "stored").unlink()
    assert evict(tmp_path, 0, keep=["new-0"]).layers == ()
    assert evict(tmp_path, 0).layers == ("new-0",)
    assert evict(tmp_path, 0, unstored=True).layers == ("middle-0",)
    assert evict(tmp_path, 0, grace_s=5).layers == ("old-0",)


def test_a_leased_layer_stays_until_every_user_is_gone(tmp_path: Path) -> None:
    three_layers(tmp_path)
    leases = Leases()
    layer = layer_dir(tmp_path, "old-0") / "root"
    first, second = leases.take([layer, tmp_path]), leases.take([layer])
    assert [use.in_use for use in layer_uses(tmp_path)] == [True, False, False]
    assert "old-0" not in evict(tmp_path, 0).layers
    leases.release(first)
    assert not evict(tmp_path, 0).layers
    leases.release(second)
    assert evict(tmp_path, 0).layers == ("old-0",)


HOLDER = """
import sys, time
from pathlib import Path
from sandbox.cache_lease import Leases
leases = Leases()
leases.take([Path(sys.argv[1])])
print("held", flush=True)
time.sleep(60)
"""


def test_uses_are_seen_across_processes_and_end_with_a_kill(tmp_path: Path) -> None:
    three_layers(tmp_path)
    layer = layer_dir(tmp_path, "old-0") / "root"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(layer)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    assert not remove_unused(tmp_path, "old-0", grace_s=0)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert remove_unused(tmp_path, "old-0", grace_s=0)


def test_a_layer_that_was_just_evicted_is_not_opened(tmp_path: Path) -> None:
    three_layers(tmp_path)
    path, leases = layer_dir(tmp_path, "old-0"), Leases()
    before = set(os.listdir("/proc/self/fd"))
    original = (path / LAYER_FILE).read_text()

    def replaced(_fd: int, _operation: int) -> None:
        (path / LAYER_FILE).unlink()
        (path / LAYER_FILE).write_text(original)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sandbox.cache_lease.fcntl.flock", replaced)
        with pytest.raises(SandboxStartError, match="old-0 was evicted"):
            leases.take([layer_dir(tmp_path, "new-0") / "root", path / "root"])
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_killed_eviction_is_finished_by_the_next(tmp_path: Path) -> None:
    three_layers(tmp_path)
    layer_dir(tmp_path, "old-0").rename(tmp_path / "layers" / ".trash-old-0-1")
    assert not has_layer(tmp_path, "old-0")
    for name, age_s in ((".tmp-a", 90_000), (".tmp-b", 3600)):
        (tmp_path / "layers" / name).mkdir()
        os.utime(tmp_path / "layers" / name, (time.time() - age_s,) * 2)
    evict(tmp_path, 1 << 40)
    assert visible(tmp_path) == [".tmp-b", "middle-0", "new-0"]


def test_a_lock_file_may_be_removed_by_its_holder(tmp_path: Path) -> None:
    """The next one locks the file that is there, not the one that is gone."""
    order: list[str] = []

    async def one(name: str) -> None:
        def work() -> None:
            with locked(tmp_path / "lock"):
                order.append(f"{name} in")
                time.sleep(0.02)
                (tmp_path / "lock").unlink()
                order.append(f"{name} out")

        await asyncio.to_thread(work)

    async def all_of_them() -> None:
        await asyncio.gather(*(one(str(number)) for number in range(6)))

    asyncio.run(all_of_them())
    for entered, left in zip(order[::2], order[1::2], strict=True):
        assert entered.removesuffix(" in") == left.removesuffix(" out")


@pytest.mark.usefixtures("usable")
async def test_a_sandbox_holds_its_layers_and_its_fork_too(tmp_path: Path) -> None:
    three_layers(tmp_path)
    layer = layer_dir(tmp_path, "old-0") / "root"
    spec = SandboxSpec(layers=(layer,), limits=LIMITS)

    def in_use() -> bool:
        return layer_uses(tmp_path)[0].in_use

    async with MiniBackend(state_dir=tmp_path / "state") as backend:
        sandbox = await backend.open(spec)
        assert in_use()
        fork = await sandbox.fork()
        await sandbox.close()
        assert in_use() and not remove_unused(tmp_path, "old-0", grace_s=0)
        await fork.close()
        await asyncio.sleep(0)
        assert not in_use()
        with pytest.raises(SandboxStartError):
            await backend.open(replace(spec, layers=(layer, tmp_path / "nowhere")))
        await asyncio.sleep(0)
        assert not in_use()
        killed = await backend.open(spec)
        os.kill(backend.helper_pid, signal.SIGKILL)
        await killed.close()
        await asyncio.sleep(0)
        assert not in_use()


@pytest.mark.usefixtures("usable")
@pytest.mark.slow
async def test_eviction_under_pressure_hurts_no_running_sandbox(tmp_path: Path) -> None:
    """64 sandboxes over 16 environments in a cache with room for about five, opened, used and closed for a
    while; each reads all of its files again and again."""
    keys = [f"env{number}" for number in range(16)]
    store = make_store(tmp_path, keys, size_bytes=300_000)
    node = tmp_path / "node"
    cache = EnvCache(node, store=store, limit_bytes=1_800_000, grace_s=1.0)
    dice = random.Random(5)
    fetches = uses = 0

    async def user(backend: MiniBackend) -> None:
        nonlocal fetches, uses
        for _ in range(4):
            key = dice.choice(keys)
            env = await asyncio.to_thread(cache.ensure, EnvSpec(key))
            fetches += not env.hit
            async with await backend.open(env.spec(LIMITS)) as sandbox:
                for _ in range(dice.randrange(1, 4)):
                    result = await sandbox.exec(
                        ["bash", "-c", "cat key; cksum < data.bin; cksum < /opt/text"], timeout_s=60
                    )
                    assert result.exit_status == 0, result.text
                    assert result.text.startswith(key), result.text
                    seen.setdefault(key, set()).add(result.text)
                    await asyncio.sleep(dice.random() * 0.3)
                    uses += 1

    seen: dict[str, set[str]] = {}
    most = 0

    async def evictor() -> None:
        """Somebody else wants the whole disk, all the time."""
        nonlocal most
        while True:
            await asyncio.to_thread(evict, node, 0, grace_s=1.0)
            most = max(most, sum(use.in_use for use in layer_uses(node)))
            await asyncio.sleep(0.02)

    async with MiniBackend(state_dir=tmp_path / "state") as backend:
        pressure = asyncio.create_task(evictor())
        await asyncio.gather(*(user(backend) for _ in range(64)))
        pressure.cancel()
    assert uses >= 256 and all(len(texts) == 1 for texts in seen.values())
    assert fetches > len(seen), "nothing was evicted, so nothing was tried"
    assert most > 5
    assert not evict(node, 0, grace_s=0).left_bytes
