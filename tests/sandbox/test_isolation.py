"""Attacks from inside, judged from outside."""

import asyncio
import os
import secrets
import tempfile
from pathlib import Path

import pytest

from sandbox.errors import SandboxLostError
from sandbox.mini import MiniBackend
from sandbox.types import MIB, BindMount, Limits, SandboxSpec

_T = 20.0
_ROOT = os.geteuid() == 0


async def _sh(
    backend: MiniBackend, script: str, spec: SandboxSpec | None = None, timeout_s: float = _T
) -> bytes:
    async with await backend.open(spec or SandboxSpec()) as sandbox:
        return (await sandbox.exec(["bash", "-c", script], timeout_s=timeout_s)).output


async def test_host_files_are_invisible(backend: MiniBackend, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    paths = [
        str(secret),
        str(Path(__file__)),
        "/sys/kernel",
        "/var/log",
        "/etc/shadow",
        "/root/.bashrc",
        "/boot",
    ]
    seen = await _sh(backend, "".join(f"ls -d {path} 2>/dev/null; " for path in paths))
    assert seen == b""


async def test_owner_environment_and_arguments_are_invisible(
    state_dir: Path, usable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = secrets.token_hex(16)
    monkeypatch.setenv("SECRET_TOKEN", token)
    async with MiniBackend(state_dir=state_dir) as backend:
        script = (
            "env; cat /proc/*/environ /proc/*/cmdline /proc/*/task/*/environ 2>/dev/null | tr '\\0' '\\n'"
        )
        seen = await _sh(backend, script)
        assert token.encode() not in seen
        assert b"SECRET_TOKEN" not in seen
        assert str(Path(__file__).parents[2]).encode() not in seen


async def test_host_processes_cannot_be_signalled(backend: MiniBackend) -> None:
    victim = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        await _sh(backend, f"kill -9 {victim.pid} {os.getpid()}; kill -9 -1; :")
        assert victim.returncode is None
        os.kill(victim.pid, 0)
    finally:
        victim.kill()
        await victim.wait()


async def test_init_survives_its_sandbox(backend: MiniBackend) -> None:
    async with await backend.open(SandboxSpec()) as sandbox:
        for attack in (
            "for s in $(seq 1 64); do kill -$s 1; done", "kill -9 -1",
            "for f in /proc/1/fd/*; do echo x > $f; done", "echo x > /proc/1/mem",
            "cat /proc/1/maps /proc/1/auxv",
        ):  # fmt: skip
            await sandbox.exec(["bash", "-c", attack + " 2>/dev/null"], timeout_s=_T)
            result = await sandbox.exec(["echo", "alive"], timeout_s=_T)
            assert result.output == b"alive\n", attack


_DENIED_CALLS = """
import ctypes, errno, os, socket, fcntl, termios
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    assert libc.syscall(*arguments) == -1, name
    assert ctypes.get_errno() in (errno.EPERM, errno.ENOSYS), (name, ctypes.get_errno())
numbers = dict(mount=165, setns=308, unshare=272, keyctl=250, add_key=248, bpf=321, userfaultfd=323,
    perf_event_open=298, open_by_handle_at=304, kexec_load=246, io_uring_setup=425, open_tree=428, fsopen=430,
    mount_setattr=442, clone3=435, pivot_root=155)
if os.uname().machine == "x86_64":
    for name, number in numbers.items():
        call(name, number, 0x10000000 if name == "unshare" else 0, 0, 0, 0, 0)
    call("clone", 56, 0x10000000 | 17, 0, 0, 0, 0)
    call("x32 getpid", 0x40000000 + 39)
for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_RAW)
    except OSError as error:
        assert error.errno == errno.EAFNOSUPPORT, (family, error)
    else:
        raise AssertionError(family)
for request in (termios.TIOCSTI, 0x541C):
    master, slave = os.openpty()
    try:
        fcntl.ioctl(slave, request, b"x")
    except PermissionError:
        continue
    raise AssertionError(request)
import threading, subprocess
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
assert subprocess.run(["true"]).returncode == 0 and os.fork() is not None
print("held") if os.getpid() else None
"""


async def test_system_call_filter(backend: MiniBackend) -> None:
    async with await backend.open(SandboxSpec()) as sandbox:
        await sandbox.write_file("/t.py", _DENIED_CALLS.encode())
        result = await sandbox.exec(["python3", "/t.py"], timeout_s=_T)
        if result.exit_status == 127:
            pytest.skip("no python3 in /usr")
        assert b"held" in result.output, result.text


async def test_memory_limit_kills_only_inside(backend: MiniBackend) -> None:
    if "memory" not in backend.facts["controllers"]:
        pytest.skip("no memory cgroup here")
    limits = Limits(memory_bytes=64 * MIB, disk_bytes=32 * MIB)
    async with await backend.open(SandboxSpec(limits=limits)) as sandbox:
        hog = "x=x; while :; do x=$x$x; done"
        result = await sandbox.exec(["bash", "-c", hog], timeout_s=_T)
        assert result.exit_status == 137, result
        assert (await sandbox.exec(["echo", "on"], timeout_s=_T)).output == b"on\n"


async def test_fork_bomb_is_limited_and_closed(backend: MiniBackend) -> None:
    sandbox = await backend.open(SandboxSpec(limits=Limits(pids=60)))
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    await sandbox.write_file("/bomb.py", bomb.encode())
    result = await sandbox.exec(["python3", "/bomb.py"], timeout_s=1)
    assert result.timed_out or result.exit_status == 127
    assert (await sandbox.exec(["echo", "on"], timeout_s=_T)).output == b"on\n"
    await sandbox.close()


async def test_file_calls_cannot_be_tricked_outside(backend: MiniBackend, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    tmp_path.chmod(0o777)
    async with await backend.open(SandboxSpec()) as sandbox:
        up = "/.." * 20
        for target in (str(outside), f"{up}{outside}"):
            await sandbox.exec(["ln", "-sfn", target, "/link"], timeout_s=_T)
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file("/link")
            with pytest.raises(FileNotFoundError):
                await sandbox.write_file("/link", b"evil")
        for magic in ("/proc/1/root/etc/passwd", "/proc/self/fd/0", "/proc/1/fd/3", "/proc/self/cwd/x"):
            with pytest.raises(OSError):
                await sandbox.read_file(magic)
        with pytest.raises(PermissionError):  # would be read as the sandbox's own first process
            await sandbox.read_file("/proc/self/maps")
        for relative in ("", "x", "../x"):
            with pytest.raises((OSError, ValueError)):
                await sandbox.write_file(relative, b"")
        with pytest.raises(OSError):
            await sandbox.write_file("/proc/sys/kernel/core_pattern", b"|/evil")
        with pytest.raises(OSError):
            await sandbox.write_file("/usr/bin/evil", b"")
        with pytest.raises(ValueError):
            await sandbox.read_file("/dev/zero")
        assert outside.read_text() == "secret"


@pytest.mark.parametrize("writable", [True, False])
async def test_binds(backend: MiniBackend, writable: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        (source / "given").write_text("g")
        spec = SandboxSpec(binds=(BindMount(source, "/opt/deep/bound", writable=writable),))
        seen = await _sh(backend, "cat /opt/deep/bound/given; touch /opt/deep/bound/new && echo wrote", spec)
        assert seen.startswith(b"g")
        assert (b"wrote" in seen) == (source / "new").exists() == writable
        if writable:
            assert (source / "new").stat().st_uid == os.geteuid()


async def test_no_network(backend: MiniBackend) -> None:
    assert await _sh(backend, "cat /proc/net/route | tail -n +2") == b""
    host = await _sh(backend, "ls /etc/resolv.conf 2>/dev/null", SandboxSpec(network="host"))
    assert host == (b"/etc/resolv.conf\n" if Path("/etc/resolv.conf").exists() else b"")


async def test_lost_sandbox_says_so(backend: MiniBackend) -> None:
    sandbox = await backend.open(SandboxSpec())
    session = await sandbox.open_session()
    await sandbox.close()
    with pytest.raises(SandboxLostError):
        await sandbox.exec(["true"], timeout_s=1)
    with pytest.raises(SandboxLostError):
        await session.run("true", timeout_s=1)
    with pytest.raises(SandboxLostError):
        await sandbox.diff("/")
