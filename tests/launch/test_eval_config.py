"""Faults of an evaluation's configuration are told all at once, before anything is started."""

from pathlib import Path

import pytest

from launch.config_compose import ConfigError
from launch.config_eval import load_eval_config
from launch.config_validate import load_config
from launch.eval import main
from tests.launch.runner import write_tasks

SMALL = ["policy=cpu_tiny", "agent=demo"]


def errors(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_eval_config([*SMALL, *overrides])
    return "\n".join(caught.value.errors)


def test_every_fault_is_told(tmp_path: Path):
    text = errors("temperature=9", "nosuch=1", "serve.gpus=-1", "confidence=2")
    for name in ("temperature", "nosuch", "serve.gpus", "confidence"):
        assert name in text
    text = errors(
        "serve.gpus=4", "serve.tensor_parallel=3", "rollouts_per_task=4", f"data.path={tmp_path}/no.jsonl",
        f"held_out_of={tmp_path}", f"model={tmp_path}/no",
    )  # fmt: skip
    for line in (
        "must divide serve.gpus",
        "the same rollout again",
        "no folder of a training run",
        "no does not",
    ):
        assert line in text
    assert "no.jsonl does not exist" in errors(f"data.path={tmp_path}/no.jsonl")
    text = errors("model=", "paths.cache_dir=")
    assert "model: must not be empty" in text and "paths.cache_dir: must not be empty" in text


def test_a_folder_without_a_model_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tasks = write_tasks(tmp_path, 1)
    (tmp_path / "empty").mkdir()
    places = [f"paths.{name}={tmp_path}/{name}" for name in ("cache_dir", "runs_dir")]
    assert main([*SMALL, *places, f"data.path={tasks}", f"model={tmp_path}/empty"]) == 2
    assert "neither a model, nor a checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "runs_dir").exists(), "told before a run is made"


def test_a_model_that_is_nowhere_or_cannot_be_spoken_to_makes_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    places = [f"paths.{name}={tmp_path}/{name}" for name in ("cache_dir", "runs_dir")]
    arguments = [*SMALL, *places, f"data.path={write_tasks(tmp_path, 1)}"]
    assert main([*arguments, "model=owner/no-such-model"]) == 2
    assert "model: owner/no-such-model is neither a folder here nor in" in capsys.readouterr().err
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text('{"model_type": "qwen2"}')
    assert main([*arguments, f"model={half}"]) == 2
    assert "launch/eval.py: model: " in capsys.readouterr().err
    assert not (tmp_path / "runs_dir").exists()


def test_an_engine_that_is_not_installed_is_told(tmp_path: Path):
    assert "no-such-engine is not installed" in errors(
        "sandbox=podman", "sandbox.engine_command=[no-such-engine]", f"model={tmp_path}"
    )


def test_a_dry_run_says_what_would_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*SMALL, f"data.path={tmp_path}/no.jsonl", "dry_run=true"]) == 2
    assert "no.jsonl does not exist" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "Exit status" in capsys.readouterr().out


def test_rules_on_what_is_trained_on_and_evaluated():
    overrides = [
        "trainer=grpo_fsdp_async", "dry_run=true", "eval.every_steps=5", "data.skip.retry_after_epochs=1",
        *(f"data.curriculum.{key}" for key in ("order=easy_first", "min_rate=0.5", "max_rate=0.2")),
    ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        load_config(overrides)
    found = {line.split(":")[0] for line in caught.value.errors}
    assert found == {
        "eval.tasks", "data.curriculum.min_rate", "data.curriculum.rates", "data.skip.retry_after_epochs",
        "data.skip",
    }  # fmt: skip
    assert any("zero_variance_filter" in line for line in caught.value.errors)
