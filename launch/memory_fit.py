"""Whether a run fits the memory of its GPUs and nodes, by arithmetic alone.

Each phase of a step is added up per GPU and compared with what the GPU has: SkyRL moves what a phase does not
need to host memory when GPUs are shared. Estimates lean to the safe side and are no measurement; other models
than Qwen2's kind are not known here. Where a number is an assumption it is a constant below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.config_rules import shares_gpus
from launch.memory_model import BF16, FP32, ModelShape

GIB = 1 << 30
TRAINER_RESERVE_GIB = 4.0
"""Assumption: CUDA context, NCCL buffers, allocator slack, and what a sleeping vLLM keeps (1-2 GiB)."""
VLLM_RESERVE_GIB = 4.0
"""Assumption: CUDA context, NCCL, CUDA graphs, peak of a batch of 8,192 tokens, inside vLLM's share."""
CPU_BASE_GIB = 6.0
"""Driver, Ray, one trainer and one vLLM process and some sandboxes, measured with the demo's policy."""
ADAM_BYTES = 2 * FP32
"""Both moments of AdamW in fp32 (arXiv 1910.02054, section 3.1)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One line of a sum."""

    name: str
    """What takes the memory."""
    gib: float
    """How much, GiB."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What is in memory at one time."""

    name: str
    """Of the phase and the place."""
    parts: tuple[Part, ...]
    """What takes memory."""
    limit_gib: float | None
    """What there is; None when nobody said."""

    @property
    def need_gib(self) -> float:
        """Sum of the parts."""
        return sum(part.gib for part in self.parts)

    @property
    def fits(self) -> bool:
        """Whether it is within the limit; what has no limit fits."""
        return self.limit_gib is None or self.need_gib <= self.limit_gib


@dataclass(frozen=True, slots=True)
class Layout:
    """What of the configuration decides about memory."""

    train_gpus: int
    """GPUs that training state is divided over, all nodes."""
    gpus_per_node: int
    """Of these, on one node."""
    engines_per_node: int
    """vLLM engines of one node, rounded up."""
    tensor_parallel: int
    """GPUs of an engine."""
    sequence_parallel: int
    """GPUs of a sequence in training."""
    context_tokens: int
    """Longest sequence."""
    shared: bool
    """Training and vLLM take turns on the same GPUs."""
    lora_rank: int
    """0 for full fine-tuning."""
    cpu_offload: bool
    """FSDP keeps parameters and optimizer in host memory (fsdp_config.cpu_offload)."""
    reference: bool
    """A reference model is needed for the KL term."""
    utilization: float
    """Share of a GPU that vLLM takes."""
    logprobs_chunk: int
    """Tokens whose log-probabilities are computed at once (trainer.logprobs_chunk_size)."""
    sandboxes: int
    """Open at once on a node."""
    sandbox_gib: float
    """Limit of each, GiB."""


