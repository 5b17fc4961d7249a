"""Memory arithmetic against numbers worked out by hand and published parameter counts."""

from dataclasses import replace

import pytest

from launch.config_validate import load_config
from launch.doctor import main
from launch.memory_fit import GIB, Layout, Phase, kv_sequences, layout_of, phases
from launch.memory_model import ModelShape, shape_of

QWEN_7B = ModelShape(28, 3584, 18944, 28, 4, 128, 152064, tied=False)
QWEN_32B = ModelShape(64, 5120, 27648, 40, 8, 128, 152064, tied=False)
QWEN_3B = ModelShape(36, 2048, 11008, 16, 2, 128, 151936, tied=True)
PAPER = Layout(
    train_gpus=8, gpus_per_node=8, engines_per_node=4, tensor_parallel=2, sequence_parallel=2,
    context_tokens=20480, shared=True, lora_rank=0, cpu_offload=False, reference=True, utilization=0.8,
    logprobs_chunk=1024, sandboxes=128, sandbox_gib=2.0,
)  # fmt: skip


def named(shape: ModelShape, layout: Layout = PAPER, **limits: float) -> dict[str, Phase]:
    found = phases(shape, layout, gpu_gib=limits.get("gpu_gib", 80), host_gib=limits.get("host_gib"))
    return {phase.name.split(",")[0]: phase for phase in found}


def gib(phase: Phase, part: str) -> float:
    return next(one.gib for one in phase.parts if one.name.startswith(part))


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [(QWEN_7B, 7_615_616_512), (QWEN_32B, 32_763_876_352), (QWEN_3B, 3_085_938_688)],
)
def test_parameters_are_the_published_ones(shape: ModelShape, parameters: int):
    assert shape.parameters == parameters


def test_lora_parameters_are_those_that_peft_counts():
    assert QWEN_7B.lora_parameters(16) == 40_370_176  # peft, all-linear, rank 16, on Qwen2.5-7B


def test_the_configured_shapes_are_these():
    for policy, shape in (
        ("swe_agent_lm_7b", QWEN_7B),
        ("swe_agent_lm_32b", QWEN_32B),
        ("qwen2_5_coder_3b", QWEN_3B),
    ):
        assert shape_of(load_config(["+recipe=swe_smith_1600", f"policy={policy}"])["policy"]) == shape


def test_7b_on_8_gpus_of_80_fits_as_computed_by_hand():
    found = named(QWEN_7B)
    training = found["training"]
    # 16 bytes x 7,615,616,512 / 8 GPUs
    assert gib(training, "weights, gradients") == pytest.approx(15_231_233_024 / GIB)
    # two layers in bf16: 2 x 233,057,792 x 2; the output layer 544,997,376 in bf16 and its gradient in fp32
    assert gib(training, "gathered") == pytest.approx((932_231_168 + 3_269_984_256) / GIB)
    # 28 layers x 10,240 tokens x 3,584 x 2 bytes
    assert gib(training, "checkpoints") == pytest.approx(2_055_208_960 / GIB)
    # 10,240 x 152,064 bf16 logits and as much gradient, 1,024 x 152,064 fp32 twice
    assert gib(training, "logits") == pytest.approx((6_228_541_440 + 1_245_708_288) / GIB)
    # 10,240 tokens x 2 bytes x (6 x 3,584 + 2 x (28 + 8) x 128 + 4 x 18,944)
    assert gib(training, "one layer") == pytest.approx(10_240 * 2 * 106_496 / GIB)
    assert training.need_gib == pytest.approx(33.0, abs=0.05)
    assert all(phase.fits for phase in found.values())
    # 0.8 x 80 - 4 - 7.0925 GiB of weights, by 2 x 28 layers x 2 heads x 128 x 2 bytes x 20,480 tokens
    assert kv_sequences(QWEN_7B, PAPER, 80) == pytest.approx(
        (60 - 7.0925) * GIB / (28_672 * 20_480), rel=1e-4
    )


