"""mini-swe-agent's own agent, with its scripted model, fixes a bug of a small repository in a MiniSandbox."""

import asyncio
import gc
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.environments.extra import swerex_docker
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from sandbox.mini_swe_agent import MiniSandboxEnvironment
from sandbox.rex import MiniSandboxDeployment

BUGGY = "def middle(values):\n    ordered = sorted(values)\n    return ordered[len(ordered) // 2 - 1]\n"
TESTS = """\
import unittest
from stats import middle

class Middle(unittest.TestCase):
    def test_odd(self):
        self.assertEqual(middle([3, 1, 2]), 2)

unittest.main()
"""
STEPS = [
    "ls && git log --oneline && cat stats.py",
    "python3 test_stats.py",
    "sed -i 's|// 2 - 1|// 2|' stats.py",
    "python3 test_stats.py",
    "git add -A && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff --cached",
]
FIX = "-    return ordered[len(ordered) // 2 - 1]\n+    return ordered[len(ordered) // 2]\n"


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer whose /testbed is a git repository of one commit."""
    root = tmp_path_factory.mktemp("layer")
    root.chmod(0o755)
    repo = root / "testbed"
    repo.mkdir()
    (repo / "stats.py").write_text(BUGGY)
    (repo / "test_stats.py").write_text(TESTS)
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_CONFIG_GLOBAL": "/dev/null"}
    identity |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *command], cwd=repo, env={**os.environ, **identity}, check=True)
    return root


@pytest.fixture
def settings(usable: None, layer: Path, state_dir: Path) -> dict[str, Any]:
    return {
        "environment_class": "sandbox.mini_swe_agent.MiniSandboxEnvironment",
        "layers": [str(layer)],
        "cwd": "/testbed",
        "state_dir": str(state_dir),
        "env": {"PYTHONDONTWRITEBYTECODE": "1"},
    }


@pytest.fixture
def environment(settings: dict[str, Any]) -> Iterator[MiniSandboxEnvironment]:
    made = get_environment(settings)
    assert isinstance(made, MiniSandboxEnvironment)
    with made:
        yield made


def solve(environment: Any, trajectory: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the agent over STEPS; what it ends with, and what it saw."""
    model = DeterministicModel(outputs=[make_output(step, [{"command": step}], cost=0.1) for step in STEPS])
    agent = DefaultAgent(
        model,
        environment,
        system_template="You fix bugs.",
        instance_template="{{task}} in {{cwd}}",
        output_path=trajectory,
    )
    ended = agent.run("middle() is off by one")
    return ended, [str(message["content"]) for message in agent.messages if message["role"] == "user"]


def check(ended: dict[str, Any], seen: list[str], trajectory: Path) -> None:
    assert ended["exit_status"] == "Submitted"
    assert FIX in ended["submission"]
    assert seen[0] == "middle() is off by one in /testbed"
    assert "stats.py" in seen[1] and "start" in seen[1]
    assert "<returncode>1</returncode>" in seen[2] and "FAILED (failures=1)" in seen[2]
    assert "<returncode>0</returncode>" in seen[4] and "OK" in seen[4]
    assert json.loads(trajectory.read_text())["info"]["exit_status"] == "Submitted"


def test_agent_solves_a_task(environment: MiniSandboxEnvironment, layer: Path, tmp_path: Path):
    ended, seen = solve(environment, tmp_path / "trajectory.json")
    check(ended, seen, tmp_path / "trajectory.json")
    patch = environment.diff()
    assert FIX in patch
    assert patch.startswith("diff --git a/stats.py b/stats.py\n")
    # The layer is as it was, and the patch applies to it.
    assert (layer / "testbed" / "stats.py").read_text() == BUGGY
    subprocess.run(["git", "apply", "--check"], cwd=layer / "testbed", input=patch.encode(), check=True)


def test_its_own_swe_rex_environment_over_our_deployment(
    settings: dict[str, Any], layer: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def deployment(image: str, **_: object) -> MiniSandboxDeployment:
        return MiniSandboxDeployment(layers=[Path(image)], state_dir=state_dir)

    monkeypatch.setattr(swerex_docker, "DockerDeployment", deployment)
    environment = swerex_docker.SwerexDockerEnvironment(image=str(layer), cwd="/testbed")
    try:
        ended, seen = solve(environment, tmp_path / "trajectory.json")
        check(ended, seen, tmp_path / "trajectory.json")
        assert FIX in asyncio.run(environment.deployment.runtime.diff("/testbed"))
    finally:
        asyncio.run(environment.deployment.stop())


def test_results_have_the_shape_of_its_local_environment(environment: MiniSandboxEnvironment):
    local = LocalEnvironment(timeout=1)
    for command in ("echo out; echo err >&2", "exit 3", "printf '\\377'", "no_such_program_xyz 2> /dev/null"):
        action = {"command": command}
        assert environment.execute(action) == local.execute(action), command
    slow = {"command": "echo before; sleep 30"}
    ours, theirs = environment.execute(slow, timeout=1), local.execute(slow)
    assert ours.keys() == theirs.keys()
    assert (
        (ours["output"], ours["returncode"]) == (theirs["output"], theirs["returncode"]) == ("before\n", -1)
    )
    assert "did not end in 1 seconds" in ours["exception_info"]
    for command in ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo a; echo b",):
        with pytest.raises(Submitted) as ended:
            environment.execute({"command": command})
        with pytest.raises(Submitted) as expected:
            local.execute({"command": command})
        assert ended.value.messages == expected.value.messages
    refused = environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; exit 1"})
    assert refused["returncode"] == 1
    assert environment.serialize()["info"]["config"].keys() == local.serialize()["info"]["config"].keys()


def test_variables_and_directories(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HANDED_IN", "outer")
    monkeypatch.setenv("NOT_HANDED_IN", "secret")
    settings |= {"forward_env": ["HANDED_IN", "UNSET_NAME"], "env": {"OWN": "x"}}
    environment = get_environment(settings)
    assert isinstance(environment, MiniSandboxEnvironment)
    with environment:
        seen = environment.execute({"command": 'echo "$HANDED_IN $OWN [$NOT_HANDED_IN]"; pwd'}, cwd="/usr")
        assert seen["output"] == "outer x []\n/usr\n"
        environment.execute({"command": "cd /; X=1; touch kept"})
        assert (
            environment.execute({"command": "pwd; echo [$X]; ls /kept"})["output"] == "/testbed\n[]\n/kept\n"
        )
    with pytest.raises(RuntimeError, match="cleaned up"):
        _ = environment.sandbox
    assert environment.execute({"command": "true"})["returncode"] == -1


def test_a_forgotten_environment_is_closed(settings: dict[str, Any], state_dir: Path):
    environment = get_environment(settings)
    assert list(state_dir.iterdir())
    del environment
    gc.collect()
    deadline = time.monotonic() + 20
    while list(state_dir.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(state_dir.iterdir()) == []
