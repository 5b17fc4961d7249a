"""A layer as one file: the same bytes each time, the same tree back, nothing outside, damage noticed."""

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
import zstandard

from sandbox import unpack
from sandbox.cache_publish import normalise
from sandbox.errors import CacheError
from sandbox.store_pack import FORMS, PackedForm, pack, tree_facts, unpack_tar, write_tar

PROGRAMS = {"tar.zst": "true", "squashfs": "mksquashfs", "erofs": "mkfs.erofs"}


def tree(folder: Path, *, backwards: bool = False) -> Path:
    """Every sort of entry, made in one order or the other."""
    content = folder / "content"
    names = ["a/one", "a/two", "b/ünï cöde ", "b/" + "long" * 50, "empty", "z"]
    for name in reversed(names) if backwards else names:
        path = content / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000 if name != "empty" else b"")
    (content / "void" / "deeper").mkdir(parents=True)
    (content / "a" / "link").symlink_to("../z")
    (content / "dirlink").symlink_to("a")
    (content / "dangling").symlink_to("/nowhere/at/all")
    (content / "a" / "two").chmod(0o755)
    normalise(content)
    return content


@pytest.mark.parametrize("form", FORMS)
def test_same_tree_same_bytes_whenever_and_wherever_it_was_made(tmp_path: Path, form: PackedForm) -> None:
    assert shutil.which(PROGRAMS[form]), "apt install squashfs-tools erofs-utils"
    first, second = tree(tmp_path / "x"), tree(tmp_path / "elsewhere" / "y", backwards=True)
    pack(first, form, tmp_path / "1")
    pack(second, form, tmp_path / "2")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert tree_facts(first) == tree_facts(second)


def test_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    content = tree(tmp_path)
    write_tar(content, tmp_path / "packed")
    target = tmp_path / "target"
    target.mkdir()
    umask = os.umask(0o077)
    try:
        with (tmp_path / "packed").open("rb") as file:
            size = unpack_tar(file, target)
    finally:
        os.umask(umask)
    facts = tree_facts(content)
    assert size == facts.bytes
    assert tree_facts(target) == facts
    for path in content.rglob("*"):
        there, here = (target / path.relative_to(content)).lstat(), path.lstat()
        assert (there.st_mode, there.st_mtime) == (here.st_mode, here.st_mtime), path


@pytest.mark.parametrize("form", ["squashfs", "erofs"])
def test_images_hold_the_same_tree(tmp_path: Path, form: PackedForm) -> None:
    content = tree(tmp_path)
    pack(content, form, tmp_path / "image")
    unpack.unpack(tmp_path / "image", tmp_path / "target")
    assert tree_facts(tmp_path / "target").sha256 == tree_facts(content).sha256


@pytest.mark.parametrize("change", ["content", "mode", "name", "link", "gone", "more", "moved bytes"])
def test_digest_of_a_tree_changes_with_anything_in_it(tmp_path: Path, change: str) -> None:
    content = tree(tmp_path)
    before = tree_facts(content).sha256
    if change == "content":
        data = bytearray((content / "z").read_bytes())
        data[500] ^= 1
        (content / "z").write_bytes(data)
    elif change == "mode":
        (content / "z").chmod(0o755)
    elif change == "name":
        (content / "z").rename(content / "y")
    elif change == "link":
        (content / "dangling").unlink()
        (content / "dangling").symlink_to("/nowhere/at/last")
    elif change == "gone":
        (content / "void" / "deeper").rmdir()
    elif change == "more":
        (content / "void" / "new").touch()
    else:  # the same bytes in all, but divided otherwise
        (content / "a" / "one").write_bytes(b"a/one" * 999)
        (content / "a" / "two").write_bytes(b"a/one" + b"a/two" * 1000)
    assert tree_facts(content).sha256 != before


