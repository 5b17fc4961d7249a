"""Container engines of the tests' own: their storage lies in a temporary directory, and nothing of the
machine's engines is touched. An engine that is missing, or that cannot start the simplest container on this
machine, is a reason to skip; what goes wrong after that is a failure."""

import contextlib
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PATH = "/usr/bin:/usr/sbin:/bin:/sbin"
"""Debian's programs come first: a wrapper elsewhere in PATH may stand before them."""
_UNIFIED = Path("/sys/fs/cgroup/unified")


class UnusableError(Exception):
    """Why this machine cannot run the engine."""


def find(program: str) -> str:
    found = shutil.which(program, path=_PATH)
    if not found:
        raise UnusableError(f"{program} is not installed")
    return found


@contextlib.contextmanager
def engine(name: str) -> Iterator[tuple[str, ...]]:
    """The engine's command. Raises UnusableError."""
    if os.geteuid() != 0:
        raise UnusableError("changes are read from the engine's storage, which is root's")
    with tempfile.TemporaryDirectory(prefix="engine-") as home:
        with podman(Path(home)) if name == "podman" else docker(Path(home)) as command:
            try:
                try_it(command, Path(home))
                yield command
            finally:
                for kind in (["rm", "--all", "--force"], ["rmi", "--all", "--force"]):
                    if name == "podman":
                        subprocess.run([*command, *kind], capture_output=True, check=False)


@contextlib.contextmanager
def podman(home: Path) -> Iterator[tuple[str, ...]]:
    """With crun, which refuses hybrid cgroups unless the second tree is out of its sight."""
    words = (
        find("podman"), "--root", f"{home}/root", "--runroot", f"{home}/run", "--tmpdir", f"{home}/tmp",
        "--cgroup-manager", "cgroupfs", "--runtime", find("crun"), "--storage-driver", "overlay",
    )  # fmt: skip
    if not _UNIFIED.exists():
        yield words
        return
    script = f"umount -l {_UNIFIED} && echo ready && exec sleep 3600"
    with subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == b"ready\n"
            yield (find("nsenter"), f"--mount=/proc/{holder.pid}/ns/mnt", *words)
        finally:
            holder.kill()


@contextlib.contextmanager
def docker(home: Path) -> Iterator[tuple[str, ...]]:
    (home / "client").mkdir()
    (home / "client/none.json").write_text("{}")
    words = [
        find("dockerd"), "--data-root", f"{home}/data", "--exec-root", f"{home}/exec", "--pidfile",
        f"{home}/pid", "--host", f"unix://{home}/socket", "--iptables=false", "--ip6tables=false",
        "--bridge=none", "--ip-masq=false", "--storage-driver", "overlay2", "--config-file",
        f"{home}/client/none.json", "--log-level", "error",
    ]  # fmt: skip
    command = (find("docker"), "--config", f"{home}/client", "--host", f"unix://{home}/socket")
    with (home / "log").open("wb") as log:
        daemon = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "PATH": _PATH},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while subprocess.run([*command, "info"], capture_output=True, check=False).returncode != 0:
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise UnusableError(
                    f"dockerd did not start: {(home / 'log').read_text('utf-8', 'replace')[-400:]}"
                )
            time.sleep(0.2)
        yield command
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        # The daemon mounts this folder on itself and does not always take that back.
        subprocess.run(["umount", "-l", home / "data"], capture_output=True, check=False)


def try_it(command: tuple[str, ...], home: Path) -> None:
    """The simplest container, by the engine alone."""
    root = home / "tried"
    for name in ("usr", "proc", "dev", "sys", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    with tarfile.open(home / "tried.tar", "w") as tar:
        tar.add(root, ".")
    run = ["run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"]
    for words in (
        ["import", f"{home}/tried.tar", "localhost/tried"],
        [*run, "--volume", "/usr:/usr:ro", "localhost/tried", "/usr/bin/true"],
    ):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnusableError(f"{words[0]} fails on this machine: {done.stderr.strip()[-400:]}")