def layout_of(config: Mapping[str, Any]) -> Layout:
    """Reads a resolved configuration."""
    trainer, cluster, sandbox = config["trainer"], config["cluster"], config["sandbox"]
    skyrl = config["skyrl"]["trainer"]
    policy, algorithm = skyrl.get("policy", {}), skyrl.get("algorithm", {})
    train = trainer["train_gpus_per_node"]
    return Layout(
        train_gpus=cluster["num_nodes"] * train,
        gpus_per_node=train,
        engines_per_node=-(-trainer["engines"] // cluster["num_nodes"]),
        tensor_parallel=trainer["tensor_parallel"],
        sequence_parallel=trainer["sequence_parallel"],
        context_tokens=config["policy"]["context_tokens"],
        shared=shares_gpus(config),
        lora_rank=policy.get("model", {}).get("lora", {}).get("rank", 0),
        cpu_offload=bool(policy.get("fsdp_config", {}).get("cpu_offload", False)),
        reference=bool(algorithm.get("use_kl_loss", True) or algorithm.get("use_kl_in_reward", False)),
        utilization=config["skyrl"]["generator"]["inference_engine"].get("gpu_memory_utilization", 0.8),
        logprobs_chunk=skyrl.get("logprobs_chunk_size", 1024),
        sandboxes=sandbox["max_concurrent"],
        sandbox_gib=sandbox["memory_mib"] / 1024,
    )


def phases(
    shape: ModelShape, layout: Layout, *, gpu_gib: float, host_gib: float | None = None
) -> tuple[Phase, ...]:
    """Everything that must fit, on GPUs of `gpu_gib` and nodes of `host_gib` GiB of memory."""
    return (
        _training(shape, layout, gpu_gib),
        _weight_sync(shape, layout, gpu_gib),
        _generation(shape, layout, gpu_gib),
        _host(shape, layout, host_gib),
    )


def kv_sequences(shape: ModelShape, layout: Layout, gpu_gib: float) -> float:
    """Sequences of full length whose KV cache one engine holds; below 1 vLLM refuses to start."""
    free = layout.utilization * gpu_gib - VLLM_RESERVE_GIB - _weights_gib(shape, layout)
    return free * GIB / (shape.kv_bytes_per_token(layout.tensor_parallel) * layout.context_tokens)


def _training(shape: ModelShape, layout: Layout, gpu_gib: float) -> Phase:
    """Forward and backward of one sequence of full length (micro batch 1) and the optimizer's step.

    SkyRL 0.4.0 keeps fp32 master weights, also frozen ones (workers/fsdp/fsdp_worker.py), which FSDP2 divides
    over all training GPUs with their gradients and AdamW's moments: 16 bytes a parameter (arXiv 1910.02054).
    Layers are gathered in bf16, one ahead; the output layer lies in FSDP's root unit and stays gathered, its
    gradient is reduced in fp32. With checkpointing each layer's input stays (arXiv 2205.05198, section 5) and
    one layer is recomputed. Logits and their gradient are bf16, log-probabilities fp32 by chunk."""
    tokens = -(-layout.context_tokens // layout.sequence_parallel)
    gathered = 2 * shape.layer_parameters * BF16
    output = shape.embedding_parameters * (BF16 + FP32)
    checkpoints = shape.layers * tokens * shape.hidden * BF16
    logits = 2 * tokens * shape.vocab * BF16 + 2 * layout.logprobs_chunk * shape.vocab * FP32
    parts = [
        Part("weights, gradients, optimizer", _state_gib(shape, layout)),
        Part("gathered layers and output layer", (gathered + output) / GIB),
        Part(f"checkpoints of {tokens} tokens", checkpoints / GIB),
        Part("one layer recomputed", tokens * shape.layer_activation_bytes_per_token() / GIB),
        Part("logits", logits / GIB),
        Part("CUDA, NCCL, slack", TRAINER_RESERVE_GIB),
    ]
    if layout.reference and not layout.shared:
        parts.insert(1, Part("reference model", BF16 * shape.parameters / layout.train_gpus / GIB))
    return Phase("training, each GPU", tuple(parts), gpu_gib)


def _state_gib(shape: ModelShape, layout: Layout) -> float:
    if layout.cpu_offload:
        return 0.0
    trained = shape.lora_parameters(layout.lora_rank) if layout.lora_rank else shape.parameters
    frozen = shape.parameters if layout.lora_rank else 0
    return ((2 * FP32 + ADAM_BYTES) * trained + FP32 * frozen) / layout.train_gpus / GIB


def _weights_gib(shape: ModelShape, layout: Layout) -> float:
    return BF16 * shape.parameters / layout.tensor_parallel / GIB


def _weight_sync(shape: ModelShape, layout: Layout, gpu_gib: float) -> Phase:
    """Weights go from the trainer to vLLM: where they share GPUs both copies are there, the optimizer is not
    (offload_after_step). The largest tensor is gathered in fp32 and cast, and a packed buffer of 1 GB, or of
    that tensor's size, carries them (weight_transfer_threshold_cuda_ipc_GB)."""
    largest = shape.embedding_parameters
    buffer_gib = max(1e9, largest * BF16) / GIB
    parts = [
        Part(
            "trainer's weights",
            0.0 if layout.cpu_offload else FP32 * shape.parameters / layout.train_gpus / GIB,
        ),
        Part("largest tensor gathered", largest * (FP32 + BF16) / GIB),
        Part("transfer buffer", buffer_gib),
        Part("CUDA, NCCL, slack", TRAINER_RESERVE_GIB),
    ]
    if layout.shared:
        parts.insert(1, Part("vLLM's weights", _weights_gib(shape, layout)))
    return Phase("weight sync, each training GPU", tuple(parts), gpu_gib)


def _generation(shape: ModelShape, layout: Layout, gpu_gib: float) -> Phase:
    """vLLM within its share of the GPU: weights divided by tensor parallelism, and the KV cache of at least
    one sequence of full length; what is left over is more KV cache."""
    sequence = layout.context_tokens * shape.kv_bytes_per_token(layout.tensor_parallel) / GIB
    parts = (
        Part("weights", _weights_gib(shape, layout)),
        Part("KV cache of one sequence", sequence),
        Part("CUDA graphs, NCCL, peak of a batch", VLLM_RESERVE_GIB),
    )
    return Phase(f"generation, {layout.utilization:g} of each GPU", parts, layout.utilization * gpu_gib)


def _host(shape: ModelShape, layout: Layout, host_gib: float | None) -> Phase:
    """Host memory of a node: what is moved off the GPUs, and all sandboxes at their limit.

    Off the GPUs go fp32 weights and AdamW's moments of the policy and bf16 weights of the reference, divided
    over nodes, where GPUs are shared or with cpu_offload; loading needs one fp32 copy (each rank its own when
    embeddings are tied: SkyRL then does not start on the meta device). With LoRA, sleeping engines keep their
    weights here (sleep level 1); without, they drop them."""
    share = layout.gpus_per_node / layout.train_gpus
    trained = shape.lora_parameters(layout.lora_rank) if layout.lora_rank else shape.parameters
    moved = (FP32 * shape.parameters + ADAM_BYTES * trained) * share
    if layout.reference:
        moved += BF16 * shape.parameters * share
    loading = FP32 * shape.parameters * (layout.gpus_per_node if shape.tied else 1)
    if not layout.shared and not layout.cpu_offload:
        moved = 0
    parts = [Part("weights and optimizer while off the GPUs, or loading", max(moved, loading) / GIB)]
    if layout.lora_rank and layout.shared:
        parts.append(
            Part("weights of sleeping engines", layout.engines_per_node * BF16 * shape.parameters / GIB)
        )
    parts.append(Part(f"{layout.sandboxes} sandboxes at their limit", layout.sandboxes * layout.sandbox_gib))
    parts.append(Part("driver, Ray, processes", CPU_BASE_GIB))
    return Phase("host memory, each node", tuple(parts), host_gib)


def cpu_phase(shape: ModelShape, host_gib: float, kv_gib: float = 1.0) -> Phase:
    """A run without GPUs: fp32 weights, gradients and AdamW's moments in one worker, fp32 weights and the KV
    cache in vLLM. Sandboxes are not counted: what they use is far below their limits."""
    parts = (
        Part("weights, gradients, optimizer", (2 * FP32 + ADAM_BYTES) * shape.parameters / GIB),
        Part("vLLM's weights and KV cache", FP32 * shape.parameters / GIB + kv_gib),
        Part("driver, Ray, processes", CPU_BASE_GIB),
    )
    return Phase("this machine", parts, host_gib)
