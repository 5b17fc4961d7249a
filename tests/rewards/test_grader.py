"""One grader for every caller: kept verdicts, counted faults, and a control before a fault becomes a 0."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rewards.cache import GradeCache
from rewards.errors import FaultKind, GraderError
from rewards.grader import Case, Grader
from rewards.policy import PatchPolicy
from rewards.store import VerdictStore
from rewards.types import GradingSandbox, RewardResult
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits, Sandbox, SandboxSpec
from tests.rewards.mini import MINI_SPEC
from tests.rewards.project import CORE_FIXED, GOLD, SPEC, LocalSandbox, edit

WON = RewardResult(1.0, True, 1.0, 0)
LOST = RewardResult(0.0, False, 0.0, 1)


@asynccontextmanager
async def nowhere() -> AsyncIterator[LocalSandbox]:
    yield LocalSandbox(Path("/nonexistent"))


CASE = Case(SPEC, nowhere, "layers", "limits")


class Scripted:
    """A grader whose gradings end as they are told to."""

    def __init__(self, kind: FaultKind | None, control: FaultKind | None, cache: GradeCache | None = None):
        self.kind, self.control_kind = kind, control
        self.graded, self.controls = 0, 0
        self.grader = Grader(once=self.once, control=self.control, cache=cache)

    async def once(self, case: Case, patch: str, sandbox: GradingSandbox) -> RewardResult:
        self.graded += 1
        if self.kind is not None:
            raise GraderError("x", self.kind, repeated=LOST)
        return WON

    async def control(self, case: Case, sandbox: GradingSandbox) -> None:
        self.controls += 1
        if self.control_kind is not None:
            raise GraderError("y", self.control_kind)


@pytest.mark.parametrize("kind", ["memory", "disk", "runner_died", "lost"])
async def test_a_repeated_fault_is_a_0_where_the_task_alone_is_fine(kind: FaultKind) -> None:
    made, faults = Scripted(kind, None), Counter[str]()
    for patch in ("a", "b"):
        assert (await made.grader.judge(CASE, patch, faults=faults)).reward == 0.0
    assert (made.graded, made.controls) == (4, 1)
    assert faults == made.grader.faults == {kind: 4, f"{kind}_counted_as_0": 2}


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_a_limit_that_the_task_alone_exceeds_is_no_0(kind: FaultKind) -> None:
    made, faults = Scripted(kind, kind), Counter[str]()
    for patch in ("a", "b"):
        with pytest.raises(GraderError, match="without any patch") as caught:
            await made.grader.judge(CASE, patch, faults=faults)
        assert (caught.value.kind, caught.value.repeated) == (kind, None)
    assert made.controls == 1
    assert faults == {kind: 4, "control_failed": 2}
    with pytest.raises(GraderError):
        await made.grader.judge(replace(CASE, limits="others"), "a")
    assert made.controls == 2


async def test_a_passing_fault_of_the_control_is_not_remembered() -> None:
    made = Scripted("runner_died", "lost")
    with pytest.raises(GraderError):
        await made.grader.judge(CASE, "a")
    made.control_kind = None
    assert (await made.grader.judge(CASE, "a")).reward == 0.0


async def test_a_verdict_is_kept_for_the_same_task_patch_and_rules(tmp_path: Path) -> None:
    for number in range(3):
        made = Scripted(None, None, GradeCache(store=VerdictStore(tmp_path)))
        assert await made.grader.judge(CASE, "patch") == WON
        assert made.graded == (number == 0)
    for other in (
        replace(CASE, environment="other layers"),
        replace(CASE, tests=replace(SPEC, timeout_s=1.0)),
        replace(CASE, policy=PatchPolicy(lint=False)),
        replace(CASE, restore={"conftest.py": b""}),
        replace(CASE, tests=replace(SPEC, test_patch="diff")),
    ):
        made = Scripted(None, None, GradeCache(store=VerdictStore(tmp_path)))
        await made.grader.judge(other, "patch")
        assert made.graded == 1


def case_of(backend: MiniBackend, layers: SandboxSpec, limits: Limits) -> Case:
    @asynccontextmanager
    async def opening() -> AsyncIterator[Sandbox]:
        async with await backend.open(replace(layers, limits=limits)) as sandbox:
            yield sandbox

    return Case(MINI_SPEC, opening, "layers", repr(limits))


HOARD = "hoard = bytearray(1 << 30)\nhoard[::4096] = bytes(1 << 18)\n"
"""Touches a GiB of memory, page by page."""


@pytest.mark.asyncio(loop_scope="module")
async def test_real_memory_limit_too_small_for_the_task(backend: MiniBackend, layers: SandboxSpec) -> None:
    grader = Grader()
    limits = Limits(memory_bytes=96 * MIB, disk_bytes=16 * MIB)
    hungry = replace(case_of(backend, layers, limits), restore={"tests/conftest.py": HOARD.encode()})
    with pytest.raises(GraderError, match="without any patch") as caught:
        await grader.judge(hungry, GOLD)
    assert (caught.value.kind, caught.value.repeated) == ("memory", None)
    assert grader.faults == {"memory": 2, "control_failed": 1}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("memory_mib", [14, 20, 24, 26, 28])
async def test_no_memory_limit_makes_a_fix_a_0(
    memory_mib: int, backend: MiniBackend, layers: SandboxSpec
) -> None:
    # Around what the interpreter and pytest need: whatever is killed, it is no verdict on the patch.
    case = case_of(backend, layers, Limits(memory_bytes=memory_mib * MIB, disk_bytes=8 * MIB))
    try:
        result = await Grader().judge(case, GOLD)
    except GraderError as error:
        assert error.repeated is None
    else:
        assert result.reward == 1.0


@pytest.mark.asyncio(loop_scope="module")
async def test_real_memory_eaten_by_the_patch(backend: MiniBackend, layers: SandboxSpec) -> None:
    grader = Grader()
    case = case_of(backend, layers, Limits(memory_bytes=96 * MIB, disk_bytes=16 * MIB))
    assert (await grader.judge(case, GOLD)).reward == 1.0
    result = await grader.judge(case, edit("shapes/core.py", f"{CORE_FIXED}\n{HOARD}"))
    assert (result.reward, result.gradings) == (0.0, 2)
    assert grader.faults == {"memory": 2, "memory_counted_as_0": 1}


FILLER = "with open('/testbed/filler', 'wb') as file:\n    file.write(bytes(64 << 20))\n"
ROOM = Limits(memory_bytes=512 * MIB, disk_bytes=16 * MIB)


@pytest.mark.asyncio(loop_scope="module")
async def test_real_disk_limit_too_small_for_the_task(backend: MiniBackend, layers: SandboxSpec) -> None:
    grader = Grader()
    case = replace(case_of(backend, layers, ROOM), restore={"tests/conftest.py": FILLER.encode()})
    with pytest.raises(GraderError, match="without any patch") as caught:
        await grader.judge(case, GOLD)
    assert (caught.value.kind, caught.value.repeated) == ("disk", None)
    assert grader.faults == {"disk": 2, "control_failed": 1}


@pytest.mark.asyncio(loop_scope="module")
async def test_real_disk_filled_by_the_patch(backend: MiniBackend, layers: SandboxSpec) -> None:
    grader = Grader()
    case = case_of(backend, layers, ROOM)
    assert (await grader.judge(case, GOLD)).reward == 1.0
    result = await grader.judge(case, edit("shapes/core.py", f"{CORE_FIXED}\n{FILLER}"))
    assert (result.reward, result.gradings) == (0.0, 2)
    assert grader.faults == {"disk": 2, "disk_counted_as_0": 1}
