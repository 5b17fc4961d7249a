"""Patches as text: git agrees with them, and replacements do what they say."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.swe.tasks_patch import apply_patch, changed_paths, make_patch, replacements, reverse_patch

LINES = st.lists(
    st.sampled_from(["a\n", "b\n", "    a\n", "\n", "c\x0c\n", "-d\n", "+++ b/x\n", "é\u2028\n"]), max_size=12
)
TEXT = st.tuples(LINES, st.sampled_from(["", "end", "a"])).map(lambda parts: "".join(parts[0]) + parts[1])


@settings(max_examples=150)
@given(old=TEXT, new=TEXT)
def test_patch_applies_and_its_reverse_undoes_it(old: str, new: str) -> None:
    patch = make_patch("a/b.py", old, new)
    if old == new:
        assert patch == ""
        return
    assert apply_patch(patch, "a/b.py", old) == new
    assert apply_patch(reverse_patch(patch), "a/b.py", new) == old
    assert changed_paths(patch)[0] == "a/b.py"


@settings(max_examples=150)
@given(old=TEXT.filter(bool), new=TEXT)
def test_replacements_are_unique_and_lead_to_the_new_text(old: str, new: str) -> None:
    text = old
    for before, after in replacements(old, new):
        assert text.count(before) == 1
        text = text.replace(before, after)
    assert text == new


def test_anchor_is_the_shortest_neighbour() -> None:
    bugged = "def f(a, b, c, d, e):\n    return a\n"
    assert replacements(bugged, bugged.replace("    return", "    a = 1\n    return")) == [
        ("    return a", "    a = 1\n    return a")
    ]


@pytest.mark.parametrize("end", ["", "\n"])
def test_git_applies_both_ways(tmp_path: Path, end: str) -> None:
    old = "\n".join(f"line {number}" for number in range(30)) + end
    new = (
        old.replace("line 3\n", "line three\nand more\n").replace("line 20\n", "").replace("line 29", "last")
    )
    patch = make_patch("sub/file.txt", old, new)
    file = tmp_path / "sub" / "file.txt"
    file.parent.mkdir()
    for text, before, after in ((patch, old, new), (reverse_patch(patch), new, old)):
        file.write_text(before)
        subprocess.run(["git", "apply", "-"], input=text.encode(), cwd=tmp_path, check=True)
        assert file.read_text() == after


def test_files_made_deleted_renamed_and_made_executable_are_turned_round(tmp_path: Path) -> None:
    def git(*arguments: str, text: str = "") -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(
            command, input=text, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    body = "".join(f"line {number}\n" for number in range(20))
    (tmp_path / "gone.py").write_text("--- a/x\n+++ b/x\nold mode 1\n")
    (tmp_path / "moved.py").write_text(body)
    (tmp_path / "é.py").write_text("a\n")
    (tmp_path / "tool.sh").write_text("echo\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "before")
    before = git("rev-parse", "HEAD^{tree}")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "moved.py").rename(tmp_path / "sub.py")
    (tmp_path / "sub.py").write_text(body.replace("line 3\n", "line three\n"))
    (tmp_path / "é.py").write_text("b")
    (tmp_path / "tool.sh").chmod(0o755)
    (tmp_path / "new.py").write_text("-- a\n++ b\n")
    git("add", "-A")
    patch = git("diff", "--cached", "-M", "HEAD")
    assert "rename from moved.py" in patch and "new mode 100755" in patch
    git("apply", "--index", "-", text=reverse_patch(patch))
    assert git("write-tree") == before
    git("apply", "--index", "-", text=reverse_patch(reverse_patch(patch)))
    assert git("diff", "--cached", "-M", "HEAD") == patch
