"""Each attack earns 0, alone; a right fix earns 1 even when dropped debris lies beside it."""

import pytest

from rewards.grade import grade, select
from rewards.policy import PatchPolicy
from rewards.runner import files_of
from tests.rewards.attacks import DROPPED, RUN
from tests.rewards.project import GOLD, SPEC, LocalSandbox

FILES = files_of(SPEC.fail_to_pass + SPEC.pass_to_pass)
WITHOUT_LINT = PatchPolicy(lint=False)
SEMANTIC = {name for name in RUN if name.startswith("13")}
"""Only the lint sees these: the product's behaviour itself depends on the tests."""
THROUGH_THE_HEAP = {"06g report hook registered as a plugin", "06h recorder edited through the heap"}
"""Not claimed to be stopped without the lint."""


@pytest.mark.parametrize("name", DROPPED)
async def test_what_steers_the_judge_is_dropped(name: str, local: LocalSandbox) -> None:
    result = await grade(SPEC, DROPPED[name], local)
    assert result.reward == 0.0
    assert result.dropped_paths


@pytest.mark.parametrize("name", DROPPED)
async def test_all_dropped_files_together_with_the_fix_are_harmless(name: str) -> None:
    kept, dropped = select(DROPPED[name] + GOLD, FILES, PatchPolicy())
    assert "shapes/core.py" in {part.path for part in kept}
    assert dropped


async def test_the_fix_beside_debris_earns_one(local: LocalSandbox) -> None:
    debris = (
        "01 conftest makereport",
        "09b pyproject plugin",
        "16 edited test",
        "18 shadow pytest",
        "binary",
    )
    result = await grade(SPEC, "".join(DROPPED[name] for name in debris) + GOLD, local)
    assert result.reasons == ()
    assert result.reward == 1.0
    assert set(result.dropped_paths) == {
        "conftest.py", "pyproject.toml", "tests/test_area.py", "pytest.py", "shapes/core.so",
    }  # fmt: skip


@pytest.mark.parametrize("name", RUN)
async def test_attack_in_product_code(name: str, local: LocalSandbox) -> None:
    result = await grade(SPEC, RUN[name], local)
    assert (result.reward, result.resolved) == (0.0, False)
    assert result.reasons


@pytest.mark.parametrize("name", sorted(set(RUN) - SEMANTIC - THROUGH_THE_HEAP))
async def test_attack_in_product_code_without_the_lint(name: str, local: LocalSandbox) -> None:
    result = await grade(SPEC, RUN[name], local, policy=WITHOUT_LINT)
    assert (result.reward, result.resolved) == (0.0, False)
    assert result.reasons
