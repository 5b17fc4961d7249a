"""Text of `python launch/train.py --help`, from the schema and the files of configs/."""

import dataclasses
import inspect
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from launch.config_compose import CONFIG_DIR
from launch.config_schema import TrainConfig
from recipes.swe.agent_config import AgentConfig

HEAD = """usage: python launch/train.py +recipe=NAME [group=CHOICE ...] [key=value ...] [dry_run=true]

Trains a policy on software-engineering tasks with SkyRL's GRPO. Try first:
  python launch/train.py +recipe=cpu_demo                       a real run on a machine with no GPU
  python launch/train.py +recipe=swe_smith_1600 dry_run=true    what the big run needs and this machine lacks

Exit status: 0 done, 1 the training failed, 2 the configuration is wrong (every error is listed),
3 this machine cannot open sandboxes (python launch/doctor.py says why), 130 Ctrl-C.
"""


def help_text(config_dir: Path = CONFIG_DIR) -> str:
    """The whole text."""
    lines = [HEAD, "Groups and their choices:"]
    for folder in sorted(path for path in config_dir.iterdir() if path.is_dir() and path.name != "lock"):
        choices = ", ".join(sorted(path.stem for path in folder.glob("*.yaml") if _is_choice(path)))
        if choices:
            lines.append(f"  {'+' if folder.name == 'recipe' else ''}{folder.name}={choices}")
    lines.extend(["", "Keys (skyrl.* takes every key of SkyRL's own configuration):"])
    lines.extend(_key_lines(TrainConfig, ""))
    lines.append(
        "  agent.swe_agent_yaml             path | null                        SWE-agent's config instead."
    )
    lines.extend(_key_lines(AgentConfig, "agent."))
    return "\n".join(lines)


def _is_choice(path: Path) -> bool:
    """Whether a file is a choice of its group: configs/data also holds lists that such choices name."""
    return path.parent.name != "data" or any(
        line.startswith("path:") for line in path.read_text().splitlines()
    )


def _key_lines(kind: type, prefix: str) -> list[str]:
    lines: list[str] = []
    hints = get_type_hints(kind, include_extras=True)
    docs = _field_docs(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if prefix + field.name in ("agent", "skyrl"):
            continue  # described by their owners: below, and SkyRL's own pages
        section = next((one for one in (hint, *get_args(hint)) if dataclasses.is_dataclass(one)), None)
        if isinstance(section, type):
            lines.extend(_key_lines(section, f"{prefix}{field.name}."))
        else:
            lines.append(f"  {prefix + field.name:<32} {_type_name(hint):<34} {docs.get(field.name, '')}")
    return lines


def _type_name(hint: Any) -> str:
    """As a person would say it: `int`, `bool | auto`, `one, two, three`."""
    if get_origin(hint) is Annotated:
        return _type_name(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(_type_name(option) for option in get_args(hint))
    if hint is type(None):
        return "null"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _field_docs(kind: type) -> dict[str, str]:
    """Docstrings under fields, read from the source: the language itself does not keep them."""
    docs: dict[str, str] = {}
    name = ""
    for line in inspect.getsource(kind).splitlines()[2:]:
        text = line.strip()
        if text.startswith('"""') and name:
            docs[name] = text.strip('"')
        elif ":" in text:
            name = text.split(":", 1)[0]
    return docs
