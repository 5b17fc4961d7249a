"""What SkyRL would start on GPUs with our recipes, as far as it can be asked without one."""

from typing import Any

import pytest

from launch.config_validate import load_config

pytest.importorskip("skyrl")
RECIPES = ["swe_smith_1600", "swe_smith_1600_2node", "swe_smith_1600_async", "swe_gym"]


def skyrl(*overrides: str) -> Any:
    from recipes.swe.experiment import skyrl_config

    return skyrl_config(load_config(overrides))


@pytest.mark.parametrize(
    ("overrides", "tensor_parallel", "sleeps", "lora"),
    [
        (["+recipe=swe_smith_1600"], 2, True, False),
        (["+recipe=swe_smith_1600_2node"], 4, True, False),
        (["+recipe=swe_smith_1600_async"], 2, False, False),
        (["+recipe=swe_smith_1600", "trainer=grpo_fsdp_lora"], 2, True, True),
    ],
)
def test_arguments_of_the_vllm_engines(overrides: list[str], tensor_parallel: int, sleeps: bool, lora: bool):
    from skyrl.backends.skyrl_train.inference_servers.utils import build_vllm_cli_args
    from vllm import AsyncEngineArgs

    cfg = skyrl(*overrides)
    arguments = build_vllm_cli_args(cfg)
    for name in cfg.generator.inference_engine.engine_init_kwargs:  # SkyRL sets any name, vLLM ignores some
        assert hasattr(AsyncEngineArgs, name), f"vLLM has no {name}"
    assert arguments.model == "SWE-bench/SWE-agent-LM-7B"
    assert arguments.tensor_parallel_size == tensor_parallel
    assert (arguments.max_model_len, arguments.gpu_memory_utilization) == (20480, 0.8)
    assert (arguments.dtype, arguments.logprobs_mode) == ("bfloat16", "processed_logprobs")
    assert arguments.enable_sleep_mode is sleeps
    assert arguments.enable_lora is lora
    assert not lora or arguments.max_lora_rank == 32


def test_rollouts_ask_for_the_name_that_the_engines_serve():
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import SKYRL_LORA_ADAPTER_NAME

    from recipes.swe.experiment import resolve_policy_model_name

    assert resolve_policy_model_name(skyrl("+recipe=swe_smith_1600")) == "SWE-bench/SWE-agent-LM-7B"
    assert resolve_policy_model_name(skyrl("+recipe=cpu_demo")) == "policy"
    with_lora = skyrl("+recipe=swe_smith_1600", "trainer=grpo_fsdp_lora")
    assert resolve_policy_model_name(with_lora) == SKYRL_LORA_ADAPTER_NAME


@pytest.mark.parametrize("recipe", RECIPES)
def test_gpus_of_the_placement_groups_add_up(recipe: str):
    cfg = skyrl(f"+recipe={recipe}")
    placement, engine = cfg.trainer.placement, cfg.generator.inference_engine
    there = 8 * placement.policy_num_nodes
    train = placement.policy_num_nodes * placement.policy_num_gpus_per_node
    rollout = engine.num_engines * engine.tensor_parallel_size
    assert (placement.ref_num_nodes, placement.ref_num_gpus_per_node) == (
        placement.policy_num_nodes,
        placement.policy_num_gpus_per_node,
    )
    assert train == rollout == there if placement.colocate_all else train + rollout == there
    sequences = cfg.trainer.policy_mini_batch_size * cfg.generator.n_samples_per_prompt
    assert sequences % (train // cfg.trainer.policy.sequence_parallel_size) == 0


def test_what_the_asynchronous_trainer_asserts_at_its_start():
    from skyrl.backends.skyrl_train.utils.ppo_utils import LOSSES_WITH_OLD_LOGPROBS

    for overrides in (
        ["+recipe=swe_smith_1600_async"],
        ["+recipe=swe_smith_1600_async", "policy=cpu_tiny", "trainer=grpo_cpu_async"],
        ["+recipe=swe_smith_1600", "trainer=grpo_fsdp_async_lora"],
        ["+recipe=cpu_demo", "trainer=grpo_cpu_async"],
    ):
        trainer = skyrl(*overrides).trainer
        groups = trainer.fully_async.num_parallel_generation_workers
        most = trainer.policy_mini_batch_size * (trainer.fully_async.max_staleness_steps + 1)
        assert trainer.fully_async.enabled and not trainer.placement.colocate_all
        assert trainer.train_batch_size == trainer.policy_mini_batch_size <= groups <= most
        assert trainer.algorithm.policy_loss_type not in {loss.value for loss in LOSSES_WITH_OLD_LOGPROBS}
        assert trainer.algorithm.dynamic_sampling.type is None


def test_the_router_accepts_what_skyrl_gives_it():
    from skyrl.backends.skyrl_train.inference_servers.utils import build_router_args

    engine = skyrl("+recipe=swe_smith_1600").generator.inference_engine
    router = build_router_args(engine, server_urls=["http://127.0.0.1:8000"])
    assert (router.policy, router.worker_urls) == ("consistent_hash", ["http://127.0.0.1:8000"])
