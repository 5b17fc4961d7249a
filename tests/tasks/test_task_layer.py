"""A task's layer over what a build left: the agent sees the right files, and git sees them clean."""

from pathlib import Path

import pytest

from recipes.swe.build_env import BuiltEnv
from recipes.swe.build_plugins import plugins_of
from recipes.swe.build_task import task_layer
from recipes.swe.build_types import BuildError
from recipes.swe.build_venv import products
from recipes.swe.tasks_patch import file_patch, make_patch
from sandbox.cache import open_record
from sandbox.cache_publish import publish_layer
from sandbox.mini import MiniBackend
from sandbox.types import Limits

FILES = {
    "module.py": "x = 1\n",
    "gone-in-build.txt": "old\n",
    "gone-in-task.txt": "old\n",
    "sub/only.txt": "old\n",
    "setup.cfg": "[x]\n",
    "run.sh": "#!/bin/sh\n",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture
def built(tmp_path: Path) -> BuiltEnv:
    """A repository, and a build that added, changed and removed files in it."""
    with publish_layer(tmp_path, "repo-1", {}) as content:
        assert content is not None
        write(content / "testbed", FILES)
        (content / "testbed" / "run.sh").chmod(0o755)
    with publish_layer(tmp_path, "venv-1", {}) as content:
        assert content is not None
        changed = {name: text for name, text in FILES.items() if name != "gone-in-build.txt"}
        made = {"demo.egg-info/entry_points.txt": "[pytest11]\nDemo = demo.plugin\n", "sub/made.so": "binary"}
        write(content / "testbed", {**changed, **made, "setup.cfg": "[y]\n"})
        (content / "testbed" / "run.sh").chmod(0o755)
        (content / "testbed" / "link").symlink_to("module.py")
        (content / "opt" / "venv").mkdir(parents=True)
        products(content / "testbed", tmp_path / "layers" / "repo-1" / "root" / "testbed")
    with publish_layer(tmp_path, "python-1", {}) as content:
        assert content is not None
        (content / "opt" / "python").mkdir(parents=True)
    return BuiltEnv("python-1", "repo-1", "venv-1", "3.12.1")


async def shell(root: Path, built: BuiltEnv, task: str, command: str) -> str:
    env = open_record(root, "x", built.record(task))
    async with MiniBackend() as backend, await backend.open(env.spec(Limits())) as sandbox:
        done = await sandbox.exec(["bash", "-c", command], timeout_s=30)
    assert done.exit_status == 0, done.text
    return done.text


async def test_products_and_patch_lie_over_each_other(tmp_path: Path, built: BuiltEnv) -> None:
    left = tmp_path / "layers" / "venv-1" / "root" / "testbed"
    assert sorted(str(path.relative_to(left)) for path in left.rglob("*") if not path.is_dir()) == [
        "demo.egg-info/entry_points.txt", "gone-in-build.txt", "link", "setup.cfg", "sub/made.so",
    ]  # fmt: skip
    patch = make_patch("module.py", "x = 1\n", "x = 2\n") + file_patch("gone-in-task.txt", "old\n", None)
    patch += file_patch("new/file.txt", None, "new\n") + file_patch("sub/only.txt", "old\n", None)
    task = task_layer(tmp_path, built, patch, "demo")
    shown = await shell(
        tmp_path, built, task, "git status --porcelain; find . -name .git -prune -o -type f -print"
    )
    assert sorted(shown.split()) == [
        "./demo.egg-info/entry_points.txt", "./module.py", "./new/file.txt", "./run.sh", "./setup.cfg",
        "./sub/made.so",
    ]  # fmt: skip
    listed = await shell(tmp_path, built, task, "git ls-files; cat module.py setup.cfg; git log --format=%s")
    assert listed.split() == [
        "module.py", "new/file.txt", "run.sh", "setup.cfg", "x", "=", "2", "[y]",
        "demo:", "initial", "commit",
    ]  # fmt: skip
    objects = await shell(tmp_path, built, task, "git cat-file --batch-all-objects --batch --buffer")
    assert "x = 1" not in objects and "old" not in objects


def test_the_same_start_is_the_same_layer(tmp_path: Path, built: BuiltEnv) -> None:
    patch = make_patch("module.py", "x = 1\n", "x = 2\n")
    assert task_layer(tmp_path, built, patch, "demo") == task_layer(tmp_path, built, patch, "demo")
    assert task_layer(tmp_path, built, "", "demo") != task_layer(tmp_path, built, patch, "demo")


def test_a_start_that_does_not_fit_leaves_nothing(tmp_path: Path, built: BuiltEnv) -> None:
    before = sorted((tmp_path / "layers").iterdir())
    for patch, words in (
        (make_patch("module.py", "x = 5\n", "x = 2\n"), "does not apply"),
        (make_patch("../outside.py", "x = 5\n", "x = 2\n"), "start patch"),
        ("nonsense", "start patch"),
    ):
        with pytest.raises(BuildError, match=words):
            task_layer(tmp_path, built, patch, "demo")
    assert sorted((tmp_path / "layers").iterdir()) == before


def test_plugins_of_an_environment_are_named(tmp_path: Path, built: BuiltEnv) -> None:
    assert plugins_of(tmp_path, built) == ("Demo",)
