"""Any edit of a tree becomes a patch that the grader's reader understands and git applies: the same tree."""

# ruff: noqa: PTH101, PTH103, PTH108, PTH112, PTH114, PTH115, PTH116, PTH118, PTH123, PTH211
# Names here are bytes that no text holds; pathlib has no such paths. No link points at itself: git apply
# cannot put a directory in the place of such a one.

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewards.patches import parse_patch
from sandbox import diff, diff_git
from sandbox.types import Changes

NAMES = (
    b"a.py", b"b", b"sp ace", b"tab\t", b'quo"te', b"back\\slash", b"new\nline", b"\xff\xfe", "é".encode(),
    b"!x", b"#y", b"[z]", b"st*r", b" lead", b"trail ", b"-dash", b"b b", b"a b",
)  # fmt: skip
CONTENTS = (
    b"", b"one\n", b"one\ntwo\nthree\n", b"no end", b"dos\r\nlines\r\n", b"mixed\r\nends\n", b"\0\1binary",
    b"caf\xe9\n", b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", b"\f\x0bform\n",
    b"cr\ronly",
    "naïve ☃\n".encode(), b"\n", b"-- \n+++ b/y\n", b"x" * 5000 + b"\n",
)  # fmt: skip
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
files = st.one_of(
    st.tuples(st.just("file"), st.sampled_from(CONTENTS), st.booleans()),
    st.tuples(
        st.just("link"),
        st.sampled_from((b"nowhere", b"../x y", "ö".encode(), b"/etc/passwd")),
        st.just(False),
    ),
)
trees = st.dictionaries(paths, files, max_size=6)
edits = st.dictionaries(paths, st.one_of(st.none(), files), max_size=6)


def write(root: bytes, tree: dict) -> None:
    for path, made in tree.items():
        target = os.path.join(root, path)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        elif os.path.lexists(target):
            os.unlink(target)
        if made is None:
            continue
        kind, data, executable = made
        parent = root
        for part in path.split(b"/")[:-1]:
            parent = os.path.join(parent, part)
            if os.path.lexists(parent) and (os.path.islink(parent) or not os.path.isdir(parent)):
                os.unlink(parent)
            os.makedirs(parent, exist_ok=True)
        if kind == "link":
            os.symlink(data, target)
        else:
            with open(target, "wb") as file:
                file.write(data)
            os.chmod(target, 0o755 if executable else 0o644)


def read(root: bytes) -> dict[bytes, tuple[str, bytes]]:
    found: dict[bytes, tuple[str, bytes]] = {}
    for folder, folders, names in os.walk(root):
        for name in [*names, *(one for one in folders if os.path.islink(os.path.join(folder, one)))]:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[os.path.relpath(path, root)] = ("link", os.readlink(path))
            else:
                with open(path, "rb") as file:
                    mode = "x" if os.stat(path).st_mode & 0o100 else "-"
                    found[os.path.relpath(path, root)] = (mode, file.read())
    return found


def changes_between(layer: Path, upper: Path) -> Changes:
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return diff.find_changes(fd, (layer,), "/testbed", complete=True)
    finally:
        os.close(fd)


def apply(patch: str, tree: Path) -> None:
    if patch:
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            input=patch.encode("utf-8", "surrogateescape"), cwd=tree, check=True,
            env={**os.environ, "GIT_DIR": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null"},
        )  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(before=trees, changed=edits, gone=st.sets(st.integers(0, 5)), moved=paths)
def test_any_edit_makes_the_round_trip(before, changed, gone, moved):
    with tempfile.TemporaryDirectory() as folder:
        layer, upper, fresh = (Path(folder) / name for name in ("layer", "upper", "fresh"))
        (layer / "testbed").mkdir(parents=True)
        write(os.fsencode(layer / "testbed"), before)
        shutil.copytree(layer, upper, symlinks=True)
        shutil.copytree(layer, fresh, symlinks=True)
        root = os.fsencode(upper / "testbed")
        there = sorted(read(root))
        write(root, {path: None for number, path in enumerate(there) if number in gone})
        left = sorted(path for path, (kind, _) in read(root).items() if kind != "link")
        if left and not moved.startswith(left[0] + b"/"):  # a rename, as an agent makes one
            kind, data = read(root)[left[0]]
            write(root, {left[0]: None, moved: ("file", data, kind == "x")})
        write(root, changed)
        found = changes_between(layer, upper)
        assert found.left_out == ()
        old, new = read(os.fsencode(layer / "testbed")), read(root)
        parts = parse_patch(found.patch)
        touched = {os.fsencode(path) for part in parts for path in part.paths}
        assert touched == {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        apply("".join(part.text for part in parts), fresh / "testbed")
        assert read(os.fsencode(fresh / "testbed")) == new


@pytest.fixture
def trees_of(tmp_path: Path) -> tuple[Path, Path, Path]:
    layer, upper, fresh = tmp_path / "layer", tmp_path / "upper", tmp_path / "fresh"
    (layer / "testbed").mkdir(parents=True)
    (layer / "testbed" / "z.py").write_text("bug\n")
    (layer / "testbed" / "big").write_bytes(b"x" * 3000)
    (layer / "testbed" / "d").mkdir()
    (layer / "testbed" / "d" / "big").write_bytes(b"y" * 3000)
    for copy in (upper, fresh):
        shutil.copytree(layer, copy)
    (upper / "testbed" / "z.py").write_text("fix\n")
    return layer, upper, fresh


def test_debris_over_the_limits_is_named_and_the_fix_stays(
    trees_of: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, upper, fresh = trees_of
    monkeypatch.setattr(diff, "_FILE_LIMIT_BYTES", 2000)
    monkeypatch.setattr(diff, "_TOTAL_LIMIT_BYTES", 4000)
    monkeypatch.setattr(diff, "_ENTRY_LIMIT", 40)
    monkeypatch.setattr(diff, "_REPORTED_LIMIT", 30)
    root = upper / "testbed"
    (root / "big").unlink()
    (root / "big").mkdir()
    (root / "big" / "new").write_text("x")
    shutil.rmtree(root / "d")
    (root / "d").write_text("a file where a directory was")
    (root / "huge").write_bytes(b"x" * 2001)
    for number in range(4):
        (root / f"large{number}").write_bytes(b"%d" % number * (1500 + number))
    os.mkfifo(root / "pipe")
    os.symlink(b"\xff", root / "link")
    (root / "aaa").mkdir()
    for number in range(100):
        (root / "aaa" / f"{number:03}").write_text("x")
    found = changes_between(layer, upper)
    reasons = dict(found.left_out)
    assert reasons["big"] == reasons["huge"] == "larger than 2000 bytes"
    assert "lies where" in reasons["d"]
    assert reasons["pipe"] == "neither a file nor a link"
    assert "UTF-8" in reasons["link"]
    assert "the largest" in reasons["large3"]
    assert found.left_out[-1][0] == "…"
    assert len(found.left_out) == 31
    assert "+fix" in found.patch
    assert len(found.patch) < 10_000
    apply(found.patch, fresh / "testbed")
    assert (fresh / "testbed" / "z.py").read_text() == "fix\n"


def test_nothing_changed_is_no_patch(trees_of: tuple[Path, Path, Path]) -> None:
    layer, _, fresh = trees_of
    assert changes_between(layer, fresh) == Changes("")
    assert diff_git.write_patch({}, {}) == ""
