"""The patch reader agrees with git on anything git writes, and refuses what it does not understand."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewards.patches import PatchError, parse_patch

LINES = st.sampled_from(
    ["x", "", " ", "+x", "-y", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "diff --git a/q b/q", "\\ No newline",
     "é", "\x0c", "a\rb", "end\r", "GIT binary patch", "rename from q"]
)  # fmt: skip
TEXTS = st.lists(LINES, max_size=8).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join(lines) + "\n"])
)
NAMES = st.sampled_from(
    ["a", "b c", "é", 'q"t', "back\\slash", "tab\tx", "new\nline", "a b/c d", " b/x", "-dash", "[x]*?",
     "x b/x b"]
)  # fmt: skip
TREES = st.dictionaries(NAMES, TEXTS, max_size=4)


def write_tree(root: Path, tree: dict[str, str]) -> None:
    for name, text in tree.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def git(cwd: Path, *words: str, data: bytes = b"") -> bytes:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ("git", *words), cwd=cwd, env=env, input=data, check=True, capture_output=True
    ).stdout


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=TREES, new=TREES, renames=st.booleans())
def test_reads_what_git_writes(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], new: dict[str, str], renames: bool
) -> None:
    root = tmp_path_factory.mktemp("git")
    for side, tree in (("old", old), ("new", new)):
        (root / side).mkdir()
        write_tree(root / side, tree)
    git(root, "init", "-q", "store")
    hashes: list[str] = []
    for side in ("old", "new"):
        git(root / "store", f"--work-tree={root / side}", "add", "-A")
        hashes.append(git(root / "store", "write-tree").decode().strip())
    kind = ("-M", "-C") if renames else ("--no-renames",)
    patch = git(root / "store", "diff-tree", "-r", "-p", *kind, *hashes).decode("utf-8", "surrogateescape")
    raw = git(root / "store", "diff-tree", "-r", "-z", "--name-only", "--no-renames", *hashes).decode()
    parsed = parse_patch(patch)
    assert "".join(part.text for part in parsed) == patch
    changed = {path for part in parsed for path in part.paths}
    assert set(raw.split("\0")) - {""} <= changed
    for part in parsed:
        if part.new_path is not None and not renames and part.added_lines:
            assert max(part.added_lines) <= new[part.new_path].count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        "hello\n",
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1 @@\n-a\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n?a\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n+smuggled\n",
        "diff --git a/x b/y\n",
        "diff --git a/x b/x\n--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n",
        'diff --git "a/\\777" "b/\\777"\nold mode 100644\nnew mode 100755\n',
        "diff --git a/x b/x\nsomething odd\n",
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(PatchError):
        parse_patch(text)
