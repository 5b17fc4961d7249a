"""The GPU branch of `run`, with all that needs a GPU or a cluster replaced: what is called, and when."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes.cpu.stand_ins import install_flash_attn
from recipes.swe import experiment
from recipes.swe.trainers import AsyncTrainer, SyncTrainer
from tests.skyrl.toy import write_tasks


class Fakes:
    """Notes calls in order; the trainer's loop asks for one batch and what comes after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: str = "") -> None:
        self.calls: list[str] = []
        self.fanout_options: dict[str, Any] = {}
        self.trainer: Any = None
        self._fails = fails
        install_flash_attn()  # SkyRL imports it wherever its workers are defined
        import skyrl.train.utils.utils as skyrl_utils
        from skyrl.train.entrypoints import main_base

        monkeypatch.setattr(experiment, "validate_cfg", self._step("validate"))
        monkeypatch.setattr(skyrl_utils, "initialize_ray", self._step("ray"))
        monkeypatch.setattr("ray.shutdown", self._step("ray down"))
        monkeypatch.setattr(experiment, "Fanout", self._fanout)
        monkeypatch.setattr(main_base, "get_tokenizer", lambda *_, **__: SimpleNamespace(pad_token_id=0))
        base = experiment.BasePPOExp
        monkeypatch.setattr(base, "get_colocate_pg", self._step("placement group"))
        monkeypatch.setattr(base, "_get_new_inference_client", self._client)
        for trainer in (SyncTrainer, AsyncTrainer):
            monkeypatch.setattr(trainer, "build_models", self._step("models"))
            monkeypatch.setattr(trainer, "train", lambda trainer: self._train(trainer))

    def _step(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self.calls.append(name)
            if name == self._fails:
                raise RuntimeError(name)

        return call

    def _client(self, *_: Any) -> Any:
        self.calls.append("engines")
        return SimpleNamespace(proxy_url="http://192.0.2.1:8000")

    def _fanout(self, factory: str, config: dict[str, Any], **options: Any) -> Any:
        self.calls.append("workers")
        self.fanout_options = {**options, "url": config["server_url"], "factory": factory}

        async def close() -> None:
            self.calls.append("workers down")

        return SimpleNamespace(wait_ready=self._step("workers ready"), close=close, prepare=self._prepare)

    def _prepare(self, tasks: list[Any]) -> int:
        self.calls.append(f"prepare {len(tasks)}")
        return len(tasks)

    async def _train(self, trainer: Any) -> None:
        await asyncio.sleep(0)
        self.calls.append("train")
        self.trainer = trainer
        if isinstance(trainer, SyncTrainer):
            trainer.global_step = 1
            next(iter(trainer.train_dataloader))
            trainer.prepare_next_step()
            trainer.global_step = trainer.total_training_steps
            trainer.prepare_next_step()


def settings(folder: Path, *overrides: str) -> dict[str, Any]:
    from launch.config_compose import compose_config, to_plain

    write_tasks(folder / "tasks.jsonl", 64)
    composed, errors = compose_config(
        [
            "+recipe=swe_smith_1600",
            "data=local",
            f"data.path={folder}/tasks.jsonl",
            f"paths.runs_dir={folder}/runs",
            "logger=file",
            "trainer.max_steps=3",
            "skyrl.trainer.enable_ray_gpu_monitor=false",
            "skyrl.generator.inference_engine.enable_ray_prometheus_stats=false",
            *overrides,
        ]
    )
    plain, more = to_plain(composed)
    assert not errors and not more, errors + more
    Path(plain["paths"]["run_dir"]).mkdir(parents=True)
    return plain


def test_everything_comes_up_in_order_and_goes_down_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fakes = Fakes(monkeypatch)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    experiment.run(settings(tmp_path))
    assert fakes.calls == [
        "validate", "ray", "placement group", "engines", "workers", "models", "workers ready", "train",
        "prepare 128", "workers down", "ray down",
    ]  # fmt: skip
    assert fakes.fanout_options == {
        "nodes": 1,
        "slots": 128,
        "url": "http://192.0.2.1:8000",  # the router's, which other nodes can reach
        "factory": "recipes.swe.worker:open_runner",
    }
    assert fakes.trainer.run_dir == tmp_path / "runs/swe_smith_1600-seed0"


@pytest.mark.parametrize("fails", ["placement group", "models", "workers ready"])
def test_a_failed_start_takes_everything_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    fakes = Fakes(monkeypatch, fails=fails)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RuntimeError, match=fails):
        experiment.run(settings(tmp_path))
    assert fakes.calls[-1] == "ray down"
    assert ("workers down" in fakes.calls) == ("workers" in fakes.calls)


def test_the_asynchronous_recipe_gets_the_asynchronous_trainer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fakes = Fakes(monkeypatch)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    experiment.run(settings(tmp_path, "trainer=grpo_fsdp_async"))
    assert isinstance(fakes.trainer, AsyncTrainer)
    assert not any(call.startswith("prepare") for call in fakes.calls), "generation never stops"
    assert fakes.trainer.max_staleness_steps == 1


def test_two_nodes_join_the_cluster_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes = Fakes(monkeypatch)
    monkeypatch.setenv("RAY_ADDRESS", "")
    experiment.run(settings(tmp_path, "cluster=two_node", "cluster.address=192.0.2.7:6379"))
    assert fakes.fanout_options["nodes"] == 2
    assert os.environ["RAY_ADDRESS"] == "192.0.2.7:6379"


@pytest.mark.parametrize(
    ("cluster", "variable", "address"),
    [
        ({"kind": "local", "address": None}, "192.0.2.9:1", "local"),
        ({"kind": "ray", "address": "auto"}, "192.0.2.9:1", "192.0.2.9:1"),
        ({"kind": "ray", "address": "auto"}, None, "auto"),
        ({"kind": "ray", "address": "192.0.2.8:1"}, "192.0.2.9:1", "192.0.2.8:1"),
    ],
)
def test_which_ray_is_joined(
    monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], variable: str | None, address: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert experiment.ray_address(cluster) == address
