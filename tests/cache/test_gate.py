"""The local I/O gate: never more than there is, no deadlock whatever is asked, nothing lost with a kill."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.cache import EnvCache
from sandbox.cache_gate import UNIT_BYTES, LocalGate, units_of
from sandbox.types import EnvSpec
from tests.cache.helpers import make_store


@pytest.mark.parametrize(
    ("size", "units"),
    [(0, 1), (1, 1), (UNIT_BYTES, 1), (UNIT_BYTES + 1, 2), (7 * UNIT_BYTES, 7), (1 << 50, 8)],
)
def test_units_of_a_size(size: int, units: int) -> None:
    assert units_of(size, capacity=8) == units


def test_threads_never_hold_more_than_there_is(tmp_path: Path) -> None:
    gate, lock = LocalGate(tmp_path, units=5, unit_bytes=10), threading.Lock()
    held = most = 0

    def one(number: int) -> float:
        nonlocal held, most
        size = (number * 7) % 90 + 1  # some ask for more than all
        with gate.hold(size) as waited:
            with lock:
                held += units_of(size, capacity=5, unit_bytes=10)
                most = max(most, held)
            time.sleep(0.003)
            with lock:
                held -= units_of(size, capacity=5, unit_bytes=10)
        return waited

    with ThreadPoolExecutor(20) as pool:
        waits = list(pool.map(one, range(60)))
    assert 3 <= most <= 5
    assert max(waits) > 0.01 and min(waits) < 0.01


def test_a_request_for_all_is_not_overtaken_for_ever(tmp_path: Path) -> None:
    gate, over = LocalGate(tmp_path, units=3, unit_bytes=1), threading.Event()

    def small() -> int:
        count = 0
        while not over.is_set():
            with gate.hold(1):
                time.sleep(0.005)
            count += 1
        return count

    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(small) for _ in range(6)]
        time.sleep(0.1)
        for _ in range(5):
            with gate.hold(3) as waited:
                assert waited < 5
        over.set()
        assert min(stream.result() for stream in streams) > 0


HOLDER = """
import sys, time
from pathlib import Path
from sandbox.cache_gate import LocalGate
with LocalGate(Path(sys.argv[1]), units=2, unit_bytes=10).hold(1000):
    print("held", flush=True)
    time.sleep(60)
"""


def test_processes_share_a_gate_and_a_killed_holder_gives_back(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    gate = LocalGate(tmp_path, units=2, unit_bytes=10)

    def ask() -> float:
        with gate.hold(1) as waited:
            return waited

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        time.sleep(0.3)
        assert not asked.done()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert 0.25 < asked.result(timeout=10) < 5


def test_waiting_is_reported_apart_from_fetching(tmp_path: Path) -> None:
    store = make_store(tmp_path, ["one"])
    gate = LocalGate(tmp_path / "gate", units=1)
    cache = EnvCache(tmp_path / "node", store=store, gate=gate)
    with ThreadPoolExecutor(1) as pool:
        with gate.hold(1):
            asked = pool.submit(cache.ensure, EnvSpec("one"))
            time.sleep(0.4)
            assert not asked.done()
        env = asked.result(timeout=30)
    assert not env.hit and env.gate_wait_s >= 0.2
    assert env.fetch_s > 0
    assert cache.ensure(EnvSpec("one")).gate_wait_s == 0.0


def test_a_gate_has_a_unit_at_least() -> None:
    with pytest.raises(ValueError, match="one unit"):
        LocalGate(Path("/nowhere"), units=0)
