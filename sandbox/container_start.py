"""Parts of a container's start: the command that runs our first process, its socket, and what is bound in.

What the engine is told stands here; when, in `sandbox.container`.
"""

import os
import shutil
import socket
import sys
from pathlib import Path

from sandbox import container_init
from sandbox.proxy import PORT, uses_proxy
from sandbox.stage import host_directories
from sandbox.types import BindMount, SandboxSpec

_COMMAND = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sandbox.container_init import main; main()"


def copy_interpreter(target: Path) -> None:
    """Executable and not readable for anybody inside: what such a program has open is hidden from root in a
    user namespace, as its memory's owner is then the outside's root, proc(5) and execve(2)."""
    shutil.copyfile(interpreter(), target)
    target.chmod(0o711)


def host_binds() -> tuple[BindMount, ...]:
    """The host's programs, as MiniSandbox has them."""
    return tuple(BindMount(Path(path), path) for path in ("/usr", *host_directories()))


def forget_times(directory: Path) -> None:
    """So that every process makes the same image of it."""
    for path in (*directory.rglob("*"), directory):
        os.utime(path, (0, 0), follow_symlinks=False)


def interpreter() -> Path:
    """The interpreter that this process runs, outside of any virtual environment."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return (Path(sys.base_prefix) / "bin" / name).resolve()


def python_inside() -> str:
    """Where it is in a container."""
    return f"{container_init.HOME}/python/{interpreter().relative_to(Path(sys.base_prefix).resolve())}"


def listen(directory: Path) -> socket.socket:
    """A socket in the directory; only the container sees it, and only its first connection is taken."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # By descriptor: the length of a socket's path is limited, unix(7).
        listener.bind(f"/proc/self/fd/{fd}/socket")
        os.chmod(directory / "socket", 0o666)
        listener.listen(1)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(fd)
    return listener


def command(image: str, spec: SandboxSpec) -> list[str]:
    """Entry point, image and arguments: the host's Python, which finds its own libraries by path."""
    home, base = container_init.HOME, Path(sys.base_prefix)
    libraries = [f"{home}/python/lib"]
    # A Python of the system has its libraries in the directory of this architecture.
    libraries += [f"{home}/python/{path.relative_to(base)}" for path in base.glob("lib/*-linux-gnu*")]
    python = python_inside()
    port = PORT if uses_proxy(spec) else 0
    return [
        "--env", f"LD_LIBRARY_PATH={':'.join(libraries)}", "--workdir", "/", "--entrypoint", python, image,
        "-I", "-S", "-c", _COMMAND, f"{home}/package", spec.workdir, str(spec.limits.open_files), str(port),
    ]  # fmt: skip
