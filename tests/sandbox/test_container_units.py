"""Parts of the container backends that need no engine."""

import asyncio
import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import uvloop

from sandbox.container import ContainerBackend
from sandbox.container_image import write_layer
from sandbox.container_root import OverlayRoot, parse_options
from sandbox.errors import SandboxError, SandboxStartError, SandboxUnavailableError
from sandbox.program import Finished, run_program
from sandbox.types import SandboxSpec


def tar_of(layer: Path) -> bytes:
    out = io.BytesIO()
    write_layer(out, layer)
    return out.getvalue()


def test_layers_become_the_same_tar_every_time_with_root_as_owner(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "d").mkdir(parents=True)
    (layer / "d/run").write_bytes(b"#!/bin/sh\n")
    (layer / "d/run").chmod(0o755)
    (layer / "d/twin").hardlink_to(layer / "d/run")
    (layer / "link").symlink_to("/etc/passwd")
    os.mkfifo(layer / "fifo")
    Path(os.fsdecode(os.fsencode(layer) + b"/\xff")).write_text("odd")
    assert tar_of(layer) == tar_of(layer)
    with tarfile.open(fileobj=io.BytesIO(tar_of(layer))) as tar:
        found = {entry.name: entry for entry in tar}
    assert set(found) == {"d", "d/run", "d/twin", "link", "\udcff"}
    assert (found["d/run"].mode, found["d/run"].uid, found["d/run"].gid) == (0o755, 0, 0)
    assert (found["d/twin"].type, found["d/twin"].linkname) == (tarfile.LNKTYPE, "d/run")
    assert found["link"].linkname == "/etc/passwd"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make overlay's marks")
def test_marks_of_overlay_become_those_of_the_archive(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mknod(tmp_path / "d/gone", 0o020000, 0)
    os.mknod(tmp_path / "top", 0o020000, 0)
    (tmp_path / "new").mkdir()
    os.setxattr(tmp_path / "new", "trusted.overlay.opaque", b"y")
    with tarfile.open(fileobj=io.BytesIO(tar_of(tmp_path))) as tar:
        assert tar.getnames() == ["d", "d/.wh.gone", "new", "new/.wh..wh..opq", ".wh.top"]


@pytest.mark.parametrize(
    ("options", "upper", "lower"),
    [
        ("rw,lowerdir=/a/l/X:/b,upperdir=/u/1/diff,workdir=/w", "/u/1/diff", ["/a/l/X", "/b"]),
        ("rw,lowerdir=l/X:l/Y,upperdir=/o/1/diff", "/o/1/diff", ["/o/l/X", "/o/l/Y"]),
        ("rw,lowerdir+=/a,lowerdir+=/b,upperdir=/u/1/diff", "/u/1/diff", ["/a", "/b"]),
        ("rw,lowerdir=/o/1/mapped/0/l/X,upperdir=/o/1/diff", "/o/1/diff", ["/o/l/X"]),
        (r"rw,lowerdir=/a\:b:/c\,d,upperdir=/u/1/diff", "/u/1/diff", ["/a:b", "/c,d"]),
    ],
)
def test_mount_options(options: str, upper: str, lower: list[str]) -> None:
    assert parse_options(options) == OverlayRoot(Path(upper), tuple(map(Path, lower)))


@pytest.mark.parametrize("options", ["rw", "lowerdir=/a,upperdir=/u/1/diff,metacopy=on", "redirect_dir=on"])
def test_mounts_that_would_hide_changes_are_refused(options: str) -> None:
    with pytest.raises(SandboxError):
        parse_options(options)


def fake(tmp_path: Path, script: str) -> tuple[str, ...]:
    path = tmp_path / "engine"
    path.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n{script}\n')
    path.chmod(0o755)
    return (str(path),)


async def test_an_engine_that_is_missing_or_silent_is_unavailable(tmp_path: Path) -> None:
    for program, words in (
        (("/nonexistent/podman",), "not installed"),
        (fake(tmp_path, "echo 'no daemon' >&2; exit 1"), "no daemon"),
    ):
        with pytest.raises(SandboxUnavailableError, match=words):
            async with ContainerBackend("docker", program=program, state_dir=tmp_path / "state"):
                pass


async def test_a_container_that_does_not_start_is_removed_and_told(tmp_path: Path) -> None:
    script = 'case "$1" in run) echo "cannot run" >&2; exit 125;; image) echo "[{}]";; info) echo "[]";; esac'
    async with ContainerBackend(
        "docker", program=fake(tmp_path, script), state_dir=tmp_path / "state"
    ) as backend:
        with pytest.raises(SandboxStartError, match="cannot run"):
            await backend.open(SandboxSpec())
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-1].startswith("rm --force minisandbox-")


async def test_containers_of_dead_owners_are_removed(tmp_path: Path) -> None:
    script = 'case "$1" in ps) echo minisandbox-999999999-1-1-x-1;; esac'
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    script = script.replace("-1-1-x", f"-1-{namespace}-x")
    async with ContainerBackend("docker", program=fake(tmp_path, script), state_dir=tmp_path / "state"):
        calls = (tmp_path / "calls").read_text()
    assert f"rm --force minisandbox-999999999-1-{namespace}-x-1\n" in calls


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_program_is_done_when_it_ends(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Also when it leaves one behind that holds its pipes and those of all its neighbours, as monitors of
    containers do. Ray's asynchronous actors run uvloop."""
    script = 'sleep 20 & read word; echo "$word"; echo problem >&2; exit 3'

    async def neighbours() -> list[Finished]:
        one = ("sh", "-c", script)
        return await asyncio.gather(*(run_program(one, feed=_say) for _ in range(8)))

    started = time.monotonic()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(neighbours()) == [Finished(3, b"word\n", b"problem\n")] * 8
    assert time.monotonic() - started < 15


def _say(file: BinaryIO) -> None:
    file.write(b"word\n")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_program_that_is_given_up_is_gone(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 60"
    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(TimeoutError):
        runner.run(run_program(("sh", "-c", script), timeout_s=1.0))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_program_that_does_not_read_is_no_error() -> None:
    done = await run_program(("true",), feed=lambda file: file.write(bytes(1 << 20)))
    assert done == Finished(0, b"", b"")
    with pytest.raises(FileNotFoundError):
        await run_program(("/nonexistent",), feed=lambda file: file.write(b"x"))
