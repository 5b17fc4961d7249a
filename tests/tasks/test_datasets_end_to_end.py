"""A row as SWE-bench Verified publishes them, over a project of the package index: prepared, graded, trained.

Flask is built from its sdist by the published specification (Python 3.11, pins, editable install), so this
needs a package index. The row's hidden test is applied by the grader only.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.swe.chat import ChatCodec
from recipes.swe.grading import open_grader
from recipes.swe.parsing import format_call
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.rollout import RolloutLimits, RolloutRunner
from recipes.swe.tasks import gold_patch, load_rows, load_tasks
from recipes.swe.types import RolloutRequest
from sandbox.cache import EnvCache
from sandbox.mini import MiniBackend
from sandbox.types import MIB, Limits
from tests.agent.conftest import make_tokenizer
from tests.agent.test_agent import DEMO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
HIDDEN = "test_a_name_is_wanted"
LIMITS = RolloutLimits(sandbox=Limits(memory_bytes=512 * MIB, disk_bytes=128 * MIB))
LOOK = f"git log --oneline | wc -l; grep -r {HIDDEN} /testbed /opt /tmp | wc -l; git status --short | wc -l"
OLD = '        if "." in name:\n'
FIX = f'        if not name:\n            raise ValueError("a blueprint\'s name may not be empty")\n\n{OLD}'


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The cache, and the exported file of tasks."""
    cache = tmp_path_factory.mktemp("cache")
    arguments = [
        "data=swe_gym",
        f"source.path={DATA / 'verified.jsonl'}",
        f"overrides=[{DATA / 'verified_overrides.yaml'}]",
        f"paths.cache_dir={cache}",
        f"tasks_file={cache}/tasks.jsonl",
        "min_tasks=1",
    ]
    command = [sys.executable, "launch/prepare.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return cache, cache / "tasks.jsonl"


def graded(cache: Path, tasks: Path, *patches: str) -> list[dict[str, object]]:
    lines = [json.dumps({"task": str(tasks), "patch": patch}) for patch in patches]
    (cache / "batch.jsonl").write_text("\n".join(lines))
    command = [sys.executable, "-m", "rewards", "grade", "--batch", str(cache / "batch.jsonl"), "--jobs", "1"]
    env = {"SWE_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_command_grades_it(prepared: tuple[Path, Path]) -> None:
    cache, tasks = prepared
    (row,) = load_rows(tasks)
    assert (row.patch, row.runner, row.env_digest != "") == ("", "pytest", True)
    weaker = row.test_patch.replace(f"+def {HIDDEN}(app):", f"+def {HIDDEN}(app, client):").replace(
        '+    with pytest.raises(ValueError, match="empty"):', "+    with contextlib.suppress(ValueError):"
    )
    assert weaker != row.test_patch
    gold, empty, cheat, both = graded(cache, tasks, gold_patch(row), "", weaker, gold_patch(row) + weaker)
    assert (gold["reward"], gold["resolved"], gold["channel"]) == (1.0, True, "signed")
    assert (empty["reward"], empty["resolved"]) == (0.0, False)
    assert (cheat["reward"], cheat["dropped_paths"]) == (0.0, ["tests/test_blueprints.py"])
    assert (both["reward"], both["dropped_paths"]) == (1.0, ["tests/test_blueprints.py"])


async def test_a_rollout_is_rewarded_for_it_and_never_sees_the_hidden_test(
    prepared: tuple[Path, Path],
) -> None:
    cache, tasks = prepared
    (task,) = load_tasks(tasks)
    codec = ChatCodec(make_tokenizer())
    path = "/testbed/src/flask/blueprints.py"
    edit = {"command": "str_replace", "path": path, "old_str": OLD, "new_str": FIX}
    texts = [
        format_call("bash", {"command": LOOK}),
        format_call("str_replace_editor", edit),
        format_call("submit", {}),
    ]
    async with MiniBackend() as backend:
        for turns, reward in ((texts, 1.0), ([texts[0], texts[2]], 0.0)):
            policy = ScriptedPolicy(codec, turns)
            runner = RolloutRunner(
                backend,
                EnvCache(cache),
                policy,
                codec,
                replace(DEMO, max_response_tokens=1024, max_context_tokens=16384),
                grader=open_grader(None, cached=False),
                limits=LIMITS,
            )
            rollout = await runner.run(RolloutRequest("one", task))
            assert rollout.failure is None and rollout.trajectory is not None and rollout.reward is not None
            assert rollout.trajectory.turns[0].observation.split() == ["1", "0", "0"]
            assert (rollout.reward.reward, rollout.reward.resolved) == (reward, reward == 1.0)
