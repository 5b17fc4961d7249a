"""A runner of real parts that are really broken for chosen rollouts: for SkyRL's loop over Ray workers.

Real sandboxes, cache, store, grader and HTTP policy; only what is sampled comes from a bandit in the process
of the test (`tests.skyrl.policy_server`). Which rollout meets which fault follows from its id, in every
attempt. A fault breaks the thing itself (a process is killed, a byte of a layer is changed, a disk is full,
an answer is late), so what is tested includes how each part notices.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipes.swe.chat import ChatCodec
from recipes.swe.policy import VllmPolicy
from recipes.swe.rollout import Environments, RolloutLimits, RolloutRunner
from recipes.swe.types import Completion, Policy, Rollout, RolloutRequest
from recipes.swe.worker import Runner
from rewards.cache import GradeCache
from rewards.grader import Case, Grader
from rewards.types import RewardResult
from sandbox.cache import EnvCache
from sandbox.cache_record import EnvRecord, dump_record, env_path, read_record
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Backend, CachedEnv, EnvSpec, Limits, SandboxSpec
from tests.agent.conftest import make_tokenizer
from tests.agent.test_agent import DEMO
from tests.cache.helpers import make_store
from tests.skyrl.chosen import injected

FAULTS: Mapping[str, tuple[str, ...]] = {
    "refused": ("provider",),
    "late": ("deadline",),
    "unopened": ("sandbox",),
    "killed": ("sandbox",),
    "full": ("sandbox", "node"),
    "damaged": ("cache",),
    "altered": ("grader",),
    "ungraded": ("grader",),
    "worker": ("node",),
}
"""What is broken -> the kinds of failure that it may be counted as."""
WAIT_LIMIT_S = 5.0
"""Waiting for the model that ends a rollout; a late answer takes longer."""
DAMAGED, ALTERED = "damaged", "altered"
"""Environments: one whose layer arrives damaged from the store, one with a changed byte in pytest."""


@dataclass(slots=True)
class Fate:
    """What the running rollout meets."""

    fault: str
    """Of FAULTS; empty for none."""
    grading: bool
    """The agent's work is done: the next sandbox is one for grading."""
    sandbox: Any = None
    """The last one opened."""


_fate: ContextVar[Fate] = ContextVar("fate of the running rollout")


def current_fault() -> str:
    """Of the running rollout; empty for none."""
    return _fate.get().fault


