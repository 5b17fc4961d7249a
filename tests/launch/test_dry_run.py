"""What the dry run says of placement and of what is missing, without SkyRL."""

from pathlib import Path
from typing import Any

import pytest

from launch import machine
from launch.config_validate import load_config, missing_here
from launch.dry_run_placement import placement_lines
from tests.launch.runner import write_tasks


def placed(*overrides: str) -> str:
    return "\n".join(placement_lines(load_config(overrides)))


def test_one_node_shares_its_gpus_in_turns():
    text = placed("+recipe=swe_smith_1600")
    assert "GPU 0-7: policy and reference, ranks 0-7 (FSDP, sequence parallel 2)" in text
    assert "vLLM engines (TP 2): 0 on 0-1, 1 on 2-3, 2 on 4-5, 3 on 6-7" in text
    assert "128 sandboxes (mini) at once, 40 I/O units of 50 MB" in text


def test_two_nodes_hold_two_engines_of_four_gpus_each():
    text = placed("+recipe=swe_smith_1600_2node")
    assert "joins the cluster at auto, 2 node(s) of it" in text
    assert "ranks 0-7 (FSDP, sequence parallel 4)" in text and "ranks 8-15" in text
    assert "0 on 0-3, 1 on 4-7" in text and "2 on 0-3, 3 on 4-7" in text
    assert text.count("128 sandboxes (mini)") == 2, "256 rollouts, 128 on each node"


def test_an_engine_may_span_nodes():
    text = placed(
        "+recipe=swe_smith_1600_2node", "trainer.tensor_parallel=16", "policy=hf", "policy.path=a/b"
    )
    assert text.count("vLLM engines (TP 16): 0 on 0-7") == 2


def test_asynchronous_training_divides_the_gpus():
    text = placed("+recipe=swe_smith_1600_async")
    assert "4 GPUs: policy and reference" in text and "4 others: vLLM, 2 engines x TP 2" in text


@pytest.mark.parametrize(
    ("recipe", "trainer", "told"),
    [
        ("swe_smith_1600", "grpo_cpu", "one vLLM server, in turns"),
        ("swe_smith_1600_async", "grpo_cpu_async", "one vLLM server, at the same time"),
        ("swe_smith_1600_2node", "grpo_cpu", "2 raylets, each with sandboxes of its own"),
    ],
)
def test_without_gpus(recipe: str, trainer: str, told: str):
    assert told in placed(f"+recipe={recipe}", "policy=cpu_tiny", f"trainer={trainer}", "data=local")


def test_fewer_gpus_make_fewer_engines():
    config = load_config(["+recipe=swe_smith_1600", "cluster.gpus_per_node=4"])
    assert config["trainer"]["engines"] == 2
    assert config["skyrl"]["generator"]["inference_engine"]["num_engines"] == 2
    assert config["skyrl"]["trainer"]["placement"]["policy_num_gpus_per_node"] == 4


def test_exactly_what_is_missing_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "installed_version", lambda name: machine.EXACT.get(name, "1"))
    monkeypatch.setattr(machine, "gpu_count", lambda: 8)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    overrides = ["+recipe=swe_smith_1600_docker", f"paths.cache_dir={tmp_path}"]

    def missing(*more: str) -> list[str]:
        return missing_here(load_config([*overrides, *more]))

    def names(*more: str) -> list[str]:
        return sorted(line.split(":")[0] for line in missing(*more))

    assert names() == ["data.path", "policy.path", "sandbox.kind"]
    path = write_tasks(tmp_path, 20)
    there = f"data.path={path}"
    assert names(there) == ["environments", "policy.path", "sandbox.kind"]
    assert any("20 of 20 are not in" in line for line in missing(there))
    (tmp_path / "envs").mkdir()
    for number in range(18):
        (tmp_path / "envs" / f"task{number}.json").write_text("{}")
    assert any("2 of 20 are not in" in line for line in missing(there))
    few = missing(there, "data.first=4")
    assert any("has 4 tasks, a step needs 16" in line for line in few)
    snapshot = tmp_path / "hub" / "models--SWE-bench--SWE-agent-LM-7B" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_text("")
    assert names(there, "sandbox=mini") == ["environments"]
    assert names(there, "sandbox=mini", "cluster.gpus_per_node=16", "trainer.engines=8") == [
        "GPUs",
        "environments",
    ]


def test_a_cluster_to_join_is_missed_until_one_is_named(monkeypatch: pytest.MonkeyPatch):
    def told(**cluster: Any) -> list[str]:
        return machine._missing_cluster({"kind": "ray", "address": "auto", "gpus_per_node": 8} | cluster)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(machine.Path, "is_file", lambda self: False)
    assert "ray start" in told()[0]
    assert told(address="10.0.0.1:6379") == told(gpus_per_node=0) == told(kind="local") == []
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert told() == []
