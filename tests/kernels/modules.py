"""Which modules of an unpacked kernel package a guest needs, in the order in which they load.

Each module names what it depends on in its own `.modinfo` section: no list of depmod(8) is needed.
"""

import lzma
import re
from pathlib import Path

WANTED = (
    # How the guest sees its files.
    "virtio_pci", "9pnet_virtio", "9p",
    # A checksum that others ask for by name when they start: no dependency of theirs.
    "crc32c_generic",
    # What sandboxes and the steps use.
    "overlay", "loop", "ext4", "squashfs", "erofs",
)  # fmt: skip
_DEPENDS = re.compile(rb"\0depends=([\w,-]*)\0")


def unpack(package: Path, target: Path) -> None:
    """Copy the modules, uncompressed, as `NUMBER-NAME.ko`. What is built into the kernel is no module."""
    found = {_plain(path.name.split(".ko")[0]): path for path in package.glob("**/lib/modules/**/*.ko*")}
    done: list[str] = []

    def add(name: str) -> None:
        if name in done or name not in found:
            return
        path = found[name]
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        named = _DEPENDS.search(b"\0" + data)
        for other in (named[1].decode() if named else "").split(","):
            add(_plain(other))
        done.append(name)
        (target / f"{len(done):03}-{name}.ko").write_bytes(data)

    for name in WANTED:
        add(name)


def _plain(name: str) -> str:
    return name.replace("-", "_")
