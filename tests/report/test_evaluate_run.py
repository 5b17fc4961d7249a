"""Running an evaluation: every rollout is on disk, also when it ends early; how servers are started."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from recipes.cpu.server import ServerSettings, VllmServer
from recipes.report.recorder import RolloutRecorder
from recipes.report.rows import read_rows
from recipes.swe import evaluate as module
from recipes.swe.evaluate import EvalPlan, GpuServer, evaluate, served
from recipes.swe.types import Rollout, RolloutRequest, TaskInstance
from rewards.types import TestSpec
from sandbox.types import EnvSpec
from tests.launch.fake_run import make_rollout

TASKS = [TaskInstance(f"a__b.{i}", "a/b", "", EnvSpec("k"), TestSpec((), (), ())) for i in range(5)]
PLAN = EvalPlan(TASKS, rollouts_per_task=2, temperature=1.0, top_p=0.9, seed=3)
SETTINGS: dict[str, Any] = {
    "agent": {}, "sandbox": {}, "reward": {}, "paths": {}, "policy": {"path": "hub/id", "dtype": "float32"},
}  # fmt: skip


class FakeRunner:
    """Solves even tasks; `wait_for` never ends, `break_on` is a programming error."""

    def __init__(self, wait_for: str = "", break_on: str = "") -> None:
        self.wait_for, self.break_on = wait_for, break_on
        self.requests: list[RolloutRequest] = []

    async def run(self, request: RolloutRequest) -> Rollout:
        self.requests.append(request)
        name = request.task.instance_id
        await asyncio.sleep(0.001 * len(self.requests))
        if name == self.wait_for:
            await asyncio.Event().wait()
        if name == self.break_on:
            raise AssertionError("a slip")
        return make_rollout(name, solved=int(name[-1]) % 2 == 0)


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, runner: FakeRunner, seen: list[int]) -> Any:
    configs: list[Any] = []

    async def open_fake(config: Any, stack: AsyncExitStack) -> FakeRunner:
        configs.append(config)
        return runner

    monkeypatch.setattr(module, "open_runner", open_fake)

    async def go() -> list[Rollout]:
        return await evaluate(
            SETTINGS, PLAN, RolloutRecorder(folder), url="http://u", model_name="m", model="/model",
            progress=lambda rollout, done, whole: seen.append(done),
        )  # fmt: skip

    return asyncio.run(asyncio.wait_for(go(), 1.5)), configs


def test_every_rollout_is_run_once_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runner, seen = FakeRunner(), list[int]()
    rollouts, (config,) = run(monkeypatch, tmp_path, runner, seen)
    assert len(rollouts) == 10 and seen == list(range(1, 11))
    assert (config["server_url"], config["served_model_name"]) == ("http://u", "m")
    assert config["policy"]["path"] == "/model" and SETTINGS["policy"]["path"] == "hub/id"
    assert len({(r.trajectory_id, r.seed) for r in runner.requests}) == 10
    assert all((r.temperature, r.top_p) == (1.0, 0.9) for r in runner.requests)
    frame = read_rows(tmp_path)
    assert frame is not None and len(frame) == 10 and set(frame["phase"]) == {"eval"}
    assert frame.filter(frame["resolved"])["instance_id"].n_unique() == 3


def test_what_had_ended_is_recorded_when_it_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(AssertionError, match="a slip"):
        run(monkeypatch, tmp_path, FakeRunner(break_on="a__b.4"), [])
    frame = read_rows(tmp_path)
    assert frame is not None and len(frame) == 4
    with pytest.raises(TimeoutError):
        run(monkeypatch, tmp_path / "second", FakeRunner(wait_for="a__b.0"), [])
    frame = read_rows(tmp_path / "second")
    assert frame is not None and len(frame) == 8


def test_a_server_that_is_up_is_used_as_it_is():
    with served({"serve": {"url": "http://there", "model_name": "big"}}, "any") as pair:
        assert pair == ("http://there", "big")


def test_the_server_on_gpus_has_none_of_the_settings_for_processors(tmp_path: Path):
    settings = ServerSettings(model="m", dtype="bfloat16", extra_args=("--tensor-parallel-size", "2"))
    plain, gpu = (kind(settings, log_path=tmp_path / "log") for kind in (VllmServer, GpuServer))
    lost = [word for word in plain.command() if word not in gpu.command() and not word.isdigit()]
    assert sorted(lost) == sorted(
        ["--worker-cls", settings.worker_cls, "--enforce-eager", "--no-enable-chunked-prefill"]
    )
    assert gpu.command()[-2:] == ["--tensor-parallel-size", "2"]
    assert "VLLM_CPU_KVCACHE_SPACE" in plain.environment()
    assert not [name for name in gpu.environment() if name.startswith("VLLM_CPU")]
