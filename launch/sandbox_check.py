"""Whether the sandboxes that a configuration asks for can be opened here, asked before a run begins.

MiniSandbox's kernel features are tried in a child; a container engine has to start one empty container, since
engines that answer may still refuse to run anything. Says nothing of other nodes.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def sandbox_fault(config: Mapping[str, Any]) -> str | None:
    """Why sandboxes cannot be opened here and what to change; None when they can."""
    if config["sandbox"]["kind"] != "mini":
        return asyncio.run(_engine_fault(config["sandbox"]))
    from sandbox.probe import unusable_reason

    cache_dir = Path(config["paths"]["cache_dir"])
    return unusable_reason(cache_dir if cache_dir.is_dir() else None)


async def _engine_fault(section: Mapping[str, Any]) -> str | None:
    from recipes.swe.backends import make_backend
    from sandbox.errors import SandboxError
    from sandbox.mini import default_state_dir
    from sandbox.types import SandboxSpec

    try:
        async with make_backend(section, default_state_dir()) as backend:
            await (await backend.open(SandboxSpec())).close()
    except SandboxError as error:
        return str(error)
    return None
