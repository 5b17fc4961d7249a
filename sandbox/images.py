"""Layers that are squashfs or erofs images: told apart, checked and mounted.

`attach` gives a detached read-only mount of an image: erofs straight from its file where the kernel can,
else through a loop device that frees itself with the mount, so a killed helper leaves none. The kernel
parses an image as root: mount only images that you made or whose digest you checked. Who may
not mount images unpacks them (`sandbox.unpack`). Runs in the helper, so it imports nothing heavy. loop(4).
"""

import errno
import fcntl
import os
import stat
import struct
import time
from typing import Literal

from sandbox import fscontext

Kind = Literal["squashfs", "erofs"]

_SQUASHFS_MAGIC = b"hsqs"
_EROFS_MAGIC, _EROFS_AT = b"\xe2\xe1\xf5\xe0", 1024
_HEADER_BYTES = _EROFS_AT + 128
_SECTOR = 512

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_READ_ONLY, _LO_AUTOCLEAR, _LO_DIRECT_IO = 1, 4, 16
_LOOP_TRIES = 64


class ImageError(OSError):
    """An image cannot be used; the message names the file and says what to change."""


def kind(path: str) -> Kind | None:
    """What sort of image a file is, by its first bytes; None for any other file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _kind(os.pread(fd, _HEADER_BYTES, 0)) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def _kind(header: bytes) -> Kind | None:
    if header[:4] == _SQUASHFS_MAGIC:
        return "squashfs"
    if header[_EROFS_AT : _EROFS_AT + 4] == _EROFS_MAGIC:
        return "erofs"
    return None


def _needed_bytes(which: Kind, header: bytes) -> int:
    """Length that the image says it has."""
    if which == "squashfs":
        return struct.unpack_from("<Q", header, 40)[0]
    block_bits = header[_EROFS_AT + 12]
    (blocks,) = struct.unpack_from("<I", header, _EROFS_AT + 36)
    return blocks << min(block_bits, 16)


def attach(path: str) -> int:
    """A detached read-only mount of the image, as a descriptor. Raises ImageError.

    Not cheap (a millisecond and more): call it once per image and node."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        which = check(fd, path)
        if which == "erofs":
            try:
                # The descriptor's own name: what was checked is what is mounted.
                return fscontext.mount_read_only("erofs", f"/proc/self/fd/{fd}")
            except OSError as error:
                # ENOTBLK: this kernel, before 6.12 or built without it, mounts block devices only.
                if error.errno != errno.ENOTBLK:
                    raise
        device = _loop_device(fd, os.path.basename(path))
        try:
            return fscontext.mount_read_only(which, f"/proc/self/fd/{device}")
        finally:
            os.close(device)  # the mount holds it from here, or it frees itself
    except ImageError:
        raise
    except OSError as error:
        raise ImageError(error.errno, f"{path}: {_explain(path, error)}") from error
    finally:
        os.close(fd)


def check(fd: int, path: str) -> Kind:
    """What sort of image an open file is; ImageError when it is none, or shorter than it says."""
    status = os.fstat(fd)
    header = os.pread(fd, _HEADER_BYTES, 0) if stat.S_ISREG(status.st_mode) else b""
    which = _kind(header)
    if which is None:
        raise ImageError(
            errno.EINVAL, f"{path}: neither a directory nor a squashfs or erofs image (damaged at its start?)"
        )
    if len(header) < _HEADER_BYTES or _needed_bytes(which, header) > status.st_size:
        raise ImageError(
            errno.EINVAL,
            f"{path}: truncated {which} image: {status.st_size} bytes of {_needed_bytes(which, header)}",
        )
    return which


def _explain(path: str, error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return (
            f"this process may not mount images here ({error.strerror}); as root it needs CAP_SYS_ADMIN, the "
            "kernel's squashfs or erofs and /dev/loop-control; an ordinary user never may: unpack it once "
            f"(sandbox.unpack.unpack({path!r}, DIRECTORY)) and give the directory as the layer"
        )
    return f"damaged image, the kernel does not mount it ({error.strerror})"


def _loop_device(image: int, name: str) -> int:
    """A loop device over the image, open; it frees itself when the last user goes."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for attempt in range(_LOOP_TRIES):
            device = os.open(
                f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}", os.O_RDONLY | os.O_CLOEXEC
            )
            try:
                # Direct: or each block would be cached twice, here and in the file below.
                _configure(device, image, name, _LO_READ_ONLY | _LO_AUTOCLEAR | _LO_DIRECT_IO)
                return device
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
                # Somebody took it since it was free.
                time.sleep(0.001 * (attempt + os.getpid() % 7))
        raise ImageError(errno.EBUSY, f"no free loop device in {_LOOP_TRIES} tries")
    finally:
        os.close(control)


def _configure(device: int, image: int, name: str, flags: int) -> None:
    # struct loop_config of linux/loop.h: fd, block size, loop_info64, reserved.
    info = struct.pack(
        "=QQQQQIIII64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, os.fsencode(name)[:63], b"", b"", 0, 0
    )
    fcntl.ioctl(device, _LOOP_CONFIGURE, struct.pack("=II", image, 0) + info + bytes(64))


def open_layer(path: str) -> int:
    """A layer's root directory as a descriptor, for reading: a directory itself, or an image mounted for
    as long as the descriptor lives."""
    if os.path.isdir(path):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    tree = attach(path)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
    finally:
        os.close(tree)
