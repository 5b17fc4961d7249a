"""Python is found wherever it is, by running it, whatever broken shim stands before it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "find_python.sh"
TOOLS = ("bash", "ls", "sort", "awk", "env")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH holds a few tools and no Python."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    return {"PATH": str(tools), "HOME": str(tmp_path / "home")}


def find(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def base_python() -> str:
    return sys._base_executable  # type: ignore[attr-defined]


@pytest.mark.parametrize("root", ["pyenv", "home/.pyenv", "uv", "home/.local/share/uv/python"])
def test_a_broken_shim_does_not_stop_the_search(bare: dict[str, str], tmp_path: Path, root: str):
    program(tmp_path / "shims" / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    program(tmp_path / "shims" / "python3", "exit 1")
    versions = tmp_path / root / ("versions" if "pyenv" in root else "")
    program(versions / "cpython-3.12.9-linux" / "bin" / "python3.12", f'exec {base_python()} "$@"')
    bare["PATH"] = f"{tmp_path / 'shims'}:{bare['PATH']}"
    if root == "pyenv":
        bare["PYENV_ROOT"] = str(tmp_path / root)
    if root == "uv":
        bare["UV_PYTHON_INSTALL_DIR"] = str(tmp_path / root)
    done = find(bare)
    assert done.returncode == 0, done.stderr
    version = subprocess.run([done.stdout.strip(), "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith(("Python 3.12", "Python 3.13"))


def test_an_old_python_is_passed_over_and_none_is_told_with_exit_3(bare: dict[str, str], tmp_path: Path):
    if any(
        Path(folder, f"python3.{minor}").exists()
        for folder in ("/usr/bin", "/usr/local/bin")
        for minor in (12, 13)
    ):
        pytest.skip("this system has Python 3.12 or 3.13 of its own")
    program(tmp_path / "old" / "python3", "exit 1")
    bare["PATH"] = f"{tmp_path / 'old'}:{bare['PATH']}"
    done = find(bare)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "No usable Python" in done.stderr
    assert f"{tmp_path / 'old'}/python3" in done.stderr
    assert "uv python install 3.12" in done.stderr


def test_an_explicit_python_wins(bare: dict[str, str]):
    done = find({**bare, "PYTHON": base_python()})
    assert done.returncode == 0, done.stderr
    assert os.path.realpath(done.stdout.strip()) == os.path.realpath(base_python())
