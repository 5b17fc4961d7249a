"""What the configuration of `launch/train.py` may hold: one dataclass a group, a docstring a key.

Only a description: `launch/config_check.py` compares, `launch/config_validate.py` adds what depends on
several keys or on files. `agent` and `skyrl` are described by the dataclasses of their owners.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from launch.config_check import Above, Between, NotEmpty
from launch.config_schema_data import CurriculumSection, EvalSection, SkipSection

Count = Annotated[int, Between(1)]
Folder = Annotated[str, NotEmpty()]
Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True, slots=True)
class PathsSection:
    """Where things lie; relative paths start at the repository root."""

    cache_dir: Folder
    """Environments, tasks and the demo policy."""
    runs_dir: Folder
    """One folder a run."""
    run_dir: Folder
    """This run's folder."""
    temp_dir: Folder
    """Below it lies Ray's session folder of a run; keep it short (socket paths are limited)."""
    shm_dir: Folder
    """Below it lie weights on their way to vLLM; best a tmpfs."""
    store: str | None = None
    """Shared store that missing environments come from: folder, file://, s3://, ...; see docs/cache.md."""
    node_dir: str | None = None
    """With a store: where a node keeps what it fetched, on its own disk; null for cache_dir."""
    cache_max_gib: Annotated[float | None, Above(0)] = None
    """With a store: size that layers on a node are kept within, GiB; null for no bound."""
    cache_io: Annotated[int, Between(1, 100_000)] = 40
    """Units that a node unpacks at once; `launch/doctor.py --io` proposes the number for units of 50 MB."""
    cache_io_unit_mb: Annotated[float, Above(0)] = 50
    """Size of a unit, MB (10^6 bytes): a layer takes one for each that it is large, at most all there are."""


@dataclass(frozen=True, slots=True)
class ShapeSection:
    """Size of a decoder of Qwen2's kind, as its config.json says it; for memory arithmetic only."""

    layers: Count
    """Decoder layers."""
    hidden: Count
    """Width of the residual stream."""
    intermediate: Count
    """Width of the gated MLP."""
    heads: Count
    """Query heads of a layer."""
    kv_heads: Count
    """Key/value heads of a layer."""
    head_dim: Count
    """Width of a head."""
    vocab: Count
    """Rows of the embedding."""
    tied: bool
    """Whether the output layer is the embedding."""


@dataclass(frozen=True, slots=True)
class PolicySection:
    """The model that is trained."""

    name: str
    """Short name, used in tags."""
    path: str
    """Hub id or local folder."""
    dtype: Literal["bfloat16", "float16", "float32"]
    """Type of the served weights."""
    prompt_tokens: Annotated[int, Between(64)]
    """Longest prompt of a turn, tokens."""
    turn_tokens: Count
    """Most tokens sampled in one turn."""
    context_tokens: Annotated[int, Between(64)]
    """Longest sequence that vLLM must hold, tokens."""
    shape: ShapeSection | None = None
    """Size of the model, for `doctor --recipe` when its config.json is not here."""


@dataclass(frozen=True, slots=True)
class SandboxSection:
    """The sandboxes of rollouts and of grading."""

    kind: Literal["mini", "docker", "podman"]
    """Backend: MiniSandbox, or containers to compare with."""
    max_concurrent: Annotated[int, Between(1, 4096)]
    """Open at once on a node."""
    memory_mib: Annotated[int, Between(32)]
    """Memory of one sandbox, its tmpfs files included, MiB."""
    pids: Annotated[int, Between(8, 4_194_304)]
    """Processes and threads of one sandbox."""
    disk_mib: Annotated[int, Between(8)]
    """Size of the writable layer, MiB."""
    open_files: Annotated[int, Between(64, 1_048_576)]
    """Open files of one process."""
    output_kib: Annotated[int, Between(1, 65_536)]
    """Kept of one command's output, KiB."""
    engine_command: list[str] = field(default_factory=list[str])
    """With docker or podman: the engine's command and options of its own (a socket, say); empty: its name."""


@dataclass(frozen=True, slots=True)
class RewardSection:
    """How a patch is judged."""

    kind: Literal["tests"]
    """Grader."""
    timeout_s: Annotated[float, Above(0)]
    """Limit of one grading run, seconds."""
    test_timeout_s: Annotated[float | None, Above(0)]
    """Limit of one test, seconds; null for the task's own."""
    attempts: Annotated[int, Between(1, 10)]
    """Gradings before a fault is final; 1 turns the retry off."""
    cache: bool
    """Grade the same patch of the same task once a run."""
    store: bool
    """Keep verdicts below paths.cache_dir, for later runs; needs cache."""
    shape: Literal["binary", "fraction"]
    """What a verdict is worth, before the terms below; see rewards.shapes."""
    turn_penalty: Share
    """Taken from a positive reward at the turn limit, proportionally less before."""
    length_penalty: Share
    """Taken from a positive reward at the token limit, from half of it on."""
    format_bonus: Share
    """Paid for well-formed calls, with or without a fix."""
    suspicious: Literal["zero", "quarantine"]
    """A verdict with suspicions: reward 0, or left out of the loss and counted."""


