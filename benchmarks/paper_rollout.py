"""One rollout of the paper's way, from its description: `python -I paper_rollout.py ARCHIVE WORK`.

The cached tar.gz of environment and repository is unpacked by Python's tarfile into a private directory; the
host's system directories are bind-mounted by mount(8) under unshare(1); chroot(8) enters it. The end removes
the directory. Imports nothing of this repository, so that none of our own loading is charged to it.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_ENTER = r"""
set -e
root=$1
for name in usr bin sbin lib lib64 etc dev; do
    if [ -L "/$name" ]; then ln -s "$(readlink "/$name")" "$root/$name"
    elif [ -d "/$name" ]; then mkdir -p "$root/$name"; mount --rbind "/$name" "$root/$name"; fi
done
mkdir -p "$root/proc" "$root/tmp" "$root/root"
mount -t proc proc "$root/proc"
exec chroot "$root" bash -c 'echo ok'
"""


def rollout(archive: str, work: str) -> None:
    """Unpack, bind, enter, print `ok`, remove."""
    root = Path(tempfile.mkdtemp(prefix="paper-", dir=work))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(root, filter="fully_trusted")
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc"]
        subprocess.run([*namespaces, "sh", "-c", _ENTER, "sh", str(root)], check=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    rollout(*sys.argv[1:])
