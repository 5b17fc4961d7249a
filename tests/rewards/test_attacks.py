"""Each attack earns 0, alone; a right fix earns 1 even when dropped debris lies beside it."""

import pytest

from rewards.errors import GraderError
from rewards.grade import apply_patch, grade, select
from rewards.lint import find_suspicions
from rewards.patches import parse_patch
from rewards.policy import PatchPolicy
from rewards.runner import files_of
from tests.rewards.attacks import DROPPED, RUN
from tests.rewards.project import GOLD, SPEC, LocalSandbox, diff

FILES = files_of(SPEC.fail_to_pass + SPEC.pass_to_pass)
NEEDS_LINT = {name for name in RUN if name.startswith(("13", "06g", "06h"))}
"""13: the product's own behaviour depends on the tests. 06g, 06h: in-process code that walks the heap."""


@pytest.mark.parametrize("name", DROPPED)
async def test_what_steers_the_judge_is_dropped(name: str, local: LocalSandbox) -> None:
    result = await grade(SPEC, DROPPED[name], local)
    assert result.reward == 0.0
    assert result.dropped_paths


@pytest.mark.parametrize("name", DROPPED)
async def test_all_dropped_files_together_with_the_fix_are_harmless(name: str) -> None:
    division = select(DROPPED[name] + GOLD, FILES, PatchPolicy())
    assert "shapes/core.py" in {part.path for part in division.kept}
    assert division.dropped


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
        "conftest.py", "pyproject.toml", "tests/test_area.py", "pytest.py", "shapes/core.so", "_plug.py",
    }  # fmt: skip


async def test_what_can_hide_a_module_or_knows_of_tests_is_dropped(local: LocalSandbox) -> None:
    """In folders at the top that are no package, since the project may have put these on the path."""
    new = ("python/pluggy.py", "python/json.py", "shapes/iniconfig/x.py", "tools/x.py", "shapes/types.py")
    patch = "".join(diff(path, None, "x = 1\n") for path in new)
    patch += diff("reproduce.py", None, "import pytest\npytest.main()\n")
    patch += diff("python/packaging/__init__.py", None, "") + diff("python/packaging/x.py", None, "x = 1\n")
    result = await grade(SPEC, patch + GOLD, local)
    assert (result.reward, result.reasons) == (1.0, ())
    assert set(result.dropped_paths) == {
        "python/pluggy.py", "python/json.py", "shapes/iniconfig/x.py", "reproduce.py",
        "python/packaging/__init__.py", "python/packaging/x.py",
    }  # fmt: skip


@pytest.mark.parametrize("name", RUN)
async def test_attack_in_product_code(name: str, local: LocalSandbox) -> None:
    policy = PatchPolicy(lint=name in NEEDS_LINT)
    try:
        result = await grade(SPEC, RUN[name], local, policy=policy)
    except GraderError as error:
        # Killed by SIGKILL: it counts as this 0 when a second grading ends like that.
        assert name == "14d killed" and error.repeated is not None
        result = error.repeated
    assert (result.reward, result.resolved) == (0.0, False)
    assert result.reasons


@pytest.mark.parametrize("name", [name for name in RUN if name.startswith(("04", "06", "13", "14"))])
async def test_lint_sees_the_attack_too(name: str, local: LocalSandbox) -> None:
    (part,) = parse_patch(RUN[name])
    await apply_patch((part,), local, "/testbed")
    source = await local.read_file(f"/testbed/{part.path}")
    found = find_suspicions(part.path, source, part.added_lines, {"test_area"})
    assert bool(found) == (name != "14c SystemExit at import")


@pytest.mark.parametrize(
    "name", [name for name in RUN if name.startswith(("06b", "06c", "06d", "06e", "06f"))]
)
async def test_runner_patched_while_conftest_is_loaded(name: str, local: LocalSandbox) -> None:
    conftest = await local.read_file("/testbed/tests/conftest.py")
    await local.write_file("/testbed/tests/conftest.py", b"import shapes\n" + conftest)
    result = await grade(SPEC, RUN[name], local, policy=PatchPolicy(lint=False))
    assert (result.reward, result.tests_passed) == (0.0, False)
    # A patch of one test only must not pass for the lack of a comparison.
    assert any("changed" in reason or "canary" in reason for reason in result.reasons)
