"""What the attacks are let loose on: a host with secrets, an attacker's sandbox and its neighbour's.

Builds everything once per mode and looks for damage after each probe.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from sandbox import syscalls
from sandbox.cache_record import python_env
from sandbox.errors import SandboxError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, BindMount, ExecResult, Limits, Sandbox, SandboxSpec, Session
from tests.sandbox.probes.model import Mode

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROBE_DIRECTORY = "/tmp/probe"
PYTHON = "/opt/python/bin/python3"
_SETTINGS = ("kernel/core_pattern", "kernel/hostname", "kernel/domainname", "kernel/panic", "vm/swappiness",
             "kernel/modprobe")  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")

_SIBLING = """
from inside import *
import threading
open('/tmp/secret', 'w').write(SECRET); open('/dev/shm/secret', 'w').write(SECRET)
LIBC.shmat.restype = ctypes.c_void_p
at = LIBC.shmat(LIBC.shmget(SHM_KEY, 4096, 0o1666), None, 0)
ctypes.memmove(at, SECRET.encode(), len(SECRET))
listener = socket.socket(socket.AF_UNIX); listener.bind(chr(0) + SIBLING_ABSTRACT); listener.listen()
tcp = socket.create_server(('127.0.0.1', SIBLING_PORT))
def answer(server):
    while True:
        server.accept()[0].send(SECRET.encode())
for server in (listener, tcp):
    threading.Thread(target=answer, args=(server,), daemon=True).start()
open('/tmp/ready', 'w').close()
time.sleep(3600)
"""


class World:
    """Secrets, canaries, and two sandboxes of one backend."""

    def __init__(self, mode: Mode, backend: MiniBackend, directory: Path, spec: SandboxSpec) -> None:
        self.mode = mode
        self.backend = backend
        self.directory = directory
        self.spec = spec
        self.tokens: list[bytes] = [os.environ["PROBE_SECRET"].encode()]
        self.facts: dict[str, str | int] = {}
        self.layer = spec.layers[0]
        self._keep: list[socket.socket] = []
        self._sibling_session: Session | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def token(self) -> str:
        """A new secret; any output that holds it is a success of the attack."""
        token = secrets.token_hex(16)
        self.tokens.append(token.encode())
        return token

    async def prepare(self) -> None:
        """Host side, then both sandboxes."""
        self._host()
        self.attacker = await self.open()
        await self.renew_sibling()
        self.baseline = self.snapshot()

    async def renew_sibling(self) -> None:
        """A new neighbour, full of secrets."""
        if self._sibling_session is not None:
            await self.sibling.close()
        self.sibling = await self.open()
        self._sibling_session = await self.sibling.open_session()
        await self.sibling.write_file(
            f"{_PROBE_DIRECTORY}/sibling.py", f"SECRET = {self.token()!r}\n".encode() + self._head(_SIBLING)
        )
        script = f"{PYTHON} {_PROBE_DIRECTORY}/sibling.py & until [ -e /tmp/ready ]; do sleep 0.05; done"
        result = await self._sibling_session.run(script, timeout_s=30)
        if result.exit_status != 0:
            raise RuntimeError(f"the sibling did not start: {result}")

    def _host(self) -> None:
        self.host_file = self.directory / "host-secret"
        self.host_file.write_text(self.token())
        self.canary = subprocess.Popen(
            ["sleep", "3600"], env={"SECRET": self.token()}, cwd=self.directory, stdin=subprocess.DEVNULL
        )
        abstract = f"probe-{secrets.token_hex(4)}"
        unix = socket.socket(socket.AF_UNIX)
        unix.bind("\0" + abstract)
        tcp = socket.create_server(("127.0.0.1", 0))
        for server in (unix, tcp):
            server.listen()
            answer = self._answer(server, self.token().encode())
            self._tasks.append(asyncio.get_running_loop().create_task(answer))
            self._keep.append(server)
        key = secrets.randbelow(1 << 30) + 1
        identifier = _LIBC.shmget(key, 4096, 0o1666)
        _LIBC.shmat.restype = ctypes.c_void_p
        address = _LIBC.shmat(identifier, None, 0)
        ctypes.memmove(address, self.token().encode(), 32)
        self._shm = identifier
        self.facts = {
            "HOST_FILE": str(self.host_file), "HOST_DIRECTORY": str(self.directory),
            "HOST_PID": self.canary.pid, "OWNER_PID": os.getpid(), "HOST_ABSTRACT": abstract,
            "HOST_PORT": tcp.getsockname()[1], "SHM_KEY": key, "SHM_ID": identifier,
            "SIBLING_ABSTRACT": f"sibling-{secrets.token_hex(4)}", "SIBLING_PORT": 7654,
            "LAYER_FILE": "/layer/file", "LAYER_ROOT": str(self.layer),
        }  # fmt: skip

    @staticmethod
    async def _answer(server: socket.socket, secret: bytes) -> None:
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(server)
            with connection, contextlib.suppress(OSError):
                await loop.sock_sendall(connection, secret)

    def _head(self, script: str) -> bytes:
        facts = "".join(f"{name} = {value!r}\n" for name, value in self.facts.items())
        return f"import sys; sys.path.insert(0, {_PROBE_DIRECTORY!r})\n{facts}".encode() + script.encode()

    async def open(self, **changes: object) -> Sandbox:
        """A sandbox that has the scripts' library; `changes` are fields of its spec."""
        fields = {name: getattr(self.spec, name) for name in SandboxSpec.__dataclass_fields__} | changes
        sandbox = await self.backend.open(SandboxSpec(**fields))  # type: ignore[arg-type]
        library = Path(__file__).with_name("inside.py").read_bytes()
        await sandbox.write_file(f"{_PROBE_DIRECTORY}/inside.py", library)
        return sandbox

    async def run(
        self,
        script: str,
        sandbox: Sandbox | None = None,
        *,
        timeout_s: float = 20.0,
        output_limit_bytes: int | None = None,
    ) -> ExecResult:
        """Run a script inside, the attacker's sandbox if no other is named."""
        where = sandbox or self.attacker
        path = f"{_PROBE_DIRECTORY}/script-{secrets.token_hex(4)}.py"
        await where.write_file(path, self._head("from inside import *\n" + script))
        return await where.exec([PYTHON, path], timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)

    @contextlib.asynccontextmanager
    async def background(
        self, script: str, sandbox: Sandbox, *, timeout_s: float = 30.0
    ) -> AsyncIterator[bytes]:
        """A script that goes on while the block runs; gives what it printed up to a line READY."""
        name = secrets.token_hex(4)
        path = f"{_PROBE_DIRECTORY}/back-{name}"
        await sandbox.write_file(f"{path}.py", self._head("from inside import *\n" + script))
        session = await sandbox.open_session()
        wait = (
            f"for i in $(seq {int(timeout_s * 20)}); do grep -q READY {path}.out && break; sleep 0.05; done"
        )
        start = f"{PYTHON} {path}.py > {path}.out 2>&1 & {wait}; cat {path}.out"
        try:
            result = await session.run(start, timeout_s=timeout_s + 5)
            if b"READY" not in result.output:
                raise RuntimeError(f"the background script did not get ready: {result}")
            yield result.output
        finally:
            with contextlib.suppress(SandboxError):
                await session.close()

    async def revive(self) -> bool:
        """Whether the attacker's sandbox still works; new ones are opened for those that do not."""
        if not await self._answers(self.sibling):
            await self.renew_sibling()
        if await self._answers(self.attacker):
            return True
        await self.renew()
        return False

    @staticmethod
    async def _answers(sandbox: Sandbox) -> bool:
        try:
            result = await sandbox.exec(["echo", "alive"], timeout_s=20)
        except SandboxError:
            return False  # the finding itself, which the caller reports
        return result.output == b"alive\n"

    async def renew(self) -> None:
        """A new sandbox for the attacker."""
        await self.attacker.close()
        self.attacker = await self.open()

    def snapshot(self) -> dict[str, Any]:
        """What no sandbox may change."""
        found: dict[str, Any] = {"canary": self.canary.poll(), "secret": self.host_file.read_bytes()}
        for name in _DEVICES:
            info = Path("/dev", name).stat()
            found[f"/dev/{name}"] = (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, info.st_rdev)
        for name in _SETTINGS:
            path = Path("/proc/sys", name)
            found[name] = path.read_bytes() if path.exists() else b""
        for path in sorted(self.layer.rglob("*")):
            info = path.lstat()
            data = path.read_bytes() if stat.S_ISREG(info.st_mode) else b""
            found[str(path)] = (info.st_mode, info.st_uid, info.st_mtime_ns, hashlib.sha256(data).hexdigest())
        found["files"] = sorted(path.name for path in self.directory.iterdir())
        return found

    def damage(self) -> list[str]:
        """What changed outside since the last look."""
        now = self.snapshot()
        changed = [name for name in {**now, **self.baseline} if now.get(name) != self.baseline.get(name)]
        for name in changed:
            if name.startswith("/dev/"):
                # An attack that worked must not leave the machine with a /dev/null that nobody can open.
                mode, uid, gid, _ = self.baseline[name]
                os.chown(name, uid, gid)
                Path(name).chmod(mode)
        self.baseline = self.snapshot()
        return sorted(changed)

    def clear_host(self) -> None:
        """Remove what was made on the host."""
        self.canary.kill()
        self.canary.wait()
        for task in self._tasks:
            task.cancel()
        for server in self._keep:
            server.close()
        _LIBC.shmctl(self._shm, 0, None)


