"""Text of `python launch/train.py --help`, from the schema and the files of configs/."""

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from launch.config_compose import CONFIG_DIR
from launch.config_schema import TrainConfig

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
        choices = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        if choices:
            lines.append(f"  {'+' if folder.name == 'recipe' else ''}{folder.name}={choices}")
    lines.extend(["", "Keys (skyrl.* takes every key of SkyRL's own configuration):"])
    lines.extend(_key_lines(TrainConfig, ""))
    return "\n".join(lines)


def _key_lines(kind: type, prefix: str) -> list[str]:
    lines: list[str] = []
    hints = get_type_hints(kind, include_extras=True)
    docs = _field_docs(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            lines.extend(_key_lines(hint if isinstance(hint, type) else type(hint), f"{prefix}{field.name}."))
        else:
            lines.append(f"  {prefix + field.name:<32} {_type_name(hint):<34} {docs.get(field.name, '')}")
    return lines


def _type_name(hint: Any) -> str:
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_args(base) and "Literal" in str(base):
        return str(base).replace("typing.Literal", "").replace("'", "").strip("[]")
    return (
        base.__name__ if isinstance(base, type) and not get_args(base) else str(base).replace("typing.", "")
    )


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
