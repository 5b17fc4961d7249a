"""Hidden tests come after the agent's patch, onto files and places that the agent cannot have taken."""

import dataclasses

import pytest

from rewards.errors import GraderError
from rewards.grade import grade, select, trusted_files
from rewards.policy import PatchPolicy
from rewards.types import RunnerName
from tests.rewards.project import CORE_FIXED, GOLD, SPEC, LocalSandbox, diff, edit

HIDDEN = "from shapes import area\n\n\ndef test_hidden():\n    assert area(3, 3) == 9\n"
PATH = "spec/deep/check_hidden.py"
TEST_PATCH = diff(PATH, None, HIDDEN)
TESTS = dataclasses.replace(
    SPEC, fail_to_pass=(f"{PATH}::test_hidden",), pass_to_pass=(), test_patch=TEST_PATCH
)


@pytest.mark.parametrize(
    "taken",
    [
        diff(PATH, None, "def test_hidden(): pass\n"),
        diff("spec", None, "x\n"),
        diff(f"{PATH}/x", None, "x\n"),
    ],
)
async def test_what_the_agent_put_there_does_not_matter(taken: str, local: LocalSandbox) -> None:
    result = await grade(TESTS, taken + GOLD, local)
    assert result.reasons == ()
    assert (result.reward, len(result.dropped_paths)) == (1.0, 1)
    assert sum(result.dropped_by_reason.values()) == 1


async def test_without_the_fix_hidden_tests_fail(local: LocalSandbox) -> None:
    result = await grade(TESTS, diff("notes.txt", None, "x\n"), local)
    assert (result.reward, result.f2p_fraction) == (0.0, 0.0)


async def test_test_patch_that_does_not_apply_is_our_fault(local: LocalSandbox) -> None:
    broken = dataclasses.replace(TESTS, test_patch=TEST_PATCH + diff("shapes/data.txt", "other\n", "x\n"))
    with pytest.raises(GraderError, match="test patch") as caught:
        await grade(broken, GOLD, local)
    assert (caught.value.kind, caught.value.repeated) == ("task", None)


AWARE = CORE_FIXED.replace(
    "import functools\n", "import functools\nimport sys\n\nIN = '_pytest' in sys.modules\n"
)


@pytest.mark.parametrize("lint", [True, False])
async def test_a_project_whose_business_tests_are_is_not_suspected(lint: bool, local: LocalSandbox) -> None:
    result = await grade(dataclasses.replace(TESTS, lint=lint), edit("shapes/core.py", AWARE), local)
    assert result.tests_passed
    assert (result.reward, bool(result.suspicions)) == ((0.0, True) if lint else (1.0, False))


@pytest.mark.parametrize(
    ("runner", "command"),
    [
        ("django", ("python", "./manage.py", "test")),
        ("wrapped", ("sh", "scripts/test.sh")),
        ("log", ("/testbed/check/all.py", "-v")),
    ],
)
def test_programs_that_the_command_runs_belong_to_the_judge(
    runner: RunnerName, command: tuple[str, ...]
) -> None:
    """Who may change `manage.py` may delete it, and a missing program is a fault of ours, not a 0."""
    spec = dataclasses.replace(SPEC, runner=runner, command=command, targets=("check.test_all",))
    (program,) = (word.removeprefix("./").removeprefix("/testbed/") for word in command if "." in word)
    patch = diff(program, "x\n", None) + GOLD
    division = select(patch, trusted_files(spec, {}), PatchPolicy())
    assert division.dropped == ((program, "a test file of the task"),)
    assert [part.path for part in division.kept] == ["shapes/core.py"]
