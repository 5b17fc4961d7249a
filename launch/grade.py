"""Opens MiniSandboxes of prepared tasks for `python -m rewards grade`.

Named by an entry point of `swe_rewards.sandboxes`. Tasks are those of the local set, by id, or of a file in
SWE-smith's schema with one row; environments come from the cache that `launch/prepare.py` fills
(`SWE_CACHE_DIR`, else `.cache` of the repository).
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from launch.config_compose import ROOT
from recipes.swe.grading import case_of, open_grader
from recipes.swe.tasks import LOCAL_TASKS, TaskFileError, load_tasks
from recipes.swe.types import TaskInstance
from rewards.cli import Tasks, UnusableError, UsageError
from rewards.grader import Case
from sandbox.cache import EnvCache
from sandbox.errors import CacheError, SandboxError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits, Sandbox, SandboxSpec

LIMITS = Limits(memory_bytes=1024 * MIB, pids=256, disk_bytes=256 * MIB)


class PreparedTasks:
    """Tasks whose environments are in the cache."""

    def __init__(self, backend: MiniBackend, root: Path) -> None:
        self._backend = backend
        self._cache = EnvCache(root)
        self.grader = open_grader(root)

    def open(self, task: str) -> Case:
        """As `rewards.cli.Tasks`."""
        found = self._find(task)
        try:
            env = self._cache.ensure(found.env)
        except CacheError as error:
            raise UnusableError(str(error)) from error
        return replace(
            case_of(found.tests, env, self._backend, LIMITS),
            open_sandbox=partial(self._sandbox, env.spec(LIMITS)),
        )

    @asynccontextmanager
    async def _sandbox(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        try:
            opened = await self._backend.open(spec)
        except SandboxError as error:
            raise UnusableError(f"no sandbox can be opened: {error}") from error
        async with opened as sandbox:
            yield sandbox

    def _find(self, task: str) -> TaskInstance:
        is_file = Path(task).is_file()
        try:
            tasks = load_tasks(Path(task) if is_file else self._cache.root / LOCAL_TASKS)
        except TaskFileError as error:
            raise UsageError(str(error)) from error
        chosen = tasks if is_file else [item for item in tasks if item.instance_id == task]
        if len(chosen) != 1:
            what = (
                f"{task} holds {len(chosen)} tasks, one is wanted"
                if is_file
                else f"no task {task} is prepared"
            )
            raise UsageError(what)
        return chosen[0]


@asynccontextmanager
async def prepared_tasks() -> AsyncIterator[Tasks]:
    """The entry point."""
    root = Path(os.environ.get("SWE_CACHE_DIR") or ROOT / ".cache")
    try:
        async with MiniBackend() as backend:
            yield PreparedTasks(backend, root)
    except SandboxError as error:
        raise UnusableError(f"no sandbox can be opened: {error}") from error
