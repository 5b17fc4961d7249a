"""How overlayfs marks what a layer hides: a directory that covers the ones below it, a name that is removed.

Read through descriptors, following no link. overlayfs documentation "whiteouts and opaque directories".
"""

import os
import stat

OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
_WHITEOUT = ("user.overlay.whiteout", "trusted.overlay.whiteout")


def has_attribute(fd: int, names: tuple[str, ...]) -> bool:
    """Whether one of the extended attributes is there."""
    try:
        return any(name in names for name in os.listxattr(fd))
    except OSError:
        return False  # a file system without attributes holds no marks


def is_whiteout(directory: int, name: str, status: os.stat_result) -> bool:
    """Whether the entry says that a lower one is removed."""
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if not stat.S_ISREG(status.st_mode) or status.st_size:
        return False
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return False
    try:
        return has_attribute(fd, _WHITEOUT)
    finally:
        os.close(fd)
