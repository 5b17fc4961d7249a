"""Keeps processors busy for a while, to see which tests only pass on a quiet machine.

Processes of our own that count; they end with this one, however that ends.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_PROGRAM = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    sum(range(200000))
"""


@asynccontextmanager
async def cpu_stress(processes: int) -> AsyncIterator[None]:
    """Runs `processes` busy processes (0: two for each processor) while the block lasts."""
    count = processes or 2 * len(os.sched_getaffinity(0))
    argv = (sys.executable, "-IS", "-c", _PROGRAM, str(os.getpid()))
    started: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(count):
            started.append(await asyncio.create_subprocess_exec(*argv))
        yield
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in started))
