"""Roots without an overlay: no write reaches the layers, the suite passes, the mode is chosen by trying."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import fallback
from sandbox.errors import SandboxStartError
from sandbox.mini import MiniBackend
from sandbox.overlay import Mode
from sandbox.types import MIB, BindMount, Limits, SandboxSpec
from tests.sandbox import modes_run, ordinary_user

_RUN = Path(modes_run.__file__)
_REPOSITORY = _RUN.parents[2]
_MODES: tuple[Mode, ...] = ("copies", "extract")
_T = 30.0

# The state directory, and so the skeleton of every root, on an overlay over an overlay: a third is refused.
_DEEP = """
import os, sys
sys.path.insert(0, sys.argv[1])
from sandbox import syscalls
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
top = sys.argv[2]
syscalls.mount("tmpfs", top, "tmpfs")
os.chdir(top)
for name in ("low", "u1", "w1", "one", "u2", "w2", "two"):
    os.mkdir(name)
syscalls.mount("overlay", "one", "overlay", 0, "lowerdir=low,upperdir=u1,workdir=w1")
syscalls.mount("overlay", "two", "overlay", 0, "lowerdir=one,upperdir=u2,workdir=w2")
os.mkdir("two/layer")
os.mkdir("two/layer/testbed")
with open("two/layer/testbed/a", "w") as file:
    file.write("one\\n")
import asyncio, json
from pathlib import Path
from sandbox import fallback
from sandbox.errors import SandboxError
from sandbox.mini import MiniBackend
from sandbox.types import SandboxSpec
async def main():
    spec = SandboxSpec(layers=(Path(top, "two/layer"),), workdir="/testbed")
    async with fallback.open_backend(state_dir=Path(top, "two/state")) as (backend, report):
        async with await backend.open(spec) as sandbox:
            result = await sandbox.exec(["sh", "-c", "echo two > a; cat a"], timeout_s=30)
            seen = [result.text, await sandbox.diff("/testbed")]
        print(json.dumps([report.files, list(report.losses), dict(backend.facts)["mode_reason"], seen]))
    try:
        async with MiniBackend(state_dir=Path(top, "two/state"), mode="overlay"):
            print("opened")
    except SandboxError as error:
        print(json.dumps(str(error)))
    async with MiniBackend(state_dir=Path(top, "state"), mode="overlay") as backend:
        try:
            await backend.open(spec)
            print("opened")
        except SandboxError as error:
            print(json.dumps(str(error)))
asyncio.run(main())
"""

# tmpfs before Linux 6.6 has no user attributes, as ramfs has none now.
_NO_MARKS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from sandbox import namespaces, overlay, syscalls
from sandbox.stage import Stage
state = sys.argv[2]
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
real = syscalls.mount
def mount(source, target, kind, flags=0, data=""):
    ram = kind == "tmpfs" and target == "upper"
    real(source, target, "ramfs" if ram else kind, flags, data)
syscalls.mount = mount
os.mkdir(state + "/stage")
userns = namespaces.idmap_userns()
stage = Stage(state + "/stage", skeletons=state + "/skeletons", idmap_userns=userns)
print(overlay.choose("best", stage, state, userns if stage.can_shift([], [state]) else -1))
print(sorted(os.listdir(state)))
"""


def _ordinary(*arguments: str) -> "subprocess.CompletedProcess[str]":
    with ordinary_user.home() as target:
        shutil.copy(_RUN, target / "run.py")
        done = ordinary_user.run(target, str(target / "run.py"), *arguments)
    assert done.returncode == 0, done.stderr
    return done


