"""The paper's way of starting a rollout (SWE-MiniSandbox, arXiv 2602.11210) as a system.

What one rollout does is in `paper_rollout.py`: a process of its own, as it is a Ray worker there.
"""

import shutil
import sys
from pathlib import Path

from benchmarks.children import Command
from benchmarks.systems import Base, Started

_ROLLOUT = Path(__file__).with_name("paper_rollout.py")


class Paper(Base):
    name = "paper"
    what = "the paper's way: tarfile extraction of the tar.gz, unshare(1), bind mounts by mount(8), chroot(8)"
    slow = True

    def missing(self) -> str:
        absent = [program for program in ("unshare", "mount", "chroot") if not shutil.which(program)]
        return f"not installed: apt install util-linux coreutils ({', '.join(absent)})" if absent else ""

    async def start(self) -> Started:
        archive, work = self.context.fixture.env_tar_gz, self.context.place.work
        return await Command.start([sys.executable, "-I", str(_ROLLOUT), str(archive), str(work)])
