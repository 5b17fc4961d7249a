"""A bad configuration is told whole, exits 2, and costs nothing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.config_compose import ConfigError
from launch.config_validate import load_config
from tests.launch.runner import ROOT, inputs, train

HEAVY = ("torch", "ray", "vllm", "transformers", "wandb", "matplotlib", "datasets")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "launch" / "train.py"), *arguments],
        capture_output=True, text=True, cwd="/", check=False,
    )  # fmt: skip


def test_every_error_is_named_at_once_and_exit_is_2():
    done = command(
        "+recipe=cpu_demo", "trainer=nope", "trainer.lr=abc", "trainer.max_step=3", "sandbox.memory_mib=1",
        "+bar.x=2", "seed=-1", "agent.max_turns=0", "skyrl.trainer.algorithm.eps_clip_low=high",
        "skyrl.trainer.algoritm=3", "logger.mode=loud", "resume=maybe", "data.path=${nothing.here}",
    )  # fmt: skip
    assert done.returncode == 2
    for expected in (
        "trainer=nope: Could not find",
        "trainer.lr: must be a number, is 'abc'",
        "trainer.max_step: unknown key (did you mean max_steps?)",
        "sandbox.memory_mib: must be at least 32",
        "bar: unknown key",
        "seed: must be at least 0",
        "agent.max_turns: must be at least 1",
        "skyrl.trainer.algorithm.eps_clip_low: must be a number, is 'high'",
        "skyrl.trainer.algoritm: unknown key (did you mean algorithm?)",
        "logger.mode: must be one of auto, online, offline, is 'loud'",
        "resume: must be",
        "data.path: Interpolation key 'nothing.here' not found",
    ):
        assert expected in done.stderr, expected
    assert "Traceback" not in done.stderr


def test_nothing_heavy_is_loaded_before_the_configuration_is_checked():
    code = (
        "import sys; from launch.train import main; status = main(sys.argv[1:]); "
        f"print([name for name in {HEAVY!r} if name in sys.modules]); sys.exit(status)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "+recipe=cpu_demo", "trainer.lr=-1"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (2, "[]")
    assert time.monotonic() - started < 30


def test_a_required_value_without_one_is_named():
    with pytest.raises(ConfigError, match=r"run_name: is required and has no value; set run_name="):
        load_config(["+recipe=cpu_demo", "run_name=???"])


@pytest.mark.parametrize("recipe", ["cpu_demo", "swe_smith_1600"])
def test_recipes_are_valid(recipe: str):
    config = load_config([f"+recipe={recipe}"])
    assert config["recipe_name"] == recipe
    assert config["run_name"] == f"{recipe}-seed0"
    assert config["skyrl"]["trainer"]["ckpt_path"] == f"{config['paths']['run_dir']}/checkpoints"


def test_the_headline_recipe_is_the_published_run():
    config = load_config(["+recipe=swe_smith_1600"])
    trainer, skyrl = config["trainer"], config["skyrl"]
    assert config["policy"]["path"] == "SWE-bench/SWE-agent-LM-7B"
    assert (trainer["prompts_per_step"], trainer["rollouts_per_prompt"], trainer["max_steps"]) == (16, 8, 200)
    assert (config["cluster"]["gpus_per_node"], trainer["lr"], config["sandbox"]["max_concurrent"]) == (
        8,
        1e-6,
        128,
    )
    assert skyrl["trainer"]["algorithm"]["kl_loss_coef"] == 0.001
    engine = skyrl["generator"]["inference_engine"]
    assert (engine["num_engines"], engine["tensor_parallel_size"]) == (4, 2)
    assert skyrl["trainer"]["train_batch_size"] == 16
    assert skyrl["trainer"]["max_training_steps"] == 200


def test_the_command_line_wins_over_the_recipe():
    config = load_config(
        ["+recipe=cpu_demo", "trainer.max_steps=3", "skyrl.trainer.algorithm.eps_clip_high=0.28"]
    )
    assert config["trainer"]["max_steps"] == 3
    assert config["skyrl"]["trainer"]["max_training_steps"] == 3
    assert config["skyrl"]["trainer"]["algorithm"]["eps_clip_high"] == 0.28


def test_rules_between_keys():
    with pytest.raises(ConfigError) as caught:
        load_config(["+recipe=cpu_demo", "sandbox.disk_mib=4096", "policy.turn_tokens=99999"])
    assert len(caught.value.errors) == 2


def test_missing_inputs_are_configuration_errors(tmp_path: Path):
    done = train(
        ["+recipe=cpu_demo", f"policy.path={tmp_path}/no", f"data.path={tmp_path}/no.jsonl", "seed=x"]
    )
    assert done.returncode == 2
    assert "seed: must be a whole number" in done.stderr
    assert "policy.path: no model in" in done.stderr
    assert "make_policy.py" in done.stderr
    assert "data.path:" in done.stderr
    assert "prepare.py" in done.stderr


def test_an_unusable_kernel_exits_3_and_says_what_to_do(tmp_path: Path):
    done = train(inputs(tmp_path), unusable="user namespaces are off; run sysctl ...")
    assert done.returncode == 3
    assert "sysctl" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_help():
    done = command("--help")
    assert done.returncode == 0
    for part in (
        "swe_smith_1600_2node",
        "trainer.lr",
        "policy.shape.layers",
        "agent.max_turns",
        "bool | auto",
    ):
        assert part in done.stdout, part
    assert "data=local, swe_gym" in done.stdout or "data=local, local_full" in done.stdout
    assert "projects" not in done.stdout.split("Keys")[0], "lists of projects are no choice of a group"


@pytest.mark.slow
def test_dry_run_of_the_demo_is_accepted_by_skyrl():
    done = command("+recipe=cpu_demo", "dry_run=true")
    assert done.returncode == 0, done.stderr
    assert "accepts this configuration" in done.stdout


def test_dry_run_of_the_headline_lists_what_is_missing_here():
    done = command("+recipe=swe_smith_1600", "dry_run=true")
    assert done.returncode == 0, done.stderr
    assert "accepts this configuration" in done.stdout
    resources, missing = done.stdout.split("# resources")[1].split("Missing on this machine")
    for part in (
        "16 prompts x 8 rollouts",
        "the first 1600 by seed 42",
        "vLLM engines (TP 2): 0 on 0-1, 1 on 2-3, 2 on 4-5, 3 on 6-7",
        "128 sandboxes (mini) at once, 40 I/O units of 50 MB",
    ):
        assert part in resources, part
    listed = [line.removeprefix("  - ") for line in missing.splitlines() if line.startswith("  - ")]
    assert all(
        line.startswith(
            ("GPUs: 8 on each", "package ", "policy.path: SWE-bench/SWE-agent-LM-7B", "data.path: ")
        )
        for line in listed
    ), listed
    for part in ("GPUs: 8", "flash-attn", "SWE-agent-LM-7B is not in", "prepare.py data=swe_smith"):
        assert part in missing, part


@pytest.mark.slow
def test_dry_run_reports_what_only_skyrl_itself_can_see():
    done = command("+recipe=swe_smith_1600", "dry_run=true", "skyrl.generator.inference_engine.num_engines=3")
    assert done.returncode == 2
    assert "num_rollout_gpus" in done.stderr


def test_the_kernel_of_this_machine_is_asked(tmp_path: Path):
    from launch.sandbox_check import sandbox_fault
    from sandbox.probe import unusable_reason

    paths = {"cache_dir": str(tmp_path)}
    assert sandbox_fault({"paths": paths, "sandbox": {"kind": "mini"}}) == unusable_reason(tmp_path)


def test_an_engine_that_answers_and_starts_nothing_is_told_before_the_run(tmp_path: Path):
    from launch.sandbox_check import sandbox_fault

    engine = tmp_path / "engine"
    refusal = "OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers"
    cases = f'run) echo "{refusal}" >&2; exit 126;; image) echo "[{{}}]";; info) echo "[]";;'
    engine.write_text(f'#!/bin/sh\ncase "$1" in {cases} esac\n')
    engine.chmod(0o755)
    fault = sandbox_fault({"sandbox": {"kind": "podman", "engine_command": [str(engine)]}})
    assert fault and refusal in fault and "docs/containers.md" in fault


def test_a_kernel_without_user_namespaces_exits_3(tmp_path: Path):
    inside = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    closed = ["unshare", "--user", "--map-root-user", "bash", "-c", inside, "bash"]
    if subprocess.run([*closed, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("user namespaces cannot be closed here")
    done = subprocess.run(
        [*closed, sys.executable, str(ROOT / "launch" / "train.py"), *inputs(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "sysctl user.max_user_namespaces" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_same_message_about_two_keys_is_told_twice():
    done = command("+recipe=cpu_demo", "policy.bogus=3", "skyrl.trainer.algorithm.nope=2")
    assert done.returncode == 2
    assert "policy.bogus: unknown key" in done.stderr
    assert "skyrl.trainer.algorithm.nope: unknown key" in done.stderr


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("tests", {}),
        ("binary", {}),
        ("fraction", {"shape": "fraction"}),
        ("turns", {"turn_penalty": 0.2}),
        ("length", {"length_penalty": 0.2}),
        ("format", {"format_bonus": 0.1}),
    ],
)
def test_reward_shapes_are_a_group(name: str, changed: dict[str, object]):
    reward = load_config(["+recipe=cpu_demo", f"reward={name}"])["reward"]
    plain = {
        "shape": "binary",
        "turn_penalty": 0,
        "length_penalty": 0,
        "format_bonus": 0,
        "suspicious": "zero",
    }
    assert {key: reward[key] for key in plain} == plain | changed


def test_a_reward_that_makes_no_sense_is_refused_at_start_up():
    with pytest.raises(ConfigError) as caught:
        load_config(["+recipe=cpu_demo", "reward.shape=cubic", "reward.turn_penalty=2", "reward.attempts=0"])
    for key in ("reward.shape: must be one of", "reward.turn_penalty: must be", "reward.attempts: must be"):
        assert key in str(caught.value)
    rules = ["reward.turn_penalty=0.6", "reward.length_penalty=0.6", "reward.cache=false"]
    with pytest.raises(ConfigError) as caught:
        load_config(["+recipe=cpu_demo", "reward.test_timeout_s=900", *rules])
    for key in ("reward.test_timeout_s: is more", "reward.store: needs", "reward.length_penalty: with"):
        assert key in str(caught.value)


def test_a_mini_batch_that_does_not_divide_is_told_before_anything_starts():
    with pytest.raises(ConfigError) as caught:
        load_config(["+recipe=cpu_demo", "trainer.prompts_per_step=2", "trainer.rollouts_per_prompt=2"])
    (line,) = caught.value.errors
    assert line.startswith("skyrl.trainer.micro_train_batch_size_per_gpu: 8 does not divide the 4 rollouts")
    fits = "skyrl.trainer.micro_train_batch_size_per_gpu=4"
    load_config(["+recipe=cpu_demo", "trainer.prompts_per_step=2", "trainer.rollouts_per_prompt=2", fits])
