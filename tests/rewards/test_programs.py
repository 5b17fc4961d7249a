"""tox, nox and pytest-xdist themselves, from PyPI, around the tests of the small project."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rewards.errors import GraderError
from rewards.grade import grade
from rewards.runner import run_spec
from rewards.types import RunnerName, TestSpec
from sandbox.mini import MiniBackend
from sandbox.types import SandboxSpec
from tests.rewards.mini import MINI_SPEC, PYTHON, make_layers
from tests.rewards.project import GOLD, PYPROJECT, LocalSandbox, edit

ADDOPTS = "-ra -n 2 --dist=loadscope --cov --cov-report term --maxfail=1"
TOX = f"""\
[testenv]
skip_install = true
allowlist_externals = *
commands = {PYTHON} -m pytest {{posargs}}
[testenv:installs]
deps = pytest
commands = python -m pytest {{posargs}}
"""
NOX = """\
import nox
@nox.session
def tests(session):
    session.run("python", "-m", "pytest", *session.posargs)
"""


async def test_options_of_xdist_and_cov_in_the_project_are_left_out(
    local: LocalSandbox, tmp_path: Path
) -> None:
    path = next(tmp_path.rglob("pyproject.toml"))
    path.write_text(PYPROJECT.replace('"-ra"', f'"{ADDOPTS}"'))
    run = await run_spec(replace(MINI_SPEC, command=("python", "-m", "pytest")), local)
    assert run.problems == ()
    assert {"passed", "failed"} <= set(run.statuses.values())


@pytest.fixture(scope="module")
def equipped(tmp_path_factory: pytest.TempPathFactory) -> SandboxSpec:
    """The small project with these programs in its environment and the options in its configuration."""
    root = tmp_path_factory.mktemp("programs")
    layers = make_layers(root)
    packages = root / "programs" / next((root / "venv").glob("**/site-packages")).relative_to(root / "venv")
    words = ["install", "-q", "--target", str(packages), "tox", "nox", "pytest-xdist", "pytest-cov"]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    shutil.rmtree(packages / "bin")
    project = root / "project/testbed"
    (project / "tox.ini").write_text(TOX)
    (project / "noxfile.py").write_text(NOX)
    (project / "pyproject.toml").write_text(PYPROJECT.replace('"-ra"', f'"{ADDOPTS}"'))
    return replace(layers, layers=(root / "project", root / "programs", root / "venv"))


def spec(runner: RunnerName, *command: str) -> TestSpec:
    return replace(MINI_SPEC, command=(PYTHON, "-m", *command), runner=runner, timeout_s=60)


PROGRAMS = {
    "tox": spec("wrapped", "tox", "-e", "py", "--"),
    "nox": spec("wrapped", "nox", "--no-venv", "-s", "tests", "--"),
    "xdist": spec("pytest", "pytest", "-p", "xdist", "-n", "2"),
    "xdist by its module": spec("pytest", "pytest", "-p", "xdist.plugin", "-n2"),
    "xdist in a wrapped command": spec("wrapped", "pytest", "-p", "xdist", "-n", "auto"),
    "cov": spec("pytest", "pytest", "-p", "pytest_cov", "--cov=shapes"),
}


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", PROGRAMS)
async def test_the_fix_earns_one_and_the_bug_a_zero(
    name: str, backend: MiniBackend, equipped: SandboxSpec
) -> None:
    async with await backend.open(equipped) as sandbox:
        result = await grade(PROGRAMS[name], GOLD, sandbox)
    assert (result.reward, result.reasons) == (1.0, ())
    harmless = edit("shapes/core.py", "# nothing\n" + (await bug(backend, equipped)))
    async with await backend.open(equipped) as sandbox:
        result = await grade(PROGRAMS[name], harmless, sandbox)
    assert result.reward == 0.0


async def bug(backend: MiniBackend, equipped: SandboxSpec) -> str:
    async with await backend.open(equipped) as sandbox:
        return (await sandbox.read_file("/testbed/shapes/core.py")).decode()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_tox_that_has_to_install_something_is_no_verdict(
    backend: MiniBackend, equipped: SandboxSpec
) -> None:
    async with await backend.open(equipped) as sandbox:
        with pytest.raises(GraderError, match="no pytest reported from inside the test command"):
            await grade(spec("wrapped", "tox", "-e", "installs", "--"), GOLD, sandbox)
