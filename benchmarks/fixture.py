"""What every system starts over: one environment (a venv with real packages, a git repository), in each form.

As a directory (a layer, and what bubblewrap binds), as a root file system with bash in it (crun), as a tar of
that (images of podman and docker) and as the tar.gz of the environment alone (the paper's way). The packages
are copies of what is installed beside this Python, so nothing is fetched.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import tarfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TARGET_BYTES = 144 << 20
_LARGEST_PACKAGE_BYTES = 48 << 20
_PROGRAMS = ("bash", "sh", "env", "cat", "ls", "mkdir", "rm", "true", "sleep", "git", "grep", "sed")
_REPOSITORY = ("sandbox", "rewards", "recipes", "launch", "configs", "docs", "tests")


@dataclass(frozen=True, slots=True)
class Fixture:
    """Where its forms lie."""

    layer: Path
    """opt/venv and testbed, as a layer."""
    rootfs: Path
    """The same with /usr, /etc and mount points, as a container's root."""
    rootfs_tar: Path
    """`rootfs` as an uncompressed tar."""
    env_tar_gz: Path
    """`layer` as tar.gz."""
    size_bytes: int
    """Sum of the layer's file sizes."""
    files: int
    """Number of its files."""


def ensure(directory: Path) -> Fixture:
    """The fixture in `directory`, made there if it is not complete."""
    marker = directory / "complete.json"
    if not marker.exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        size, files = _build(directory)
        marker.write_text(json.dumps({"size_bytes": size, "files": files}))
    facts = json.loads(marker.read_text())
    return Fixture(
        layer=directory / "layer",
        rootfs=directory / "rootfs",
        rootfs_tar=directory / "rootfs.tar",
        env_tar_gz=directory / "env.tar.gz",
        size_bytes=facts["size_bytes"],
        files=facts["files"],
    )


def _build(work: Path) -> tuple[int, int]:
    """Make all of it below `work`; (bytes, files) of the layer."""
    layer, rootfs = work / "layer", work / "rootfs"
    _build_venv(layer / "opt/venv")
    _build_repository(layer / "testbed")
    _build_rootfs(rootfs, layer)
    with tarfile.open(work / "rootfs.tar", "w") as archive:
        archive.add(rootfs, arcname=".")
    with tarfile.open(work / "env.tar.gz", "w:gz", compresslevel=6) as archive:
        archive.add(layer, arcname=".")
    sizes = [path.lstat().st_size for path in layer.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(sizes), len(sizes)


def _build_venv(target: Path) -> None:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(target)
    site = next(target.glob("lib/python*/site-packages"))
    total = 0
    for distribution in _distributions():
        files = [file for file in distribution.files or () if ".." not in file.parts]
        size = sum(file.size or 0 for file in files)
        if size > min(_LARGEST_PACKAGE_BYTES, TARGET_BYTES - total):
            continue
        total += size
        for file in files:
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                copy = site / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """Installed packages in order of name: the same choice on every run."""
    yield from sorted(importlib.metadata.distributions(), key=lambda each: each.metadata["Name"].lower())


def _build_repository(target: Path) -> None:
    source = Path(__file__).resolve().parents[1]
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in _REPOSITORY:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignore)
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-C", str(target)]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one commit"]):
        subprocess.run([*git, *arguments], check=True, stdout=subprocess.DEVNULL)


def _build_rootfs(rootfs: Path, layer: Path) -> None:
    shutil.copytree(layer, rootfs, symlinks=True, copy_function=os.link)
    for name in ("usr/bin", "etc", "proc", "sys", "dev", "tmp", "run", "root", "var"):
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    (rootfs / "tmp").chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        host = Path("/" + name)
        (rootfs / name).symlink_to(host.readlink() if host.is_symlink() else f"usr/{name}")
        (rootfs / (rootfs / name).readlink()).mkdir(parents=True, exist_ok=True)
    (rootfs / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (rootfs / "etc/group").write_text("root:x:0:\n")
    for program in _PROGRAMS:
        found = shutil.which(program, path="/usr/bin:/bin")
        if found:
            shutil.copy2(found, rootfs / "usr/bin" / program)
            for library in _libraries(found):
                copy = rootfs / library.lstrip("/")
                if not copy.exists():
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(library, copy)


def _libraries(program: str) -> list[str]:
    """Absolute paths that ldd(1) names."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
