"""Where attacks are tried: the small project, and one prepared task of each real project.

An attack is a shell script that an agent could run in its sandbox. It finds its target in variables:
`BUG` the file with the bug, `TEST` a test file that the bug breaks, `NAME` a failing test function,
`FIXED` a file outside the repository with the right content of `BUG`, `PLUG` a plugin that runs no test.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.swe.tasks import gold_patch, load_rows, read_layers, to_task
from recipes.swe.tasks_patch import apply_patch, changed_paths
from rewards.grade import grade
from rewards.policy import PatchPolicy
from rewards.retry import grade_with_retry
from rewards.types import RewardResult, TestSpec
from sandbox.cache import EnvCache
from sandbox.mini import MiniBackend
from sandbox.types import MIB, EnvSpec, Limits, Sandbox, SandboxSpec
from tests.rewards.mini import MINI_SPEC, make_layers
from tests.rewards.project import CORE_FIXED, GOLD

CACHE = Path(__file__).parents[2] / ".cache"
LIMITS = Limits(memory_bytes=768 * MIB, disk_bytes=512 * MIB, pids=128)
REAL_TIMEOUT_S = 60.0
CHOSEN = ("kvdo80wd", "t3twjoaj", "74crye27", "nn0clnfs", "ty8un4e6", "sr24gy1g", "9uxeuu0d")
"""Ends of instance ids, preferred where they exist; any other task of the project serves."""


PLUGIN = b"def pytest_pyfunc_call(pyfuncitem):\n    return True\n"


@dataclass(frozen=True)
class Target:
    """A task to attack."""

    name: str
    """Short, for test ids."""
    instance_id: str
    """Of the task."""
    sandbox: SandboxSpec
    """Fresh sandboxes of it."""
    tests: TestSpec
    """Its tests."""
    gold: str
    """The right patch."""
    bug: str
    """File with the bug, relative to the repository."""
    fixed: str
    """Its right content."""

    @property
    def test_file(self) -> str:
        """A file with failing tests."""
        return self.tests.fail_to_pass[0].split("::", 1)[0]

    @property
    def test_name(self) -> str:
        """A failing test function."""
        return self.tests.fail_to_pass[0].split("[", 1)[0].rsplit("::", 1)[-1]


def small_target(root: Path) -> Target:
    """The small project of these tests."""
    layers = replace(make_layers(root), limits=LIMITS)
    return Target(
        "shapes",
        "shapes",
        layers,
        replace(MINI_SPEC, timeout_s=REAL_TIMEOUT_S),
        GOLD,
        "shapes/core.py",
        CORE_FIXED,
    )


def real_targets(*, every: bool = False) -> list[Target]:
    """Prepared tasks, one a project unless `every`. Empty when none are prepared."""
    tasks = CACHE / "tasks" / "local.jsonl"
    if not tasks.is_file():
        return []
    cache, found = EnvCache(CACHE), dict[str, Target]()
    rows = load_rows(tasks)
    for row in sorted(rows, key=lambda row: not row.instance_id.endswith(CHOSEN)):
        project = row.instance_id.split("__", 1)[1].split(".", 1)[0]
        key = row.instance_id if every else project
        if key in found:
            continue
        env = cache.ensure(EnvSpec(key=row.instance_id))
        gold = gold_patch(row)
        (bug,) = changed_paths(gold)
        fixed = apply_patch(gold, bug, read_layers(env.layers, f"{env.workdir}/{bug}"))
        tests = to_task(row, timeout_s=REAL_TIMEOUT_S).tests
        name = row.instance_id if every else project
        found[key] = Target(name, row.instance_id, env.spec(LIMITS), tests, gold, bug, fixed)
    return sorted(found.values(), key=lambda target: target.name)


async def leave_behind(backend: MiniBackend, target: Target, script: str) -> str:
    """The patch read from the files of a sandbox in which an agent ran `script`."""
    async with await backend.open(target.sandbox) as sandbox:
        await sandbox.write_file("/tmp/fixed.py", target.fixed.encode())
        await sandbox.write_file("/tmp/plug.py", PLUGIN)
        variables = {"BUG": target.bug, "TEST": target.test_file, "NAME": target.test_name}
        variables |= {"FIXED": "/tmp/fixed.py", "PLUG": "/tmp/plug.py"}
        head = "".join(f"export {name}={value}\n" for name, value in variables.items())
        await sandbox.write_file("/tmp/attack.sh", f"{head}{script}".encode())
        session = await sandbox.open_session()
        await session.run("cd /testbed && . /tmp/attack.sh", timeout_s=60)
        return await sandbox.diff("/testbed")


async def judge(backend: MiniBackend, target: Target, patch: str, *, lint: bool = True) -> RewardResult:
    """The verdict of the grader that training uses, in fresh sandboxes."""

    @asynccontextmanager
    async def fresh() -> AsyncIterator[Sandbox]:
        async with await backend.open(target.sandbox) as sandbox:
            yield sandbox

    policy = PatchPolicy(lint=lint)
    return await grade_with_retry(fresh, lambda sandbox: grade(target.tests, patch, sandbox, policy=policy))


async def attack(backend: MiniBackend, target: Target, script: str, *, lint: bool = True) -> RewardResult:
    """Both, one after the other."""
    return await judge(backend, target, await leave_behind(backend, target, script), lint=lint)
