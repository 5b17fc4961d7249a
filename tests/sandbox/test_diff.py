"""Patches from the upper layer: git applies them, and they say exactly what changed."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sandbox.mini import MiniBackend
from sandbox.types import SandboxSpec

_T = 30.0


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path]:
    """Two layers: the upper one replaces one file of the lower."""
    task, repo = tmp_path / "task", tmp_path / "repo"
    for root in (task, repo):
        (root / "testbed" / "sub" / "deep").mkdir(parents=True)
        root.chmod(0o755)
    (repo / "testbed" / "a.py").write_text("clean\n")
    (task / "testbed" / "a.py").write_text("one\ntwo\nthree\n")
    (repo / "testbed" / "sub" / "b.py").write_text("b\n")
    (repo / "testbed" / "sub" / "deep" / "c").write_text("c\n")
    (repo / "testbed" / "binary").write_bytes(bytes(range(256)))
    (repo / "testbed" / "latin.txt").write_bytes(b"caf\xe9\n")
    (repo / "testbed" / 'we ird"é\t*[x]').write_bytes(b"w\xff\n")
    (repo / "testbed" / "file").write_text("z\n")
    (repo / "testbed" / "run").write_text("x")
    (repo / "testbed" / "huge").write_text("x\n")
    return task, repo


def _merged(layers: tuple[Path, ...], target: Path) -> Path:
    for layer in reversed(layers):
        shutil.copytree(layer / "testbed", target, symlinks=True, dirs_exist_ok=True)
    return target


def _tree(root: Path) -> dict[str, tuple[int, bytes]]:
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(root))] = (0, os.fsencode(path.readlink()))
        elif path.is_file():
            found[str(path.relative_to(root))] = (path.stat().st_mode & 0o100, path.read_bytes())
    return found


async def test_every_kind_of_change(backend: MiniBackend, layers: tuple[Path, Path], tmp_path: Path) -> None:
    script = r"""
        set -e
        sed -i s/two/TWO/ a.py; rm -r sub; mkdir sub; echo n > sub/new; chmod +x run; echo 1 >> binary
        printf 'caf\xea\n' > latin.txt; echo q >> we*; rm file; mkdir file; echo in > file/x
        ln -s /etc/passwd link; mkdir -p new/empty; : > empty; printf 'no newline' > end
        printf 'a\r\nb\r\n' > crlf
        mkfifo fifo; mkdir .git __pycache__ .pytest_cache
        for d in .git __pycache__ .pytest_cache; do echo 1 > $d/x; done
        echo x > junk.pyc; echo '* -text binary filter=evil diff=evil' > .gitattributes; ln -sf b sub/dangling
    """
    async with await backend.open(SandboxSpec(layers=layers, workdir="/testbed")) as sandbox:
        result = await sandbox.exec(["bash", "-c", script], timeout_s=_T)
        assert result.exit_status == 0, result.text
        patch = await sandbox.diff("/testbed")
        assert await sandbox.diff("/testbed/file") != ""
        assert await sandbox.diff("/testbed/nowhere") == ""
    for left_out in (".git/x", "__pycache__", ".pytest_cache", "junk.pyc", "fifo"):
        assert left_out not in patch
    target = _merged(layers, tmp_path / "applied")
    expected = _tree(target)
    for name in ("sub/b.py", "sub/deep/c", "file"):
        del expected[name]
    expected |= {
        "a.py": (0, b"one\nTWO\nthree\n"), "sub/new": (0, b"n\n"), "run": (0o100, b"x"),
        "end": (0, b"no newline"),
        "binary": (0, bytes(range(256)) + b"1\n"), "latin.txt": (0, b"caf\xea\n"), "empty": (0, b""),
        'we ird"é\t*[x]': (0, b"w\xff\nq\n"), "file/x": (0, b"in\n"), "link": (0, b"/etc/passwd"),
        "crlf": (0, b"a\r\nb\r\n"), "sub/dangling": (0, b"b"),
        ".gitattributes": (0, b"* -text binary filter=evil diff=evil\n"),
    }  # fmt: skip
    await asyncio.to_thread(
        subprocess.run, ["git", "apply", "-"], input=patch.encode(), cwd=target, check=True
    )
    assert _tree(target) == expected


async def test_undone_changes_leave_no_patch(backend: MiniBackend, layers: tuple[Path, Path]) -> None:
    script = "touch a.py; chmod +x run; chmod -x run; cp -a sub /tmp/s; rm -r sub; cp -a /tmp/s sub"
    async with await backend.open(SandboxSpec(layers=layers, workdir="/testbed")) as sandbox:
        assert (await sandbox.exec(["bash", "-c", script], timeout_s=_T)).exit_status == 0
        assert await sandbox.diff("/testbed") == ""


async def test_host_files_never_enter_a_patch(
    backend: MiniBackend, layers: tuple[Path, Path], tmp_path: Path
) -> None:
    secret = tmp_path / "secret-directory"
    secret.mkdir(mode=0o755)
    (secret / "f").write_text("host secret")
    script = f"rm -r sub; ln -s {secret} sub; ln -s {secret}/f l; ln -s / root"
    async with await backend.open(SandboxSpec(layers=layers, workdir="/testbed")) as sandbox:
        await sandbox.exec(["bash", "-c", script], timeout_s=_T)
        assert "host secret" not in await sandbox.diff("/testbed")
        assert await sandbox.diff("/testbed/sub") == ""


async def test_size_limits(backend: MiniBackend, layers: tuple[Path, Path]) -> None:
    async with await backend.open(SandboxSpec(layers=layers, workdir="/testbed")) as sandbox:
        await sandbox.exec(["bash", "-c", "head -c 20000000 /dev/zero > huge; echo x > n"], timeout_s=_T)
        patch = await sandbox.diff("/testbed")
        assert "huge" not in patch
        assert "+++ b/n" in patch
        many = "for i in $(seq 12); do head -c 8000000 /dev/zero > f$i; done"
        await sandbox.exec(["bash", "-c", many], timeout_s=_T)
        found = await sandbox.changes("/testbed")
        assert "+++ b/n" in found.patch
        reasons = dict(found.left_out)
        assert "larger than" in reasons["huge"]
        assert sum("the largest of changes" in reason for reason in reasons.values()) == 4
