"""`python launch/doctor.py --io`: how fast this node unpacks layers, and how many units of I/O that is.

Unpacks a tree of many small and some large files as often as there are cores, in processes of their own, as
fetching does, and reads it back from the disk. The proposal lets so much be in flight as the node unpacks in
eight seconds: enough to keep the disk busy, and what is in front of a newcomer is soon over. By that rule the
40 units of 50 MB of the published run belong to a node that unpacks 250 MB a second. Some seconds and 400 MB
a core.
"""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from launch.exit_codes import FAILED, OK
from sandbox.cache_files import sync_filesystem
from sandbox.cache_gate import UNIT_BYTES
from sandbox.store_pack import CHUNK_BYTES, tree_facts, write_tar

IN_FLIGHT_S = 8.0
MOST_UNITS = 400
_SMALL_FILES, _LARGE_FILES, _LARGE_BYTES = 1500, 2, 8 << 20
_COPIES = 3
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "fuse.sshfs", "9p")
_UNPACK = (
    "import sys; from pathlib import Path; from sandbox.store_pack import unpack_tar\n"
    "for number in range(int(sys.argv[3])):\n"
    "    target = Path(sys.argv[2]) / str(number); target.mkdir(parents=True)\n"
    "    unpack_tar(open(sys.argv[1], 'rb'), target)\n"
)


@dataclass(frozen=True, slots=True)
class IoFacts:
    """What was measured in one folder."""

    unpack_bytes_per_s: float
    """Unpacking with all cores, until it is on disk."""
    files_per_s: float
    """The same in files."""
    read_bytes_per_s: float
    """Reading what was unpacked, with the page cache dropped as far as the file system lets us."""
    filesystem: str
    """Its type."""
    free_bytes: int
    """Room left."""

    @property
    def units(self) -> int:
        """What `paths.cache_io` should be."""
        return max(1, min(MOST_UNITS, round(self.unpack_bytes_per_s * IN_FLIGHT_S / UNIT_BYTES)))

    @property
    def is_shared(self) -> bool:
        """Whether the folder lies on a network file system, where no node's own files should be."""
        return self.filesystem in _NETWORK


def measure(folder: Path, *, workers: int = 0) -> IoFacts:
    """Measure below `folder`, which is made; everything is removed again. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    workers = workers or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix=".io-", dir=folder) as place:
        base = Path(place)
        packed = _sample(base)
        facts = tree_facts(base / "sample")
        sync_filesystem(base)
        started = time.monotonic()
        targets = [base / f"out{number}" for number in range(workers)]
        argv = [sys.executable, "-c", _UNPACK, str(packed)]
        running = [subprocess.Popen([*argv, str(target), str(_COPIES)]) for target in targets]
        if sum(process.wait() for process in running):
            raise OSError(f"unpacking in {base} failed")
        sync_filesystem(base)
        unpack_s = time.monotonic() - started
        read_s = _read(targets[0])
        copies = workers * _COPIES
        return IoFacts(
            unpack_bytes_per_s=facts.bytes * copies / unpack_s,
            files_per_s=facts.files * copies / unpack_s,
            read_bytes_per_s=facts.bytes * _COPIES / read_s,
            filesystem=filesystem_of(folder),
            free_bytes=shutil.disk_usage(folder).free,
        )


def _sample(base: Path) -> Path:
    """A tree like a venv's, packed: small files of text, and some large ones of other bytes."""
    content, dice = base / "sample", random.Random(1)
    words = [hashlib.sha256(b"%d" % number).hexdigest()[:7] for number in range(400)]
    for number in range(_SMALL_FILES):
        path = content / f"package{number % 60}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(dice.choices(words, k=dice.randrange(100, 2000))))
    for number in range(_LARGE_FILES):
        (content / f"library{number}.so").write_bytes(dice.randbytes(_LARGE_BYTES // 2) * 2)
    write_tar(content, base / "sample.tar.zst", level=1)
    return base / "sample.tar.zst"


def _read(folder: Path) -> float:
    """Seconds to read all files of a tree that was dropped from memory before."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.monotonic()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(CHUNK_BYTES):
                pass
    return time.monotonic() - started


def filesystem_of(path: Path) -> str:
    """Type of the file system that holds a path, from /proc/self/mountinfo; '' when it is not told."""
    device = path.stat().st_dev
    wanted, found = f"{os.major(device)}:{os.minor(device)}", ""
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            found = after.split()[0]
    return found


def report(folder: Path, console: Console) -> int:
    """Measure and say what follows; the exit status."""
    try:
        facts = measure(folder)
    except OSError as error:
        console.print(f"{folder} cannot be measured: {error}", markup=False, soft_wrap=True)
        return FAILED
    mega = 1e6
    console.print(
        f"{folder} ({facts.filesystem or 'unknown'}, {facts.free_bytes / 1e9:.0f} GB free): unpacks "
        f"{facts.unpack_bytes_per_s / mega:.0f} MB and {facts.files_per_s:.0f} files a second, "
        f"reads {facts.read_bytes_per_s / mega:.0f} MB a second",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    console.print(
        f"units of {UNIT_BYTES // 1_000_000} MB to unpack at once: paths.cache_io={facts.units}; on a "
        f"cluster start this node with: ray start --resources='{{\"cache_io\": {facts.units}}}'",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    if facts.is_shared:
        console.print(
            "This is a network file system. Locks and marks of use mean nothing between nodes there: set "
            "paths.node_dir to a folder on each node's own disk, and paths.store to the shared one.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    return OK