def test_whiteouts_are_kept(tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.mkdir()
    os.mknod(content / "removed", 0o020000)
    write_tar(content, tmp_path / "packed")
    (tmp_path / "target").mkdir()
    with (tmp_path / "packed").open("rb") as file:
        unpack_tar(file, tmp_path / "target")
    info = (tmp_path / "target" / "removed").lstat()
    assert info.st_rdev == 0
    assert tree_facts(tmp_path / "target") == tree_facts(content)


@pytest.mark.parametrize("form", FORMS)
def test_pipes_and_devices_are_refused(tmp_path: Path, form: PackedForm) -> None:
    content = tmp_path / "content"
    content.mkdir()
    os.mkfifo(content / "pipe")
    with pytest.raises(CacheError, match="pipe: a layer holds"):
        pack(content, form, tmp_path / "packed")


def archive(*members: tarfile.TarInfo, data: bytes = b"x") -> io.BytesIO:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return io.BytesIO(zstandard.compress(plain.getvalue()))


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", device: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.devmajor, info.mode = kind, target, device, 0o6777
    return info


DIR = tarfile.DIRTYPE
HOSTILE = {
    "above": [member("../evil")],
    "absolute": [member("/tmp/evil-h5")],
    "dots inside": [member("a", tarfile.DIRTYPE), member("a/../../evil")],
    "through a link": [member("a", tarfile.SYMTYPE, ".."), member("a/evil")],
    "through a link below": [member("d", DIR), member("l", tarfile.SYMTYPE, "d"), member("l/evil")],
    "hard link outside": [member("evil", tarfile.LNKTYPE, "../secret")],
    "device": [member("evil", tarfile.CHRTYPE, device=1)],
    "block device": [member("evil", tarfile.BLKTYPE)],
    "pipe": [member("evil", tarfile.FIFOTYPE)],
    "twice": [member("evil"), member("evil")],
    "directory twice": [member("a", tarfile.DIRTYPE), member("a", tarfile.DIRTYPE)],
    "no name": [member(".", tarfile.DIRTYPE)],
    "no parent": [member("missing/evil")],
}  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_archives_write_nothing_outside(tmp_path: Path, attack: str) -> None:
    target = tmp_path / "inner" / "target"
    target.mkdir(parents=True)
    (tmp_path / "inner" / "secret").write_text("secret")
    with pytest.raises((CacheError, FileExistsError)):
        unpack_tar(archive(*HOSTILE[attack]), target)
    outside = [path.name for path in tmp_path.rglob("*") if not path.is_relative_to(target)]
    assert sorted(outside) == ["inner", "secret"]
    assert not Path("/tmp/evil-h5").exists()


def test_no_special_bits_are_unpacked(tmp_path: Path) -> None:
    unpack_tar(archive(member("d", tarfile.DIRTYPE), member("d/file")), tmp_path)
    assert (tmp_path / "d").stat().st_mode & 0o7000 == 0
    assert (tmp_path / "d" / "file").stat().st_mode & 0o7777 == 0o777


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    """By zstd's checksum alone, before any digest is looked at."""
    content = tree(tmp_path)
    write_tar(content, tmp_path / "packed")
    data = (tmp_path / "packed").read_bytes()
    right = tree_facts(content)
    for position in range(0, len(data), max(1, len(data) // 60)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        target = tmp_path / f"target{position}"
        target.mkdir()
        try:
            unpack_tar(io.BytesIO(damaged), target)
        except (CacheError, OSError):
            continue
        # A bit of the frame's header that means nothing: then all of it must be right.
        assert tree_facts(target) == right, position


def test_truncated_archives_are_noticed(tmp_path: Path) -> None:
    content = tree(tmp_path)
    write_tar(content, tmp_path / "packed")
    data = (tmp_path / "packed").read_bytes()
    for keep in (0, 1, len(data) // 2, len(data) - 200):
        target = tmp_path / f"target{keep}"
        target.mkdir()
        with pytest.raises(CacheError):
            unpack_tar(io.BytesIO(data[:keep]), target)