def _make_layer(root: Path) -> Path:
    layer = root / "layer"
    (layer / "layer" / "sub").mkdir(parents=True)
    (layer / "layer" / "file").write_text("lower\n")
    (layer / "layer" / "sub" / "deep").write_text("deep\n")
    (layer / "testbed").mkdir()
    (layer / "testbed" / "a.py").write_text("one\n")
    return layer


@contextlib.contextmanager
def _place(mode: Mode) -> Iterator[tuple[Path, Path]]:
    """(a directory of the host, where layers lie)."""
    name = tempfile.mkdtemp(prefix="sandbox-probes-")
    directory = Path(name)
    directory.chmod(0o755)
    layers = directory / "layers"
    layers.mkdir()
    try:
        if mode == "unshifted":
            # ramfs takes no idmapped mounts, so root inside keeps id 0 outside. Dies with this process.
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
            syscalls.mount("none", str(layers), "ramfs")
        yield directory, layers
        if mode == "unshifted":
            syscalls.umount_detach(str(layers))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.asynccontextmanager
async def build(mode: Mode) -> AsyncIterator[World]:
    """The world of one mode, in a process of its own (see `run`)."""
    with _place(mode) as (directory, layers):
        prefix = Path(sys.base_prefix)
        spec = SandboxSpec(
            layers=(_make_layer(layers),),
            binds=(BindMount(prefix, "/opt/python"),),
            env={**python_env(prefix), "PATH": "/opt/python/bin:/usr/local/bin:/usr/bin:/bin"},
            workdir="/tmp",
            limits=Limits(memory_bytes=512 * MIB, disk_bytes=128 * MIB, pids=256),
        )
        state = directory / "state"
        state.mkdir(mode=0o711)
        async with MiniBackend(state_dir=state) as backend:
            world = World(mode, backend, directory, spec)
            try:
                await world.prepare()
                yield world
            finally:
                world.clear_host()
