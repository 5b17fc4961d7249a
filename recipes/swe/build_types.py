"""What all steps of a build share: limits, how a build's script is run and judged, and digests of its inputs.

Builds run code of others, always in a sandbox. What went wrong there is a `BuildError`, which says at which
step and keeps the output; what went wrong on our side stays the SandboxError that it is.
"""

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.cache import layer_dir
from sandbox.cache_publish import publish_layer
from sandbox.types import GIB, MIB, ExecResult, Limits, Sandbox

BUILD_VERSION = "3"
"""Raise it when a change here must rebuild layers."""
BUILD_TIMEOUT_S = 1800.0
BUILD_LIMITS = Limits(memory_bytes=4 * GIB, pids=2048, disk_bytes=8 * GIB, output_bytes=MIB)
MAX_REASON_CHARACTERS = 600


class BuildError(Exception):
    """An environment or task could not be built; the message says at which step and why."""

    def __init__(self, message: str, *, timed_out: bool = False, lasting: bool = True, log: str = "") -> None:
        """`lasting`: False when a later try could end otherwise although nothing was changed."""
        super().__init__(message)
        self.timed_out = timed_out
        self.lasting = lasting
        self.log = log


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How environments are built."""

    cache_dir: Path
    """The cache (config paths.cache_dir)."""
    index_url: str
    """Package index."""
    timeout_s: float = BUILD_TIMEOUT_S
    """Limit of one step of a build, seconds."""
    limits: Limits = BUILD_LIMITS
    """Of a build's sandbox."""
    git_hosts: tuple[str, ...] = ()
    """Hosts (`host` or `host:port`) that commits may be fetched from; the build itself never reaches them."""


def base_system() -> str:
    """The system that layers are built over: compiled code of a build may need its libraries."""
    try:
        lines = Path("/etc/os-release").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    said = dict(line.split("=", 1) for line in lines if "=" in line)
    return "-".join(said.get(key, "").strip('"') for key in ("ID", "VERSION_ID")).strip("-")


def facts_digest(facts: Mapping[str, str]) -> str:
    """Digest of what a layer is made from."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def layer_tree(root: Path, name: str) -> Path:
    """Files of a layer on this machine. Raises BuildError for one that was fetched as an image."""
    tree = layer_dir(root, name) / "root"
    if not tree.is_dir():
        why = f"layer {name} is an image, which no build can use; remove {tree.parent}, and it is built again"
        raise BuildError(why, lasting=False)
    return tree


async def run_build(
    sandbox: Sandbox, script: str, what: str, *, timeout_s: float, cwd: str = "/"
) -> ExecResult:
    """Runs a step. Raises BuildError unless it ends with status 0."""
    result = await sandbox.exec(["bash", "-c", script], timeout_s=timeout_s, cwd=cwd)
    if result.timed_out:
        raise BuildError(f"{what}: not done after {timeout_s:.0f} s", timed_out=True, log=result.text)
    if result.exit_status != 0:
        tail = result.text.strip()[-MAX_REASON_CHARACTERS:]
        raise BuildError(f"{what} failed (status {result.exit_status}): {tail}", log=result.text)
    return result


async def publish_from(
    sandbox: Sandbox,
    root: Path,
    name: str,
    facts: dict[str, str],
    paths: Mapping[str, str],
    *,
    limit_bytes: int,
    tidy: Callable[[Path], object] = lambda _: None,
) -> None:
    """Makes a layer from directories of a sandbox: `paths` maps absolute paths inside to where they lie in
    the layer. `tidy` gets the layer's content before it is published."""
    (root / "layers").mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".tmp-stage-", dir=root / "layers"))

    def publish() -> None:
        tidy(stage)
        with publish_layer(root, name, facts) as content:
            if content is not None:
                for path in stage.iterdir():
                    path.rename(content / path.name)

    try:
        for inside, target in paths.items():
            place = stage / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            await sandbox.download(inside, place, limit_bytes=limit_bytes)
        # No lock is held while anything is awaited: two builds in one process would wait for each other.
        await asyncio.to_thread(publish)
    finally:
        await asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True)
