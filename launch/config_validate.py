"""Turns command-line overrides into a checked, resolved configuration, or into every error at once.

Four layers, all before anything heavy is imported: what Hydra cannot compose, values that cannot be
resolved, our own schema and the rules between keys, and SkyRL's own dataclasses and constructor when
SkyRL is installed. Whether files exist is told separately, since a dry run only lists what is missing.
"""

import contextlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf

from launch.config_check import MISSING, check
from launch.config_compose import CONFIG_DIR, ROOT, ConfigError, compose_config, to_plain
from launch.config_derive import derive
from launch.config_rules import broken_rules
from launch.config_schema import TrainConfig

RULED = ("policy", "trainer", "sandbox", "cluster", "agent", "skyrl", "data", "eval")
"""Sections whose values launch/config_rules.py compares; it needs their types to be right."""


def load_config(
    overrides: Sequence[str], *, inputs_must_exist: bool = False, config_dir: Path = CONFIG_DIR
) -> dict[str, Any]:
    """The resolved configuration, paths made absolute. Raises ConfigError with every fault.

    `inputs_must_exist`: unless it is a dry run, local models and tasks that are named must be there."""
    composed, errors = compose_config(overrides, config_dir=config_dir)
    make_paths_absolute(composed)
    plain, unresolved = to_plain(composed)
    errors.extend(unresolved)
    errors.extend(derive(plain))
    errors.extend(check_all(plain, already_reported=errors))
    if inputs_must_exist and plain.get("dry_run") is False:
        errors.extend(missing_inputs(plain))
    if errors:
        raise ConfigError(list(dict.fromkeys(errors)))
    return plain


def check_all(plain: Mapping[str, Any], already_reported: Sequence[str] = ()) -> list[str]:
    """Every fault of a resolved configuration."""
    unresolved = {line.split(":", 1)[0] for line in already_reported}
    errors = [line for line in check(plain, TrainConfig) if line.split(":", 1)[0] not in unresolved]
    faulty = {line.split(":", 1)[0] for line in errors} | unresolved
    if not any(path.startswith(RULED) for path in faulty):
        errors.extend(broken_rules(plain))
    if not any(path.startswith("reward") for path in faulty):
        errors.extend(_check_reward(plain["reward"]))
    errors.extend(_check_agent(plain.get("agent")))
    if not any(path.startswith("paths") for path in faulty):
        errors.extend(_check_paths(plain["paths"]))
    told = {line.split(": ", 1)[1] for line in errors}
    # A bad value that SkyRL's keys point to (skyrl.…lr is trainer.lr) is told once, under our key.
    for line in check_skyrl(plain.get("skyrl"), unresolved | faulty):
        message = line.split(": ", 1)[1]
        if message.startswith("unknown key") or message not in told:
            errors.append(line)
    return errors


def make_paths_absolute(config: DictConfig) -> None:
    """Make relative paths start at the repository root, wherever the command was typed."""
    for key in ("cache_dir", "runs_dir", "run_dir", "temp_dir", "shm_dir", "node_dir"):
        _make_absolute(config, f"paths.{key}", force=True)
    for key in ("policy.path", "data.path", "paths.store"):
        _make_absolute(config, key, force=False)
    _make_absolute(config, "eval.path", force=True)
    rates = OmegaConf.select(config, "data.curriculum.rates", default=None)
    for index, path in enumerate(rates if isinstance(rates, ListConfig) else ()):
        if isinstance(path, str):
            rates[index] = str((ROOT / Path(path).expanduser()).absolute())


def _make_absolute(config: DictConfig, key: str, *, force: bool) -> None:
    parent = OmegaConf.select(config, key.rsplit(".", 1)[0], default=None)
    name = key.rsplit(".", 1)[1]
    if not isinstance(parent, DictConfig) or name not in parent or OmegaConf.is_missing(parent, name):
        return
    raw = OmegaConf.to_container(parent, resolve=False)
    text = raw.get(name) if isinstance(raw, dict) else None
    if not text or not isinstance(text, str):
        return  # an empty one is no path, and not the repository either
    if text.startswith("${"):  # follows a key that is made absolute itself
        return
    if force or is_local(text):
        parent[name] = str((ROOT / Path(text).expanduser()).absolute())


def is_local(path: str) -> bool:
    """Whether a model or data path names a file here rather than something on a hub."""
    return path.startswith(("/", ".", "~")) or (ROOT / path).exists()


