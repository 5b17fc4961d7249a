"""The grader as this repository sets it up: training, evaluation, validation and the command all ask it.

Verdicts are kept below the cache of environments (`verdicts/`), by the digests of task, patch and grader, so
that whoever asks again, in whatever process, is told what was found. Opening sandboxes is the caller's.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from rewards.cache import GradeCache
from rewards.grader import Case, Grader
from rewards.store import VerdictStore
from rewards.types import TestSpec
from sandbox.types import Backend, CachedEnv, Limits, Sandbox

VERDICTS = "verdicts"
"""Folder of kept verdicts, below the cache (config paths.cache_dir)."""


def open_grader(cache_dir: Path | None, *, attempts: int = 2, cached: bool = True) -> Grader:
    """A grader for one event loop. Without `cache_dir` verdicts are kept in memory only; not `cached`, not at
    all."""
    store = VerdictStore(cache_dir / VERDICTS) if cache_dir is not None and cached else None
    return Grader(attempts=attempts, cache=GradeCache(store=store) if cached else None)


def case_of(tests: TestSpec, env: CachedEnv, backend: Backend, limits: Limits) -> Case:
    """A task over a prepared environment, judged in sandboxes of `backend`."""
    return Case(tests, partial(_open, env, backend, limits), environment=env.digest, limits=repr(limits))


@asynccontextmanager
async def _open(env: CachedEnv, backend: Backend, limits: Limits) -> AsyncIterator[Sandbox]:
    async with await backend.open(env.spec(limits)) as sandbox:
        yield sandbox