@dataclass(frozen=True, slots=True)
class DataSection:
    """The tasks."""

    name: str
    """Short name."""
    path: str
    """JSONL file of validated tasks, as `python launch/prepare.py` writes it."""
    curriculum: CurriculumSection
    """Order and choice by measured difficulty."""
    skip: SkipSection
    """What is left out for a while."""
    source: str | None = None
    """Data set of the hub that the tasks come from; null for tasks made here."""
    shuffle_seed: int | None = None
    """Seed of the shuffle before `first` are taken; null for the file's own order."""
    first: Count | None = None
    """Take so many tasks; null for all."""


@dataclass(frozen=True, slots=True)
class TrainerSection:
    """What is said of training most often; the rest is under `skyrl`."""

    name: str
    """Short name."""
    max_steps: Count
    """Trainer steps."""
    epochs: Count
    """Most passes over the tasks; must reach max_steps."""
    prompts_per_step: Count
    """Groups in a batch."""
    rollouts_per_prompt: Annotated[int, Between(2)]
    """Rollouts of one prompt; GRPO compares them, so two at least."""
    lr: Annotated[float, Above(0), Between(0, 1)]
    """Learning rate."""
    temperature: Annotated[float, Above(0), Between(0, 2)]
    """Sampling temperature of rollouts."""
    top_p: Annotated[float, Above(0), Between(0, 1)]
    """Nucleus bound of rollouts."""
    checkpoint_every_steps: Count
    """Steps from one checkpoint to the next."""
    checkpoints_kept: Annotated[int, Between(-1)]
    """How many checkpoints stay on disk; -1 for all."""
    max_failed_share: Annotated[float, Between(0, 1)]
    """A step with a larger share of failed rollouts (ours, not the model's) stops the run."""
    gpus_per_node: Annotated[int, Between(0, 64)]
    """GPUs of a node that it wants, vLLM's included; 0 for a trainer without GPUs."""
    train_gpus_per_node: Annotated[int, Between(0, 64)]
    """GPUs of a node that policy and reference use."""
    rollout_gpus_per_node: Annotated[int, Between(0, 64)]
    """GPUs of a node that vLLM uses; the same ones when they take turns."""
    engines: Count
    """vLLM engines, all nodes together."""
    tensor_parallel: Count
    """GPUs of one engine."""
    sequence_parallel: Count
    """GPUs that share one sequence in training (Ulysses)."""
    max_staleness_steps: Annotated[int, Between(0)] = 0
    """Fully asynchronous: how many steps old the policy may be that sampled what is trained on."""
    generation_groups: Annotated[int, Between(0)] = 0
    """Fully asynchronous: groups sampled at once."""


@dataclass(frozen=True, slots=True)
class ClusterSection:
    """Machines."""

    kind: Literal["local", "ray"]
    """local: Ray is started by the run on this machine; ray: it joins a cluster that is up."""
    address: str | None
    """With ray: host:port, or auto (RAY_ADDRESS, else this machine's cluster). A run without GPUs starts its
    own raylets here when auto finds no RAY_ADDRESS."""
    num_nodes: Count
    """Nodes; on one machine without GPUs: raylets."""
    gpus_per_node: Annotated[int, Between(0, 64)]
    """GPUs of a node; 0 for none."""


@dataclass(frozen=True, slots=True)
class LoggerSection:
    """Where metrics go beside the run's own file."""

    backend: Literal["wandb", "console"]
    """Tracker of SkyRL."""
    project: str
    """W&B project."""
    entity: str | None
    """W&B team; null for the default."""
    mode: Literal["auto", "online", "offline"]
    """auto: online when WANDB_API_KEY is set, else offline."""
    tags: list[str]
    """W&B tags."""
    samples_every_steps: Annotated[int, Between(0)]
    """A W&B table of sample trajectories that often; 0: none."""
    samples_per_table: Count
    """Rollouts in it."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The whole."""

    recipe_name: str
    """Name of the recipe, first part of the run's name."""
    seed: Annotated[int, Between(0, 2**31 - 1)]
    """Seed of data order, sampling and training."""
    run_name: str
    """Name of the run's folder and of the W&B run."""
    resume: bool | Literal["auto"]
    """auto: go on with an unfinished run of this name, else start; true: go on, or fail; false: start."""
    dry_run: bool
    """Compose, validate and say what is needed and missing; train nothing."""
    paths: PathsSection
    """Where things lie."""
    policy: PolicySection
    """The model."""
    agent: dict[str, Any]
    """The agent loop, see recipes.swe.agent."""
    sandbox: SandboxSection
    """The sandboxes."""
    reward: RewardSection
    """The grader."""
    data: DataSection
    """The tasks."""
    eval: EvalSection
    """Evaluation during training."""
    trainer: TrainerSection
    """Training in short."""
    cluster: ClusterSection
    """Machines."""
    logger: LoggerSection
    """Metrics."""
    skyrl: dict[str, Any]
    """SkyRL's own configuration, see skyrl.train.config.SkyRLTrainConfig."""