def test_32b_full_fine_tuning_on_8_shared_gpus_of_80_does_not_fit_because_of_its_optimizer():
    found = named(QWEN_32B)
    # 16 bytes x 32,763,876,352 / 8 = 61.03 GiB, before any activation
    assert gib(found["training"], "weights, gradients") == pytest.approx(65_527_752_704 / GIB)
    assert not found["training"].fits
    assert found["weight sync"].fits and found["generation"].fits
    assert named(QWEN_32B, replace(PAPER, lora_rank=32))["training"].fits
    assert named(QWEN_32B, replace(PAPER, cpu_offload=True))["training"].fits
    assert named(QWEN_32B, replace(PAPER, train_gpus=16))["training"].fits
    assert named(QWEN_32B, gpu_gib=141)["training"].fits


def test_host_memory_counts_sandboxes_and_what_leaves_the_gpus():
    host = named(QWEN_7B)["host memory"]
    # fp32 weights, two moments and bf16 reference: 14 bytes x 7,615,616,512
    assert gib(host, "weights and optimizer") == pytest.approx(106_618_631_168 / GIB)
    assert gib(host, "128 sandboxes") == 256
    assert host.fits, "nobody said what a node has"
    assert not named(QWEN_7B, host_gib=256)["host memory"].fits
    assert named(QWEN_7B, host_gib=512)["host memory"].fits
    sleeping = gib(named(QWEN_7B, replace(PAPER, lora_rank=32))["host memory"], "weights of sleeping")
    assert sleeping == pytest.approx(4 * 2 * 7_615_616_512 / GIB)  # four engines, bf16


def test_layouts_of_the_recipes():
    assert layout_of(load_config(["+recipe=swe_smith_1600"])) == PAPER
    two = layout_of(load_config(["+recipe=swe_smith_1600_2node"]))
    assert (two.train_gpus, two.engines_per_node, two.tensor_parallel, two.sequence_parallel) == (16, 2, 4, 4)
    apart = layout_of(load_config(["+recipe=swe_smith_1600_async"]))
    assert (apart.train_gpus, apart.shared, apart.engines_per_node) == (4, False, 2)
    assert layout_of(load_config(["+recipe=swe_smith_1600", "trainer=grpo_fsdp_lora"])).lora_rank == 32


def test_a_shape_is_read_from_a_config_json_before_the_configuration(tmp_path):
    keys = '"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2'
    (tmp_path / "config.json").write_text(f'{{{keys}, "vocab_size": 100, "tie_word_embeddings": true}}')
    found = shape_of({"path": str(tmp_path), "shape": None})
    assert found == ModelShape(2, 64, 128, 4, 4, 16, 100, tied=True)
    assert shape_of({"path": "owner/model", "shape": None}) is None


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["swe_smith_1600", "--gpu-memory-gib", "80", "--gpus", "8"], 0, "Fits, by arithmetic"),
        (["swe_smith_1600", "policy=swe_agent_lm_32b"], 3, "Does not fit: training, each GPU, 7.4 GiB"),
        (["swe_smith_1600", "--gpus", "4", "--gpu-memory-gib", "40"], 3, "trainer=grpo_fsdp_lora"),
        (["swe_smith_1600", "--host-memory-gib", "128"], 3, "host memory, each node"),
        (
            ["swe_smith_1600", "policy=hf", "policy.path=owner/model"],
            2,
            "policy.shape: the size of owner/model",
        ),
        (["swe_smith_1600", "--gpus", "3"], 2, "trainer.engines: 1 x trainer.tensor_parallel 2"),
        (["no_such_recipe"], 2, "no_such_recipe"),
        (["cpu_demo", "--host-memory-gib", "24"], 0, "without GPUs"),
    ],
)
def test_the_command(arguments: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["--recipe", *arguments]) == status
    captured = capsys.readouterr()
    assert told in captured.out + captured.err
