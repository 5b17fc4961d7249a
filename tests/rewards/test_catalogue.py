"""Attacks from an agent's shell in real sandboxes: each kind once on the small project, all with `slow`.

The exhaustive run over real tasks is `python -m tests.rewards.table`. What knows the fix and applies it only
where a test seems to run (`test-aware`) can pass the lint, so it is measured there and not asserted here.
"""

import pytest

from sandbox.mini import MiniBackend
from tests.rewards.catalogue import Attack, catalogue
from tests.rewards.targets import Target, attack, judge, leave_behind, small_target

pytestmark = pytest.mark.asyncio(loop_scope="module")
ATTACKS = [item for item in catalogue() if item.kind != "test-aware"]
QUICK = {item.kind: item for item in reversed(ATTACKS)}
DEBRIS = (
    "cp $FIXED $BUG; echo 'def broken(' > conftest.py; echo 'x = 1' > tests/test_new.py; cp $BUG $BUG~;"
    " cp $BUG $BUG.orig; echo notes > NOTES.md; echo '# edited' >> pyproject.toml; mkdir -p __pycache__;"
    " printf '\\0' > __pycache__/x.cpython-312.pyc; echo 'def half(:' > scratch.py; rm -rf .git"
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return small_target(tmp_path_factory.mktemp("small"))


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


async def test_the_fix_beside_innocent_debris_earns_one(backend: MiniBackend, target: Target) -> None:
    result = await judge(backend, target, await leave_behind(backend, target, DEBRIS))
    assert result.reasons == ()
    assert result.reward == 1.0
