"""Unpacks a squashfs or erofs image with the image format's own program, for those who may not mount it.

The program reads bytes that somebody else wrote. Where the kernel has Landlock it can therefore read nothing
but the image and programs, and write nowhere but to where the tree is made; device files, which would need a
right of their own, are refused there. It has a time limit, and what it made appears whole or not at all.
"""

import errno
import os
import resource
import shutil
import subprocess
import tempfile

from sandbox import images, landlock
from sandbox.images import ImageError, Kind

_TIMEOUT_S = 900.0
_FILE_LIMIT_BYTES = 16 << 30
_PROGRAMS = {"squashfs": "unsquashfs", "erofs": "fsck.erofs"}
_PACKAGES = {"squashfs": "squashfs-tools", "erofs": "erofs-utils"}


def unpack(image: str | os.PathLike[str], directory: str | os.PathLike[str]) -> None:
    """Unpack an image with its own program (unsquashfs, fsck.erofs) into `directory`, which must not exist.

    For those who may not mount it. It appears whole or not at all. Blocks for seconds. Raises ImageError."""
    path, target = os.path.abspath(image), os.path.abspath(directory)
    if os.path.lexists(target):
        raise ImageError(errno.EEXIST, f"{target}: exists already")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        which = images.check(fd, path)
    finally:
        os.close(fd)
    program = shutil.which(_PROGRAMS[which])
    if program is None:
        raise ImageError(
            errno.ENOENT, f"{path}: {_PROGRAMS[which]} is not installed (package {_PACKAGES[which]})"
        )
    scratch = tempfile.mkdtemp(prefix=".unpack-", dir=os.path.dirname(target))
    try:
        result = os.path.join(scratch, "tree")
        run_confined(_unpack_command(which, program, path, result), path, scratch)
        os.rename(result, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unpack_command(which: Kind, program: str, path: str, result: str) -> list[str]:
    if which == "squashfs":
        return [program, "-no-progress", "-quiet", "-no-xattrs", "-d", result, path]
    os.mkdir(result, 0o755)
    return [program, f"--extract={result}", "--no-preserve-owner", path]


def _rules(path: str, scratch: str) -> int:
    """A Landlock ruleset for the program, or -1 on a kernel without."""
    if landlock.abi() == 0:
        return -1
    programs = [landlock.Rule(name, "execute") for name in ("/usr", "/bin", "/lib", "/lib64")]
    read = [
        landlock.Rule(name, "read") for name in (path, "/etc/ld.so.cache", "/proc/meminfo", "/sys/devices")
    ]
    return landlock.ruleset(
        [*programs, *read, landlock.Rule("/dev/null", "device"), landlock.Rule(scratch, "write")]
    )


def run_confined(command: list[str], path: str, scratch: str) -> None:
    """Run a program that may read the image at `path` and write below `scratch`. Raises ImageError."""
    rules = _rules(path, scratch)

    def limit() -> None:
        if rules >= 0:
            landlock.enter(rules)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_LIMIT_BYTES, _FILE_LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False,
            env={"PATH": os.defpath, "LC_ALL": "C"}, preexec_fn=limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ImageError(errno.ETIMEDOUT, f"{path}: {command[0]} did not end") from error
    finally:
        if rules >= 0:
            os.close(rules)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise ImageError(errno.EINVAL, f"{path}: damaged image: {os.path.basename(command[0])}: {lines[-1]}")
