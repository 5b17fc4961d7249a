"""Configuration of `launch/eval.py`: what configs/eval.yaml may hold, checked before anything is started."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from launch.config_check import Above, Between, NotEmpty, check
from launch.config_compose import ROOT, ConfigError, compose_config, to_plain
from launch.config_schema import LoggerSection, PathsSection, PolicySection, RewardSection, SandboxSection
from launch.config_schema_data import Count
from launch.config_validate import is_local, make_paths_absolute

Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True, slots=True)
class EvalDataSection:
    """The tasks."""

    name: str
    """Short name."""
    path: str
    """JSONL file of validated tasks."""
    shuffle_seed: int | None
    """Seed of the shuffle before `first` are taken; null for the file's own order."""
    first: Count | None
    """Take so many tasks; null for all."""
    source: str | None = None
    """Data set of the hub that the tasks come from."""


@dataclass(frozen=True, slots=True)
class ServeSection:
    """Where the policy is served."""

    url: str | None
    """Base URL of a server that is up; null: one is started here."""
    model_name: str
    """Name that requests use."""
    gpus: Annotated[int, Between(0, 64)]
    """GPUs of the server started here; 0: processors."""
    tensor_parallel: Annotated[int, Between(1, 64)]
    """GPUs of one engine; must divide `gpus`."""
    start_timeout_s: Annotated[float, Above(0)]
    """How long to wait for the server, seconds."""
    extra_args: list[str]
    """More options for vLLM."""


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """The whole."""

    recipe_name: Literal["eval"]
    """First part of the W&B group."""
    seed: Annotated[int, Between(0, 2**31 - 1)]
    """Seed of the sampling."""
    run_name: str
    """Name of the folder below paths.runs_dir; a number is added when it is taken."""
    dry_run: bool
    """Check everything and say what would be run."""
    model: Annotated[str, NotEmpty()]
    """Hugging Face folder or hub id, run folder, or checkpoint."""
    held_out_of: str | None
    """Run folder whose held-out tasks are evaluated."""
    rollouts_per_task: Count
    """Attempts at each task."""
    temperature: Annotated[float, Between(0, 2)]
    """Sampling temperature; 0: greedy."""
    top_p: Annotated[float, Above(0), Between(0, 1)]
    """Nucleus bound."""
    confidence: Annotated[float, Between(0.5, 0.999)]
    """Of the interval around pass@1."""
    serve: ServeSection
    """The server."""
    paths: PathsSection
    """Where things lie."""
    policy: PolicySection
    """Lengths and type of the model."""
    agent: dict[str, Any]
    """The agent loop, see recipes.swe.agent_config."""
    sandbox: SandboxSection
    """The sandboxes."""
    reward: RewardSection
    """The grader."""
    data: EvalDataSection
    """The tasks."""
    logger: LoggerSection
    """W&B, or only the run's files."""


def load_eval_config(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved configuration, paths made absolute. Raises ConfigError with every fault."""
    composed, errors = compose_config(overrides, config_name="eval")
    make_paths_absolute(composed)
    plain, unresolved = to_plain(composed)
    for key in ("model", "held_out_of"):
        if plain.get(key) and isinstance(plain[key], str) and is_local(plain[key]):
            plain[key] = str((ROOT / Path(plain[key]).expanduser()).absolute())
    errors = [*errors, *unresolved]
    said = {line.split(":", 1)[0] for line in errors}
    errors += [line for line in check(plain, EvalConfig) if line.split(":", 1)[0] not in said]
    if not errors:
        errors = [*_rules(plain), *_agent(plain["agent"]), *_missing(plain)]
    if errors:
        raise ConfigError(errors)
    return plain


def _rules(plain: dict[str, Any]) -> list[str]:
    serve, errors = plain["serve"], list[str]()
    if serve["gpus"] and serve["gpus"] % serve["tensor_parallel"]:
        errors.append("serve.tensor_parallel: must divide serve.gpus")
    if plain["rollouts_per_task"] > 1 and plain["temperature"] == 0:
        errors.append("rollouts_per_task: more than one is the same rollout again at temperature=0")
    return errors


def _agent(agent: dict[str, Any]) -> list[str]:
    from recipes.swe.agent_config import AgentConfig, AgentConfigError

    try:
        AgentConfig.from_mapping(agent)
    except AgentConfigError as error:
        return error.problems
    return []


def _missing_model(plain: dict[str, Any]) -> list[str]:
    """The model must be here, for a server started here loads nothing from a hub. One that is up may have
    a model that is nowhere here; its tokenizer then comes from the hub."""
    from launch.machine import hub_dir, hub_file
    from recipes.swe.checkpoint_model import NoModelError, find_model

    model = plain["model"]
    try:
        found = find_model(model)
    except NoModelError as error:
        return [f"model: {error}"]
    if not isinstance(found, str) or plain["serve"]["url"] or hub_file(found, "*.safetensors"):
        return []
    return [f"model: {model} is neither a folder here nor in {hub_dir()}; run: hf download {model}"]


def _missing(plain: dict[str, Any]) -> list[str]:
    from launch.machine import missing_engine

    missing = [*_missing_model(plain), *missing_engine(plain["sandbox"])]
    held_out_of = plain["held_out_of"]
    if held_out_of is not None and not (Path(held_out_of) / "config.yaml").is_file():
        missing.append(f"held_out_of: {held_out_of} is no folder of a training run")
    if held_out_of is None and not Path(plain["data"]["path"]).is_file():
        missing.append(f"data.path: {plain['data']['path']} does not exist; run: python launch/prepare.py")
    return missing