def kill_sandbox(sandbox: Any) -> None:
    """Kill every process of a MiniSandbox from outside, its first one too."""
    for directory in sandbox._cgroups.values():
        for pid in (Path(directory) / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


class BrokenBackend:
    """Two backends: a sound one and one whose disk is full. Opens what the rollout's fate says."""

    name = "broken"

    def __init__(self, sound: Backend, full: Backend) -> None:
        self._sound, self._full = sound, full

    async def open(self, spec: SandboxSpec) -> Any:
        """See Backend."""
        fate = _fate.get()
        grading, fate.grading = fate.grading, True
        if fate.fault == "unopened":
            spec = replace(spec, layers=(Path("/nonexistent/layer"), *spec.layers))
        backend = self._full if fate.fault == "full" else self._sound
        fate.sandbox = await backend.open(spec)
        if fate.fault == "ungraded" and grading:
            kill_sandbox(fate.sandbox)
        return fate.sandbox


class BrokenCache:
    """Finds another environment for some."""

    def __init__(self, cache: Environments) -> None:
        self._cache = cache

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        """See Environments."""
        fault = _fate.get().fault
        return self._cache.ensure(EnvSpec(fault) if fault in (DAMAGED, ALTERED) else spec)


class BrokenPolicy:
    """The HTTP client; kills in the midst of a rollout what is to be killed."""

    def __init__(self, inner: Policy) -> None:
        self._inner = inner

    def for_rollout(self, rollout_id: str) -> "BrokenPolicy":
        """See Routed."""
        assert isinstance(self._inner, VllmPolicy)
        return BrokenPolicy(self._inner.for_rollout(rollout_id))

    async def sample(self, prompt_ids: tuple[int, ...], **options: Any) -> Completion:
        """See Policy."""
        fate = _fate.get()
        if fate.fault == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if fate.fault == "killed":
            kill_sandbox(fate.sandbox)
        return await self._inner.sample(prompt_ids, **options)


class BrokenGrader:
    """Real gradings, kept by patch, except where the fault lies in the grading itself."""

    def __init__(self, kept: Grader) -> None:
        self._kept, self._anew = kept, Grader()

    async def judge(self, case: Case, patch: str, **options: Any) -> RewardResult:
        """See Grader."""
        anew = _fate.get().fault in ("ungraded", ALTERED)
        return await (self._anew if anew else self._kept).judge(case, patch, **options)


class BrokenRunner:
    """Gives each rollout its fate."""

    def __init__(self, runner: Runner, shares: Mapping[str, float]) -> None:
        self._runner, self._shares = runner, shares

    async def run(self, request: RolloutRequest) -> Rollout:
        """See Runner."""
        _fate.set(Fate(injected(request.trajectory_id, self._shares), request.done is not None))
        return await self._runner.run(request)


async def open_broken_runner(config: Mapping[str, Any], stack: AsyncExitStack) -> BrokenRunner:
    """Factory for the fan-out: keys `cache`, `store`, `full_disk`, `server_url`, `shares`, `slots`."""
    codec = ChatCodec(make_tokenizer())
    policy = VllmPolicy(config["server_url"], "policy", stop_token_ids=(codec.end_id,), reconnect_s=5)
    stack.push_async_callback(policy.close)
    cache = EnvCache(Path(config["cache"]), store=config["store"])
    sound = await stack.enter_async_context(MiniBackend())
    full = sound
    if "full" in config["shares"]:
        disk = stack.enter_context(small_disk(Path(config["full_disk"]) / str(os.getpid())))
        full = await stack.enter_async_context(MiniBackend(state_dir=disk, pool_size=0))
        fill(disk)
    limits = RolloutLimits(
        sandbox=Limits(memory_bytes=512 * MIB, disk_bytes=128 * MIB, pids=128),
        max_concurrent=config["slots"],
        max_grading=2,
        grading_timeout_s=120,
    )
    agent = replace(
        DEMO,
        max_turns=3,
        max_context_tokens=16_000,
        wait_limit_s=WAIT_LIMIT_S,
        model_call_s=0,
        model_token_s=0,
    )
    runner = RolloutRunner(
        BrokenBackend(sound, full),  # type: ignore[arg-type]
        BrokenCache(cache),
        BrokenPolicy(policy),  # type: ignore[arg-type]
        codec,
        agent,
        grader=BrokenGrader(Grader(cache=GradeCache())),  # type: ignore[arg-type]
        limits=limits,
    )
    return BrokenRunner(runner, config["shares"])


def fill(folder: Path) -> None:
    """Take all blocks and inodes of the small file system that `folder` lies on."""
    try:
        with (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass  # no block is left
    for number in range(10_000):
        try:
            (folder / f"more{number}").touch()
        except OSError:
            return


def make_cache(folder: Path, source: Path, key: str) -> tuple[Path, str]:
    """A cache with environment `key` of `source`, and with `ALTERED`; and the URL of a store whose only
    layers are damaged."""
    cache = folder / "cache"
    record = read_record(env_path(source, key))
    (cache / "layers").mkdir(parents=True)
    (cache / "envs").mkdir()
    for name in record.layers:
        subprocess.run(["cp", "-al", source / "layers" / name, cache / "layers" / name], check=True)
    venv = next(name for name in record.layers if name.startswith("venv-"))
    subprocess.run(["cp", "-a", cache / "layers" / venv, cache / "layers" / "venv-altered"], check=True)
    pytest_dir = next((cache / "layers" / "venv-altered").rglob("_pytest"))
    damage(pytest_dir / "main.py")
    for compiled in (pytest_dir / "__pycache__").glob("main.*.pyc"):
        damage(compiled, at=0)  # its magic number, so that the source is read
    changed = tuple("venv-altered" if name == venv else name for name in record.layers)
    env_path(cache, key).write_bytes(dump_record(record))
    env_path(cache, ALTERED).write_bytes(
        dump_record(EnvRecord(changed, record.python_prefix, record.python_version, "altered"))
    )
    store = make_store(folder, [DAMAGED])
    for file in (folder / "store" / "layers").iterdir():
        if file.suffix != ".json":
            damage(file)
    return cache, store.url


def damage(file: Path, *, at: int | None = None) -> None:
    """Change one byte, that in the middle by default."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 0xFF
    file.write_bytes(data)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        shutil.rmtree(folder)