def _result(who: str, *arguments: str) -> dict[str, object]:
    if who == "user" and os.geteuid() == 0:
        report = json.loads(_ordinary(*arguments).stdout)
        assert report.get("unusable") or report["uid"] == ordinary_user.ORDINARY_ID
    else:
        command = [sys.executable, str(_RUN), *arguments]
        done = subprocess.run(
            command, cwd=_REPOSITORY, env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
            capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
    if report.get("unusable"):
        pytest.skip(f"the kernel forbids it: {report['unusable']}")
    return report


_WHO = ("root", "user") if os.geteuid() == 0 else ("user",)


@pytest.mark.parametrize("who", _WHO)
@pytest.mark.parametrize("mode", _MODES)
def test_no_write_reaches_the_layers(mode: str, who: str) -> None:
    report = _result(who, mode, "attack")
    assert "error" not in report, report
    assert report["mode"] == mode
    assert report["changed"] is False
    tried, done = report["tried"], report["done"]
    assert tried == 72 and isinstance(done, list)
    # What was copied can be written to, what is bound cannot.
    assert {
        f"{top} {what}" for top in ("/testbed", "/shared/dir") for what in ("write", "mmap", "chmod")
    } <= set(done)
    assert [each for each in done if each.startswith("/alone")] == [] or mode == "extract"


@pytest.mark.parametrize("who", _WHO)
@pytest.mark.parametrize("mode", _MODES)
def test_conformance_in_the_mode(mode: str, who: str) -> None:
    report = _result(who, mode, "conformance")
    results = report["results"]
    assert isinstance(results, dict) and len(results) > 6
    lacks = report["lacks"]
    assert isinstance(lacks, list)
    for name, (problem, lacking) in results.items():
        assert not problem, name
        assert set(lacking) <= set(lacks)
    if who == "root":
        assert "root" not in lacks


@pytest.mark.skipif(os.geteuid() != 0, reason="stacking overlays needs root")
def test_copies_are_chosen_where_overlays_are_stacked_too_deep(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DEEP, str(_REPOSITORY), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    chosen, forced, deep_layer = (json.loads(line) for line in done.stdout.splitlines())
    files, losses, reason, (text, patch) = chosen
    assert files == "copies" and "overlay" in reason
    assert any("copied for each sandbox" in loss for loss in losses)
    assert text == "two\n" and "-one\n+two\n" in patch
    assert forced.startswith("no overlay here:")
    assert "the mode `copies` does without" in deep_layer


@pytest.mark.skipif(os.geteuid() != 0, reason="builds a staging area as root does")
def test_disk_is_chosen_where_tmpfs_cannot_mark_removals(state_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NO_MARKS, str(_REPOSITORY), str(state_dir)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    way, left = done.stdout.splitlines()
    assert "mode='overlay', upper='disk'" in way and "removed directories cannot be marked" in way
    assert left == "['skeletons', 'stage']"


@pytest.mark.parametrize("mode", _MODES)
async def test_patch_fork_and_usage(mode: Mode, usable: None, state_dir: Path, tmp_path: Path) -> None:
    layers = modes_run.make_layers(tmp_path)
    for path in (tmp_path, *layers):
        path.chmod(0o755)
    (layers[0] / "work").symlink_to("testbed")
    bound = BindMount(layers[1], "/data/set")
    async with MiniBackend(state_dir=state_dir, mode=mode) as backend:
        spec = SandboxSpec(layers=layers, workdir="/work", binds=(bound,))
        async with await backend.open(spec) as sandbox:
            assert await sandbox.diff("/") == "" == await sandbox.diff("/alone")
            script = "echo x > file; rm other; echo n > new; echo t > /tmp/t; rm -r /shared/dir/sub"
            assert (await sandbox.exec(["sh", "-ec", script], timeout_s=_T)).exit_status == 0
            patch = await sandbox.diff("/testbed")
            assert [line for line in patch.splitlines() if line.startswith("diff")] == [
                "diff --git a/file b/file", "diff --git a/new b/new", "diff --git a/other b/other"
            ]  # fmt: skip
            everything = await sandbox.diff("/")
            assert everything.count("diff --git") == 4 and "deleted file" in everything
            async with await sandbox.fork() as fork:
                assert await fork.diff("/") == everything
                seen = await fork.exec(["sh", "-c", "cat new /tmp/t /data/set/below/tree/file"], timeout_s=_T)
                assert seen.text == "n\nt\nbelow/tree file of lower-layer\n"
                assert ((await fork.usage()).memory_peak_bytes or 1) > 0
                shown = await fork.exec(["cat", "/alone/tree/file"], timeout_s=_T)
                assert shown.text == "alone/tree file of upper-layer\n"


@pytest.mark.parametrize("mode", _MODES)
async def test_layers_that_do_not_fit(mode: Mode, usable: None, state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed" / "big").write_bytes(b"x" * (8 * MIB))
    tmp_path.chmod(0o755)
    limits = Limits(disk_bytes=4 * MIB)
    async with MiniBackend(state_dir=state_dir, mode=mode) as backend:
        with pytest.raises(SandboxStartError, match="does not fit into disk_bytes"):
            await backend.open(SandboxSpec(layers=(tmp_path,), workdir="/testbed", limits=limits))
        report = fallback.report_of(backend)
        assert report.files == mode and any("read-only" in loss for loss in report.losses) == (
            mode == "copies"
        )
