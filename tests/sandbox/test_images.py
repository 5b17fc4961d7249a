"""Layers that are squashfs and erofs images: mounted once, shared, never left behind, refused clearly."""

import asyncio
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import fscontext, images, landlock, process
from sandbox.errors import SandboxStartError
from sandbox.images import ImageError
from sandbox.mini import MiniBackend
from sandbox.types import SandboxSpec
from sandbox.unpack import run_confined, unpack

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts images")


def _squashfs(tree: Path, image: Path) -> None:
    ids = ["-force-uid", "0", "-force-gid", "0"]
    subprocess.run(["mksquashfs", tree, image, "-quiet", "-no-progress", *ids], check=True)


def _erofs(tree: Path, image: Path) -> None:
    ids = ["--force-uid=0", "--force-gid=0"]
    subprocess.run(["mkfs.erofs", "-zlz4", *ids, image, tree], check=True, capture_output=True)


_MAKERS = {"squashfs": ("mksquashfs", _squashfs), "erofs": ("mkfs.erofs", _erofs)}


@pytest.fixture(params=sorted(_MAKERS))
def make(request: pytest.FixtureRequest) -> Callable[..., None]:
    program, maker = _MAKERS[request.param]
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    return maker


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "testbed" / "pkg").mkdir(parents=True)
    (root / "testbed" / "a.py").write_text("one\ntwo\n")
    (root / "testbed" / "pkg" / "big").write_bytes(os.urandom(300_000))
    (root / "testbed" / "link").symlink_to("a.py")
    (root / "testbed" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "testbed" / "run.sh").chmod(0o755)
    return root


def _loops(image: Path) -> list[str]:
    """Loop devices over a file, as the kernel tells."""
    found = Path("/sys/block").glob("loop*/loop/backing_file")
    return [str(path) for path in found if path.read_text().strip() == str(image)]


async def _gone(image: Path) -> bool:
    for _ in range(100):
        if not _loops(image):
            return True
        await asyncio.sleep(0.02)
    return False


@root_only
async def test_image_as_layer(
    make: Callable[..., None], tree: Path, tmp_path: Path, backend: MiniBackend
) -> None:
    image = tmp_path / "image"
    make(tree, image)
    before = image.read_bytes()
    over = tmp_path / "over"
    (over / "testbed").mkdir(parents=True)
    (over / "testbed" / "a.py").write_text("over\n")
    over.chmod(0o755)
    spec = SandboxSpec(layers=(over, image), workdir="/testbed")
    async with await backend.open(spec) as sandbox, await backend.open(spec) as other:
        script = "cat a.py; readlink link; ./run.sh; stat -c %u run.sh pkg; wc -c < pkg/big"
        result = await sandbox.exec(["sh", "-c", script], timeout_s=20)
        assert result.output == b"over\na.py\nran\n0\n0\n300000\n"
        change = "echo more >> run.sh && rm pkg/big && echo new > pkg/new && chmod 600 a.py && rm -r link"
        assert (await sandbox.exec(["sh", "-c", change], timeout_s=20)).exit_status == 0
        patch = await sandbox.diff("/testbed")
        assert "+more" in patch and "+new" in patch and "deleted file mode 120000" in patch
        assert await other.diff("/testbed") == ""
        assert (await other.exec(["tail", "-n1", "run.sh"], timeout_s=20)).output == b"echo ran\n"
        assert len(_loops(image)) <= 1  # none for erofs mounted from its file; never one per sandbox
    assert image.read_bytes() == before


@root_only
async def test_image_is_mounted_once(
    make: Callable[..., None], tree: Path, tmp_path: Path, backend: MiniBackend
) -> None:
    image = tmp_path / "image"
    make(tree, image)

    async def device() -> bytes:
        async with await backend.open(SandboxSpec(layers=(image,), workdir="/testbed")) as sandbox:
            # A file of a lower layer shows the device of an overlay; the mount id of the layer is not seen.
            result = await sandbox.exec(["cat", "a.py"], timeout_s=20)
            assert result.output == b"one\ntwo\n"
            return b"%d" % len(_loops(image))

    assert set(await asyncio.gather(*(device() for _ in range(12)))) <= {b"0", b"1"}


@root_only
async def test_nothing_is_left_after_kill(tree: Path, tmp_path: Path, usable: None, state_dir: Path) -> None:
    image = tmp_path / "image.squashfs"
    if not shutil.which("mksquashfs"):
        pytest.skip("mksquashfs is not installed")
    _squashfs(tree, image)
    async with MiniBackend(state_dir=state_dir) as backend:
        sandbox = await backend.open(SandboxSpec(layers=(image,), workdir="/testbed"))
        assert len(_loops(image)) == 1
        (record,) = state_dir.glob("*/owner.json")
        helper = process.pid_of(json.loads(record.read_text())["helper"])
        os.kill(helper, signal.SIGKILL)
        assert await _gone(image)
        await sandbox.close()


