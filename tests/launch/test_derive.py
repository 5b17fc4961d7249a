"""What one value of the configuration forces on another."""

from pathlib import Path

import pytest
import yaml

from launch.config_compose import ConfigError
from launch.config_validate import load_config

DRY = ["+recipe=cpu_demo", "dry_run=true"]


def step_wise(*overrides: str) -> bool:
    generator = load_config([*DRY, *overrides])["skyrl"]["generator"]
    return bool(generator.get("step_wise_trajectories", False))


def test_elided_histories_are_trained_step_by_step() -> None:
    assert not step_wise()
    assert step_wise("agent.keep_last_observations=2")
    assert not step_wise("agent.keep_last_observations=null")
    assert step_wise("skyrl.generator.step_wise_trajectories=true"), "allowed with the whole history too"


def test_a_swe_agent_file_may_say_it(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    agent = {
        "templates": {"system_template": "s", "instance_template": "{{problem_statement}}"},
        "tools": {"parse_function": {"type": "xml_function_calling"}},
        "history_processors": [{"type": "last_n_observations", "n": 5}],
    }
    path.write_text(yaml.safe_dump({"agent": agent}))
    assert step_wise(f"agent.swe_agent_yaml={path}")


def test_the_contradiction_is_told() -> None:
    with pytest.raises(ConfigError, match="step_wise_trajectories: must be true") as caught:
        step_wise("agent.keep_last_observations=2", "skyrl.generator.step_wise_trajectories=false")
    assert len(caught.value.errors) == 1


def test_dynamic_sampling_moves_whole_trajectories() -> None:
    sampling = "skyrl.trainer.algorithm.dynamic_sampling.type=filter"
    load_config([*DRY, sampling])
    load_config([*DRY, sampling, "agent.keep_last_observations=2"])