def _check_reward(reward: Mapping[str, Any]) -> list[str]:
    """Rules between keys of the reward, and its shape as the owner reads it."""
    from rewards.shapes import SHAPE_KEYS, shape_config

    errors: list[str] = []
    if reward["test_timeout_s"] is not None and reward["test_timeout_s"] > reward["timeout_s"]:
        errors.append("reward.test_timeout_s: is more than reward.timeout_s, the limit of the whole run")
    if reward["store"] and not reward["cache"]:
        errors.append("reward.store: needs reward.cache=true")
    if reward["turn_penalty"] + reward["length_penalty"] > 1:
        errors.append("reward.length_penalty: with reward.turn_penalty it takes more than the whole reward")
    try:
        shape_config({name: reward[name] for name in SHAPE_KEYS})
    except ValueError as error:
        errors.append(f"reward.shape: {error}")
    return errors


def _check_paths(paths: Mapping[str, Any]) -> list[str]:
    """Rules between keys of the cache."""
    keys = ("node_dir", "cache_max_gib")
    return [f"paths.{key}: needs paths.store" for key in keys if paths[key] and not paths["store"]]


def _check_agent(agent: Any) -> list[str]:
    """The agent's keys, checked by their owner."""
    from recipes.swe.agent_config import AgentConfig, AgentConfigError

    if not isinstance(agent, Mapping):
        return []  # told already
    try:
        AgentConfig.from_mapping(agent)
    except AgentConfigError as error:
        return error.problems
    return []


def check_skyrl(skyrl: Any, faulty: set[str]) -> list[str]:
    """The `skyrl` subtree against SkyRL's dataclasses (keys, types), then their own constructors.

    Section by section, since the constructor of the whole imports torch and vllm; the dry run calls that
    one too, in a process of its own. Without SkyRL installed nothing can be checked."""
    if not isinstance(skyrl, Mapping) or not skyrl_installed():
        return []
    from skyrl.train.config import SkyRLTrainConfig

    errors = [line for line in check(skyrl, SkyRLTrainConfig, "skyrl") if line.split(":", 1)[0] not in faulty]
    if errors or any(path.startswith("skyrl") for path in faulty):
        return errors
    for section, kind in get_type_hints(SkyRLTrainConfig).items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it remarks on renamed keys there
                kind.from_dict_config(OmegaConf.create(skyrl.get(section, {})))
        except (ValueError, AssertionError, TypeError) as error:
            errors.append(f"skyrl.{section}: {' '.join(str(error).split())}")
    return errors


def skyrl_installed() -> bool:
    """Whether SkyRL can be imported, found out without importing it."""
    return importlib.util.find_spec("skyrl") is not None and importlib.util.find_spec("skyrl_gym") is not None


def missing_here(config: Mapping[str, Any]) -> list[str]:
    """What a run needs and this machine lacks, each with what to do; empty when all is there."""
    from launch.machine import missing_on_machine

    return [*missing_inputs(config), *missing_on_machine(config)]


def missing_inputs(config: Mapping[str, Any]) -> list[str]:
    """Local models and tasks that the configuration names and that do not exist."""
    missing: list[str] = []
    policy, tasks = (_path_in(config.get(section)) for section in ("policy", "data"))
    if policy and is_local(policy) and not (Path(policy) / "config.json").is_file():
        hint = "; run: python launch/make_policy.py" if config["policy"].get("name") == "cpu_tiny" else ""
        missing.append(f"policy.path: no model in {policy}{hint}")
    if tasks and is_local(tasks) and not Path(tasks).exists():
        missing.append(f"data.path: {tasks} does not exist; run: {prepare_command(config['data'])}")
    evaluated = _path_in(config.get("eval"))
    if evaluated and not Path(evaluated).exists():
        missing.append(f"eval.path: {evaluated} does not exist")
    for path in config["data"].get("curriculum", {}).get("rates", ()):
        if not Path(path).exists():
            missing.append(f"data.curriculum.rates: {path} does not exist")
    return missing


def prepare_command(data: Mapping[str, Any]) -> str:
    """What builds the environments of a data set and writes its task file."""
    name = data.get("name")
    group = f" data={name}" if name != "local" and (CONFIG_DIR / "data" / f"{name}.yaml").is_file() else ""
    return f"python launch/prepare.py{group}"


def _path_in(section: Any) -> str | None:
    path = section.get("path") if isinstance(section, Mapping) else None
    return path if isinstance(path, str) and path != MISSING else None
