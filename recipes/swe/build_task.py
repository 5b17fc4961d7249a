"""The layer of one task: what its start patch changes, and a `.git` with one commit of the result.

The commit holds the repository as the agent finds it: no remote, no reflog, no other object, so that no
history tells the fix. What a build left in the repository is excluded from git's view (`.git/info/exclude`).
Plain data work: `git` runs without any configuration, hook or template.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recipes.swe.build_env import BuiltEnv
from recipes.swe.build_types import BUILD_VERSION, BuildError, facts_digest, layer_tree
from recipes.swe.build_venv import whiteout
from rewards.apply import read_patch
from rewards.errors import GraderError
from sandbox.cache_publish import FIXED_MTIME_S, has_layer, layer_name, publish_layer

GIT_TIMEOUT_S = 300.0
GIT_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = false
\tcheckStat = minimal
\ttrustctime = false
[gc]
\tauto = 0
[user]
\tname = swe
\temail = swe@localhost
"""
"""Of the task's repository. Inside, only size and time are as git saw them, so it compares no more."""


def task_layer(root: Path, built: BuiltEnv, patch: str, repo: str) -> str:
    """Name of the layer of a task that starts from the repository with `patch` applied; built when missing.

    Blocking. Tasks that start from the same state share it. Raises BuildError: the patch does not apply."""
    facts = {
        "kind": "task",
        "build": BUILD_VERSION,
        "repo": built.repo,
        "venv": built.venv if _left(root, built).is_dir() else "",
        "patch": hashlib.sha256(patch.encode()).hexdigest(),
        "title": repo,
    }
    name = layer_name("task", facts_digest(facts))
    if has_layer(root, name):
        return name
    with publish_layer(root, name, facts) as content:
        if content is not None:
            with tempfile.TemporaryDirectory(dir=content.parent) as folder:
                _write(root, built, patch, repo, content / "testbed", Path(folder))
    return name


def _left(root: Path, built: BuiltEnv) -> Path:
    """What the build changed in the repository."""
    return layer_tree(root, built.venv) / "testbed"


def _write(root: Path, built: BuiltEnv, patch: str, repo: str, target: Path, folder: Path) -> None:
    work = folder / "work"
    shutil.copytree(layer_tree(root, built.repo) / "testbed", work, symlinks=True)  # keeps times
    excluded = sorted(_apply_products(_left(root, built), work))
    git = _Git(work, folder)
    git.run("init", "-q", "--template=", "-b", "main")
    (work / ".git" / "config").write_text(GIT_CONFIG)
    if patch:
        (folder / "patch").write_bytes(patch.encode())
        git.run("apply", "--whitespace=nowarn", str(folder / "patch"))
    paths = _paths(patch)
    for path in paths:
        if os.path.lexists(work / path):
            os.utime(work / path, (FIXED_MTIME_S, FIXED_MTIME_S), follow_symlinks=False)
    git.run("add", "-A", "-f")
    git.run("commit", "-q", "--no-verify", "--allow-empty", "-m", f"{repo}: initial commit")
    git.run("-c", "pack.threads=1", "repack", "-adq")
    git.run("pack-refs", "--all")
    _strip(work / ".git")
    _forget_machine(work / ".git" / "index")
    if excluded:
        (work / ".git" / "info").mkdir(exist_ok=True)
        (work / ".git" / "info" / "exclude").write_text("".join(f"/{path}\n" for path in excluded))
    target.mkdir()
    for path in paths:
        _take(work / path, target / path)
    shutil.copytree(work / ".git", target / ".git", symlinks=True)


def _paths(patch: str) -> list[str]:
    try:
        return sorted({path for part in read_patch(patch) for path in part.paths}) if patch else []
    except GraderError as error:
        raise BuildError(f"the start patch cannot be read: {error}") from error


def _apply_products(left: Path, work: Path) -> Iterator[str]:
    """Puts what the build changed of the source into `work`; yields the top of what it added to it."""
    if not left.is_dir():
        return
    for place, folders, files in os.walk(left):
        relative = Path(place).relative_to(left)
        for name in sorted(files):
            source, path = Path(place) / name, work / relative / name
            if source.is_char_device():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            elif os.path.lexists(path):
                path.unlink()
                shutil.copy2(source, path, follow_symlinks=False)
            else:
                yield str(relative / name)
        for name in list(folders):
            if not (work / relative / name).is_dir():
                folders.remove(name)
                yield str(relative / name)


def _take(source: Path, target: Path) -> None:
    """Copies a file or link, or marks it as removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(source):
        shutil.copy2(source, target, follow_symlinks=False)
    else:
        whiteout(target)


def _strip(git: Path) -> None:
    for leftover in ("COMMIT_EDITMSG", "logs", "description", "hooks", "branches"):
        path = git / leftover
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _forget_machine(index: Path) -> None:
    """Zeroes what git noted of this machine's inodes (ctime, dev, ino, uid, gid), which it does not compare
    with `checkStat = minimal`; so the same task is the same bytes. gitformat-index(5), version 2."""
    data = bytearray(index.read_bytes()[:-20])
    if data[:8] != b"DIRC\0\0\0\2":
        return
    at = 12
    for _ in range(int.from_bytes(data[8:12], "big")):
        for first, last in ((0, 8), (16, 24), (28, 36)):
            data[at + first : at + last] = bytes(last - first)
        end = data.index(0, at + 62)
        at += (end - at + 8) // 8 * 8
    index.write_bytes(bytes(data) + hashlib.sha1(data, usedforsecurity=False).digest())


class _Git:
    """git in one work tree, knowing nothing of this machine's user."""

    def __init__(self, work: Path, home: Path) -> None:
        stamp = f"{FIXED_MTIME_S} +0000"
        self._work = work
        self._env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CEILING_DIRECTORIES": str(home),
            "GIT_AUTHOR_NAME": "swe",
            "GIT_AUTHOR_EMAIL": "swe@localhost",
            "GIT_COMMITTER_NAME": "swe",
            "GIT_COMMITTER_EMAIL": "swe@localhost",
            "GIT_AUTHOR_DATE": stamp,
            "GIT_COMMITTER_DATE": stamp,
        }

    def run(self, *arguments: str) -> None:
        """Raises BuildError unless it succeeds."""
        argv = ["git", "-C", str(self._work), *arguments]
        try:
            done = subprocess.run(
                argv, env=self._env, capture_output=True, check=False, timeout=GIT_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(
                f"git {arguments[0]}: not done after {GIT_TIMEOUT_S:.0f} s", timed_out=True
            ) from error
        if done.returncode != 0:
            message = done.stderr.decode("utf-8", "replace").strip()
            what = (
                "the start patch does not apply" if arguments[0] == "apply" else f"git {arguments[0]} failed"
            )
            raise BuildError(f"{what} (status {done.returncode}): {message[:600]}")
