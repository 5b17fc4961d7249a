"""Which sandboxes a run opens: `sandbox.kind` of the configuration as a backend.

The backends themselves know nothing of configuration; this is the one place that names them all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox.types import Backend


def make_backend(section: Mapping[str, Any], state_dir: Path) -> Backend:
    """The backend that the `sandbox` section of the configuration asks for, not yet entered.

    Raises ValueError for a kind that is not known; what the machine lacks is told when it is entered."""
    match section["kind"]:
        case "mini":
            from sandbox.mini import MiniBackend

            return MiniBackend(state_dir=state_dir)
        case "docker" | "podman" as engine:
            from sandbox.container import ContainerBackend

            return ContainerBackend(
                engine, program=tuple(section.get("engine_command") or ()), state_dir=state_dir
            )
        case kind:
            raise ValueError(f"sandbox.kind: {kind!r} is not known")
