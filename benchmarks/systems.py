"""The systems under measurement that need no engine: bare processes, MiniSandbox, bubblewrap.

A system is opened once (`async with`), then started many times: `start` returns when the output of the first
command is here, `finish` when all of that start is gone again. Engines lie in `benchmarks.containers`, the
paper's way in `benchmarks.paper`.
"""

import asyncio
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks.children import EXPECTED, Command, ForkServer, WrongResultError
from benchmarks.fixture import Fixture
from benchmarks.place import Place
from sandbox import namespaces, seccomp, syscalls
from sandbox.mini import MiniBackend
from sandbox.spares import Spares
from sandbox.stock import Stock
from sandbox.types import Backend, ExecResult, Limits, Sandbox, SandboxSpec

COMMAND = ("bash", "-c", "echo ok")
LIMITS = Limits()
POOL_SIZE = 8


class Started(Protocol):
    """One start whose first output has arrived."""

    async def finish(self) -> None:
        """Until nothing of it is left."""
        ...


class System(Protocol):
    """Something that starts a command."""

    name: str
    """Short, unique."""
    what: str
    """Exactly what one start includes."""
    slow: bool
    """Takes seconds: started a few times only, never many at once."""
    settle_s: float
    """Pause after each measured start for what it does in the background."""

    def missing(self) -> str:
        """Why it cannot be measured here, or ''."""
        ...

    def version(self) -> str:
        """Version of its program, or ''."""
        ...

    async def ready(self, count: int) -> None:
        """Before so many starts together, not timed: what can be done ahead of them. Most do nothing."""
        ...

    async def start(self) -> Started:
        """Start and run the first command; raises WrongResultError when its output is not right."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What systems are made from."""

    place: Place
    """Work directory and cgroups."""
    fixture: Fixture
    """The environment they start over."""


class Base:
    """Defaults of `System`."""

    name = ""
    what = ""
    slow = False
    settle_s = 0.03

    def __init__(self, context: Context) -> None:
        self.context = context

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return ""

    async def ready(self, count: int) -> None:
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        return


class Fork(Base):
    name = "fork"
    what = "fork+exec of bash by a small Python process, no sandbox"
    flags = 0

    async def __aenter__(self) -> Self:
        self._server = await ForkServer(self.flags).__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.__aexit__(*exc)

    async def start(self) -> Started:
        return await self._server.start()


class Floor(Fork):
    name = "floor"
    what = "the same with all seven new namespaces and id maps; no root, cgroup, limits or filter"
    flags = namespaces.flags(own_network=True)


class _MiniStart:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def finish(self) -> None:
        await self._sandbox.close()


def mini_backend(pool_size: int, state_dir: Path) -> MiniBackend:
    """A backend with a pool of that size; 0 is none."""
    return MiniBackend(state_dir=state_dir, pool_size=pool_size)


class Mini(Base):
    name = "mini"
    what = "MiniBackend without a pool: open (all namespaces, overlay root, cgroup, seccomp), exec, result"
    pool_size = 0

    async def __aenter__(self) -> Self:
        state = self.context.place.work / f"state-{self.name}"
        state.mkdir(mode=0o711, exist_ok=True)
        self.spec = SandboxSpec(layers=(self.context.fixture.layer,), workdir="/testbed", limits=LIMITS)
        self.backend = await self.make_backend(state).__aenter__()
        return self

    def make_backend(self, state: Path) -> Backend:
        """Not entered yet."""
        return mini_backend(self.pool_size, state)

    async def __aexit__(self, *_exc: object) -> None:
        await self.backend.__aexit__(None, None, None)

    async def open(self) -> Sandbox:
        return await self.backend.open(self.spec)

    async def first_command(self, sandbox: Sandbox) -> ExecResult:
        return await sandbox.exec(COMMAND, timeout_s=120)

    async def start(self) -> Started:
        sandbox = await self.open()
        try:
            result = await self.first_command(sandbox)
            if result.output != EXPECTED or result.exit_status != 0:
                raise WrongResultError(f"{self.name}: {result}")
        except BaseException:
            await sandbox.close()
            raise
        return _MiniStart(sandbox)


class MiniPool(Mini):
    name = "mini-pool"
    what = f"the same from a warm pool of {POOL_SIZE} that had time to refill"
    pool_size = POOL_SIZE
    settle_s = 0.15

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await (await self.start()).finish()
        await asyncio.sleep(1.0)
        return self


class MiniAgain(MiniPool):
    name = "mini-again"
    what = "the same environment asked for again and again, the next sandbox opened ahead (sandbox.spares)"

    def make_backend(self, state: Path) -> Backend:
        return Spares(mini_backend(self.pool_size, state), size=2)


class MiniReady(Mini):
    name = "mini-ready"
    what = "as many opened ahead as are asked for, as the recipes do between steps (sandbox.stock)"
    session = False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._stock = Stock(self.backend, most=1000)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stock.empty()
        await super().__aexit__(*exc)

    async def ready(self, count: int) -> None:
        while len(self._stock) < count:
            self._stock.add(self.spec, session=self.session)
        await self._stock.settled()

    async def open(self) -> Sandbox:
        return await self._stock.take(self.spec) or await super().open()


class MiniShell(MiniReady):
    name = "mini-shell"
    what = (
        "the same, and the command goes to the shell that was started in it ahead, as an agent's first does"
    )
    session = True

    async def first_command(self, sandbox: Sandbox) -> ExecResult:
        return await (await sandbox.open_session()).run("echo ok", timeout_s=120)


MINIS = (Mini, MiniPool, MiniAgain, MiniReady, MiniShell)
"""Ours."""


class Bwrap(Base):
    name = "bwrap"
    what = "bubblewrap --unshare-all, our seccomp filter, no capabilities; read-only root + tmpfs; no cgroup"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._filter = -1

    def missing(self) -> str:
        return "" if shutil.which("bwrap") else "not installed: apt install bubblewrap"

    def version(self) -> str:
        return program_version("bwrap")

    async def __aenter__(self) -> Self:
        self._filter = os.memfd_create("filter")
        os.write(self._filter, seccomp.build(syscalls.machine()))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        os.close(self._filter)

    def _root(self) -> list[str]:
        root = str(self.context.fixture.rootfs)
        return ["--ro-bind", root, "/", "--tmpfs", "/tmp", "--tmpfs", "/root"]

    async def start(self) -> Started:
        # bubblewrap reads to the end: each run needs its own offset, so its own open file.
        program = os.open(f"/proc/self/fd/{self._filter}", os.O_RDONLY | os.O_CLOEXEC)
        argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
                "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", *self._root(),
                "--proc", "/proc", "--dev", "/dev", "--seccomp", str(program), *COMMAND]  # fmt: skip
        try:
            return await Command.start(argv, pass_fds=(program,))
        finally:
            os.close(program)


class BwrapOverlay(Bwrap):
    name = "bwrap-overlay"
    what = "the same with a writable overlay on tmpfs as root"

    def missing(self) -> str:
        reason = super().missing()
        if not reason and "--tmp-overlay" not in program_output("bwrap", "--help"):
            reason = f"{self.version()} has no --tmp-overlay (0.11 has)"
        return reason

    def _root(self) -> list[str]:
        return ["--overlay-src", str(self.context.fixture.rootfs), "--tmp-overlay", "/", "--tmpfs", "/tmp"]


def program_output(*argv: str) -> str:
    """Standard output and error of a short command; '' when there is no such program."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return done.stdout + done.stderr


def program_version(program: str) -> str:
    """First line of `PROGRAM --version`."""
    return program_output(program, "--version").partition("\n")[0].strip()
