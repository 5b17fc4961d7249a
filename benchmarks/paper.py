"""The paper's way of starting a rollout (SWE-MiniSandbox, arXiv 2602.11210), written from its description.

Per rollout: the cached tar.gz of environment and repository is unpacked by Python's tarfile into a private
directory; the host's system directories are bind-mounted in by mount(8) under unshare(1); chroot(8) enters it.
The end removes the directory. As a system it is a process like any other, as it is a Ray worker there.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from benchmarks.children import Command
from benchmarks.systems import Base, Started

_BOUND = ("usr", "bin", "sbin", "lib", "lib64", "etc", "dev")
_ENTER = """\
set -e
root=$1
for name in %s; do
    if [ -L "/$name" ]; then ln -s "$(readlink "/$name")" "$root/$name"
    elif [ -d "/$name" ]; then mkdir -p "$root/$name"; mount --rbind "/$name" "$root/$name"; fi
done
mkdir -p "$root/proc" "$root/tmp" "$root/root"
mount -t proc proc "$root/proc"
exec chroot "$root" bash -c 'echo ok'
""" % " ".join(_BOUND)  # noqa: UP031 - the shell's braces and dollars stay readable


class Paper(Base):
    name = "paper"
    what = "the paper's way: tarfile extraction of the tar.gz, unshare(1), bind mounts by mount(8), chroot(8)"
    slow = True

    def missing(self) -> str:
        wanted = ("unshare", "mount", "chroot")
        absent = [program for program in wanted if not shutil.which(program)]
        return f"not installed: apt install util-linux coreutils ({', '.join(absent)})" if absent else ""

    async def start(self) -> Started:
        code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from benchmarks.paper import rollout; rollout()"
        repository = str(Path(__file__).resolve().parents[1])
        archive, work = self.context.fixture.env_tar_gz, self.context.place.work
        return await Command.start([sys.executable, "-c", code, repository, str(archive), str(work)])


def rollout() -> None:
    """Body of the process: ARCHIVE WORK."""
    archive, work = sys.argv[1:]
    root = Path(tempfile.mkdtemp(prefix="paper-", dir=work))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(root, filter="fully_trusted")
        command = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "sh", "-c", _ENTER, "sh", str(root)]
        subprocess.run(command, check=True)
    finally:
        shutil.rmtree(root)
