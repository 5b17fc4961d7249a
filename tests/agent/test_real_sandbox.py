"""The whole agent on real sandboxes: a toy repository, its bug, a scripted fix, a graded patch."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from recipes.swe.agent import run_agent
from recipes.swe.chat import ChatCodec
from recipes.swe.parsing import format_call
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.rollout import RolloutLimits, RolloutRunner
from recipes.swe.types import RolloutRequest
from rewards.cache import GradeCache
from rewards.grader import Case, Grader
from rewards.types import RewardResult
from sandbox.mini import MiniBackend
from sandbox.types import MIB, CachedEnv, EnvSpec, Limits, Sandbox
from tests.agent.fakes import task
from tests.agent.test_agent import DEMO, FIX, LS, SUBMIT
from tests.agent.test_rollout import Looping

CODE = b"def add(a, b):\n    return a - b\n"
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)


class ToyCache:
    """One environment: a directory as its only layer."""

    def __init__(self, layer: Path) -> None:
        self._layer = layer

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        return CachedEnv((self._layer,), (), ENV, "/testbed", "toy", hit=True)


@pytest.fixture
def cache(tmp_path: Path) -> ToyCache:
    root = tmp_path / "layer" / "testbed"
    root.mkdir(parents=True)
    (root / "a.py").write_bytes(CODE)
    (root / "run.sh").write_text("#!/bin/sh\necho old\n")
    (root / "run.sh").chmod(0o755)
    (root / "dos.txt").write_bytes(b"one\r\ntwo \xff\r\n")
    return ToyCache(tmp_path / "layer")


@pytest.fixture
async def backend() -> AsyncIterator[MiniBackend]:
    async with MiniBackend() as opened:
        yield opened


async def grade(case: Case, patch: str, sandbox: Sandbox) -> RewardResult:
    """Stands for rewards.grade, which needs an environment with pytest."""
    if patch:
        argv = ["git", "apply", "-"]
        applied = await sandbox.exec(argv, timeout_s=20, cwd="/testbed", stdin=patch.encode())
        assert applied.exit_status == 0, applied.text
    argv = ["python3", "-c", "import a; assert a.add(2, 3) == 5"]
    passed = (await sandbox.exec(argv, timeout_s=20, cwd="/testbed")).exit_status == 0
    return RewardResult(float(passed), passed, float(passed), 0)


def edit(path: str, old: str, new: str) -> str:
    arguments = {"command": "str_replace", "path": path, "old_str": old, "new_str": new}
    return format_call("str_replace_editor", arguments)


def bash(command: str) -> str:
    return format_call("bash", {"command": command})


async def test_rollouts_end_to_end(backend: MiniBackend, cache: ToyCache, codec: ChatCodec) -> None:
    texts = [LS, bash("cd / && python3 -c 'print(6 * 7)'"), bash("pwd"), FIX, SUBMIT]
    limits = RolloutLimits(sandbox=LIMITS, max_concurrent=4)
    policy = Looping(codec, texts)
    runner = RolloutRunner(
        backend, cache, policy, codec, DEMO, grader=Grader(once=grade, cache=GradeCache()), limits=limits
    )
    rollouts = await asyncio.gather(*(runner.run(RolloutRequest(str(i), task())) for i in range(6)))
    for rollout in rollouts:
        assert rollout.failure is None
        assert rollout.reward is not None
        assert rollout.reward.resolved
        assert rollout.trajectory is not None
        first, second, third, *_ = rollout.trajectory.turns
        assert first.observation.split() == ["a.py", "dos.txt", "run.sh"]
        assert second.observation == "42"
        assert third.observation == "/"
        assert "+    return a + b" in rollout.trajectory.patch
        assert all(seconds > 0 for seconds in rollout.stage_times_s.values())


async def test_without_a_fix_it_is_not_solved(
    backend: MiniBackend, cache: ToyCache, codec: ChatCodec
) -> None:
    policy = ScriptedPolicy(codec, [LS, SUBMIT])
    runner = RolloutRunner(
        backend, cache, policy, codec, DEMO, grader=Grader(once=grade), limits=RolloutLimits(sandbox=LIMITS)
    )
    rollout = await runner.run(RolloutRequest("t", task()))
    assert rollout.trajectory is not None
    assert rollout.trajectory.patch == ""
    assert rollout.reward is not None
    assert not rollout.reward.resolved


async def test_tools_in_a_real_sandbox(backend: MiniBackend, cache: ToyCache, codec: ChatCodec) -> None:
    new = {"command": "create", "path": "/testbed/new/b.py", "file_text": "x = 1\n\ny = 2\n"}
    texts = {
        "exit": bash("exit 3"),
        "still there": bash("echo alive"),
        "timeout": bash("echo before; sleep 60"),
        "after timeout": bash("echo again"),
        "flood": bash("yes | head -c 3000000"),
        "script": edit("/testbed/run.sh", "echo old", "echo new"),
        "mode": bash("/testbed/run.sh"),
        "dos": edit("/testbed/dos.txt", "one\ntwo", "1\n2"),
        "bytes": bash("od -An -c /testbed/dos.txt"),
        "create": format_call("str_replace_editor", new),
        "created": bash("wc -l < /testbed/new/b.py"),
        "list": format_call("str_replace_editor", {"command": "view", "path": "/testbed"}),
        "outside": format_call("str_replace_editor", {"command": "view", "path": "/etc/shadow"}),
        "readonly": edit("/usr/bin/git", "x", "y"),
        "submit": SUBMIT,
    }
    config = DEMO.from_mapping(
        {
            "name": "t",
            "system_template": "s",
            "instance_template": "i",
            "max_turns": 40,
            "max_context_tokens": 100_000,
            "command_timeout_s": 2,
            "observation_limit_chars": 1000,
            "shell_env": {"GREETING": "it's me"},
        }
    )
    spec = cache.ensure(EnvSpec("toy")).spec(LIMITS)
    async with await backend.open(spec) as sandbox:
        policy = ScriptedPolicy(codec, [bash('echo "$GREETING"'), *texts.values()])
        trajectory = await run_agent(sandbox, policy, codec, task(), config)
    greeting, *turns = trajectory.turns
    shown = dict(zip(texts, (turn.observation for turn in turns), strict=True))
    assert greeting.observation == "it's me"
    assert "[exit status 3]" in shown["exit"]
    assert shown["still there"] == "alive"
    assert shown["timeout"].startswith("before\n")
    assert shown["timeout"].endswith("\n[timed out after 2 s and was killed]")
    assert shown["after timeout"] == "again"
    assert len(shown["flood"]) <= 1000
    assert "left out" in shown["flood"]
    assert shown["mode"] == "new"
    assert shown["bytes"].split() == ["1", "\\r", "\\n", "2", "377", "\\r", "\\n"]
    assert shown["created"] == "3"
    assert "/testbed/new/b.py" in shown["list"]
    assert shown["outside"].startswith("Error: ")
    assert shown["readonly"].startswith("Error: ")
    assert trajectory.end == "submitted"
    for name in ("run.sh", "dos.txt", "new/b.py"):
        assert f"b/{name}" in trajectory.patch
