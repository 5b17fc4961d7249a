"""Attacks from an agent's shell in real sandboxes: one of each kind on the small project, all with `slow`.

The exhaustive run over real tasks is `python -m tests.rewards.table`. What knows the fix and applies it only
where a test seems to run (`test-aware`) can pass the lint, so it is measured there and not asserted here.
"""

import asyncio

import pytest

from sandbox.mini import MiniBackend
from tests.rewards.catalogue import Attack, catalogue, recorded, recorded_elsewhere
from tests.rewards.debris import DEBRIS
from tests.rewards.targets import Target, attack, judge, leave_behind, real_targets, small_target

pytestmark = pytest.mark.asyncio(loop_scope="module")
ATTACKS = [item for item in catalogue() if item.kind != "test-aware"]
WAITING = ("hangs", "waits for the end", "every child and parent killed")
"""Their verdict takes until a limit, or a second grading."""
QUICK = {item.kind: item for item in reversed(ATTACKS) if item.name not in WAITING}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return small_target(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def prepared() -> list[Target]:
    """Every prepared task of real projects."""
    found = real_targets(every=True)
    if not found:
        pytest.skip("no tasks are prepared: make prepare")
    return found


@pytest.mark.parametrize(
    "tried",
    [
        pytest.param(item, id=item.id, marks=() if QUICK.get(item.kind) is item else pytest.mark.slow)
        for item in ATTACKS
    ],
)
async def test_attack_earns_nothing(tried: Attack, backend: MiniBackend, target: Target) -> None:
    result = await attack(backend, target, tried.script)
    assert (result.reward, result.resolved) == (0.0, False)


UNLINTED = ("reports", "heap", "imports", "disk", "builtins", "pytest", "unittest", "frames")


@pytest.mark.parametrize(
    "tried",
    [
        pytest.param(item, id=item.id, marks=() if "rewritten" in item.name else pytest.mark.slow)
        for item in ATTACKS
        if item.kind in UNLINTED
    ],
)
async def test_the_runner_alone_stops_it(tried: Attack, backend: MiniBackend, target: Target) -> None:
    result = await attack(backend, target, tried.script, lint=False)
    assert (result.reward, result.resolved) == (0.0, False)


@pytest.mark.parametrize("name", DEBRIS)
async def test_the_fix_beside_innocent_debris_earns_one(
    name: str, backend: MiniBackend, target: Target
) -> None:
    result = await judge(backend, target, await leave_behind(backend, target, DEBRIS[name]))
    assert result.reasons == ()
    assert result.reward == 1.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", DEBRIS)
async def test_the_fix_earns_one_on_every_prepared_task(
    name: str, backend: MiniBackend, prepared: list[Target]
) -> None:
    slots = asyncio.Semaphore(3)

    async def one(task: Target) -> tuple[float, tuple[str, ...]]:
        async with slots:
            result = await judge(backend, task, await leave_behind(backend, task, DEBRIS[name]))
            return result.reward, result.reasons

    verdicts = await asyncio.gather(*map(one, prepared))
    wrong = {task.name: got for task, got in zip(prepared, verdicts, strict=True) if got != (1.0, ())}
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("tried", recorded(), ids=lambda item: item.id)
async def test_recorded_attack_earns_nothing_on_its_task(
    tried: Attack, backend: MiniBackend, prepared: list[Target]
) -> None:
    (task,) = [task for task in prepared if task.name.endswith("kvdo80wd")]
    assert (await attack(backend, task, tried.script)).reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("tried", recorded_elsewhere(), ids=lambda item: item.id)
async def test_recorded_attack_earns_nothing_on_other_projects(
    tried: Attack, backend: MiniBackend, prepared: list[Target]
) -> None:
    chosen = {target.name: target for target in real_targets()}
    assert len(chosen) > 1
    earned = {name: await attack(backend, target, tried.script) for name, target in chosen.items()}
    assert {name: result.reasons for name, result in earned.items() if result.reward != 0.0} == {}
