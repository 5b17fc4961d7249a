"""Which workers a run on GPUs builds its models with."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("skyrl")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_models_are_built_with_workers_that_keep_ties(
    asynchronous: bool, strategy: str, monkeypatch: pytest.MonkeyPatch
):
    from recipes.cpu.stand_ins import install_flash_attn

    install_flash_attn()
    from skyrl.train.trainer import RayPPOTrainer

    from recipes.swe.experiment import SweExp

    built: list[Any] = []
    monkeypatch.setattr(RayPPOTrainer, "build_models", lambda self, *workers: built.extend(workers))
    kind = SweExp.async_trainer if asynchronous else SweExp.sync_trainer
    trainer = object.__new__(kind)
    trainer.cfg = SimpleNamespace(trainer=SimpleNamespace(strategy=strategy))
    trainer.build_models("policy", "critic", "reference")
    names = [getattr(worker, "__ray_metadata__", worker) for worker in built]
    if strategy == "fsdp":
        assert [names[0].class_name, names[1], names[2].class_name] == [
            "TiedPolicyWorker",
            "critic",
            "TiedRefWorker",
        ]
        assert built[0]._default_options["num_gpus"] == 1
    else:
        assert names == ["policy", "critic", "reference"]