def _corrupt_superblock(data: bytes) -> bytes:
    # What both kernels read first after the magic: tables' places for squashfs, checksummed fields for erofs.
    return data[:4] + b"\xff" * 92 + data[96:1028] + b"\xff" * 60 + data[1088:]


@root_only
@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda data: data[: len(data) // 2], "truncated"),
        (lambda data: data[:100], "image"),
        (lambda data: b"", "neither"),
        (lambda data: b"not an image at all" * 1000, "neither"),
        (_corrupt_superblock, "image"),
    ],
    ids=["half", "header", "empty", "text", "superblock"],
)
async def test_damaged_image(
    make: Callable[..., None],
    damage: Callable[[bytes], bytes],
    word: str,
    tree: Path,
    tmp_path: Path,
    backend: MiniBackend,
) -> None:
    image = tmp_path / "image"
    make(tree, image)
    image.write_bytes(damage(image.read_bytes()))
    async with asyncio.timeout(20):
        with pytest.raises(SandboxStartError) as caught:
            await backend.open(SandboxSpec(layers=(image,)))
    assert str(image) in str(caught.value) and word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert await _gone(image)
    async with await backend.open(SandboxSpec()) as sandbox:  # and the next one opens
        assert (await sandbox.exec(["true"], timeout_s=20)).exit_status == 0


@root_only
async def test_fifo_and_missing_layer(tmp_path: Path, backend: MiniBackend) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "missing"):
        async with asyncio.timeout(20):
            with pytest.raises(SandboxStartError, match=str(path)):
                await backend.open(SandboxSpec(layers=(path,)))


@root_only
def test_loop_devices_taken_by_others_meanwhile(tree: Path, tmp_path: Path) -> None:
    """Many processes ask for a free device at once: each gets its own."""
    if not shutil.which("mksquashfs"):
        pytest.skip("mksquashfs is not installed")
    image = tmp_path / "image.squashfs"
    _squashfs(tree, image)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from sandbox import images; import os\n"
        "fds = [images.attach(sys.argv[2]) for _ in range(3)]\n"
        "assert all(os.listdir(os.open('.', 0, dir_fd=fd)) == ['testbed'] for fd in fds)"
    )
    repository = str(Path(images.__file__).resolve().parents[1])
    arguments = [sys.executable, "-c", script, repository, str(image)]
    running = [subprocess.Popen(arguments) for _ in range(6)]
    assert [each.wait(60) for each in running] == [0] * 6
    assert asyncio.run(_gone(image))


def test_unpack(make: Callable[..., None], tree: Path, tmp_path: Path) -> None:
    image, target = tmp_path / "image", tmp_path / "unpacked"
    make(tree, image)
    unpack(image, target)
    assert subprocess.run(["diff", "-r", "--no-dereference", tree, target]).returncode == 0
    assert os.access(target / "testbed" / "run.sh", os.X_OK)
    with pytest.raises(ImageError, match="exists already"):
        unpack(image, target)


def test_unpack_damaged(make: Callable[..., None], tree: Path, tmp_path: Path) -> None:
    image, target = tmp_path / "image", tmp_path / "unpacked"
    make(tree, image)
    image.write_bytes(_corrupt_superblock(image.read_bytes()))
    with pytest.raises(ImageError, match=str(image)):
        unpack(image, target)
    assert not target.exists() and not list(tmp_path.glob(".unpack-*"))


@root_only
def test_erofs_on_a_kernel_that_mounts_devices_only(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("mkfs.erofs"):
        pytest.skip("mkfs.erofs is not installed")
    image = tmp_path / "image.erofs"
    _erofs(tree, image)
    real = fscontext.mount_read_only

    def old_kernel(kind: str, source: str) -> int:
        if not stat.S_ISBLK(Path(source).stat().st_mode):
            raise OSError(errno.ENOTBLK, "Can't lookup blockdev")
        return real(kind, source)

    monkeypatch.setattr(fscontext, "mount_read_only", old_kernel)
    fd = images.open_layer(str(image))
    assert os.listdir(fd) == ["testbed"] and len(_loops(image)) == 1
    os.close(fd)
    assert asyncio.run(_gone(image))


@pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")
def test_the_unpacking_program_reaches_nothing_else(tmp_path: Path) -> None:
    for name in ("image", "secret"):
        (tmp_path / name).write_text(name)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    image, secret = str(tmp_path / "image"), str(tmp_path / "secret")
    run_confined(["/usr/bin/cp", image, str(scratch / "tree")], image, str(scratch))
    assert (scratch / "tree").read_text() == "image"
    for source, target in (
        (secret, scratch / "stolen"),
        (image, tmp_path / "outside"),
        (image, tmp_path / "secret"),
    ):
        with pytest.raises(ImageError, match="denied"):
            run_confined(["/usr/bin/cp", source, str(target)], image, str(scratch))
    assert not (scratch / "stolen").exists() and (tmp_path / "secret").read_text() == "secret"
