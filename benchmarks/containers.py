"""Container engines as systems: crun with a bundle, podman with crun, Docker Engine started by hand.

Each gets the limits that MiniSandbox gets (memory, processes), no network, and a place of its own for storage
and state below the work directory, so that nothing of the machine's own engines is touched. Images are
imported from a tar before anything is timed: no registry is asked.
"""

import asyncio
import contextlib
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

from benchmarks.children import Command
from benchmarks.systems import COMMAND, LIMITS, Base, Context, Started, program_output, program_version
from sandbox import syscalls

_IMAGE = "sandbox-bench"
_NPROC = 32_000
_DAEMON_START_S = 60.0
_DAEMON_STOP_S = 30.0
_PATH = "/usr/bin:/usr/sbin:/bin:/sbin"
"""Debian's programs come first: a wrapper elsewhere in PATH may stand before them."""


def find(program: str) -> str:
    """Path of an installed program, or ''."""
    return shutil.which(program, path=_PATH) or shutil.which(program) or ""


class Crun(Base):
    name = "crun"
    what = "bundle (config.json written, overlay mounted by mount(2)) + `crun run`, cgroup limits, no seccomp"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._home = context.place.work / "crun"
        self._ids = itertools.count(1)
        self._config: dict[str, Any] = {}

    def missing(self) -> str:
        return "" if find("crun") else "not installed: apt install crun"

    def version(self) -> str:
        return program_version(find("crun"))

    async def __aenter__(self) -> Self:
        (self._home / "spec").mkdir(parents=True)
        # What the overlays write goes to tmpfs, as MiniSandbox's does.
        (self._home / "bundles").mkdir()
        syscalls.mount("tmpfs", str(self._home / "bundles"), "tmpfs", 0, "mode=755")
        subprocess.run([find("crun"), "spec"], cwd=self._home / "spec", check=True)  # noqa: ASYNC221
        config = json.loads((self._home / "spec/config.json").read_text())
        config["process"].update(args=list(COMMAND), terminal=False)
        config["root"] = {"path": "root", "readonly": False}
        resources = config["linux"].setdefault("resources", {})
        resources["memory"] = {"limit": LIMITS.memory_bytes}
        resources["pids"] = {"limit": LIMITS.pids}
        self._config = config
        return self

    async def __aexit__(self, *_exc: object) -> None:
        syscalls.umount_detach(str(self._home / "bundles"))

    async def start(self) -> Started:
        name = f"{self.context.place.name}-{next(self._ids)}"
        bundle = self._home / "bundles" / name
        for part in ("root", "upper", "work"):
            (bundle / part).mkdir(parents=True)
        options = f"lowerdir={self.context.fixture.rootfs},upperdir={bundle}/upper,workdir={bundle}/work"
        syscalls.mount("overlay", str(bundle / "root"), "overlay", 0, options)
        config = {**self._config, "linux": {**self._config["linux"]}}
        config["linux"]["cgroupsPath"] = f"{self.context.place.parent_of(self.name)}/{name}"
        (bundle / "config.json").write_text(json.dumps(config))
        argv = [find("crun"), "--root", str(self._home / "state"), "--cgroup-manager", "cgroupfs", "run"]
        try:
            command = await Command.start([*argv, "--bundle", str(bundle), name])
        except BaseException:
            _remove_bundle(bundle)
            raise
        return _CrunStart(command, bundle)


class _CrunStart:
    def __init__(self, command: Command, bundle: Path) -> None:
        self._command = command
        self._bundle = bundle

    async def finish(self) -> None:
        try:
            await self._command.finish()
        finally:
            _remove_bundle(self._bundle)


def _remove_bundle(bundle: Path) -> None:
    syscalls.umount_detach(str(bundle / "root"))
    shutil.rmtree(bundle)


class Podman(Base):
    name = "podman"
    what = "`podman run --rm --network none` of a local image, runtime crun, overlay storage, default seccomp"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        home = context.place.work / "podman"
        self._base = [
            find("podman"), "--root", str(home / "root"), "--runroot", str(home / "run"),
            "--tmpdir", str(home / "tmp"), "--cgroup-manager", "cgroupfs", "--runtime", find("crun"),
        ]  # fmt: skip

    def missing(self) -> str:
        absent = [program for program in ("podman", "crun") if not find(program)]
        return f"not installed: apt install {' '.join(absent)}" if absent else ""

    def version(self) -> str:
        return program_version(find("podman"))

    async def __aenter__(self) -> Self:
        await _call([*self._base, "import", str(self.context.fixture.rootfs_tar), _IMAGE])
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await _call([*self._base, "rm", "--all", "--force"])
        await _call([*self._base, "rmi", "--all", "--force"])

    async def start(self) -> Started:
        limits = ["--memory", str(LIMITS.memory_bytes), "--pids-limit", str(LIMITS.pids)]
        return await Command.start(
            [*self._base, "run", "--rm", "--network", "none", *_ulimits(), *limits,
             "--cgroup-parent", self.context.place.parent_of(self.name), _IMAGE, *COMMAND]
        )  # fmt: skip


def _ulimits() -> list[str]:
    """podman asks for more than root without CAP_SYS_RESOURCE may give, and crun then refuses."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = _NPROC if hard == resource.RLIM_INFINITY else min(_NPROC, hard)
    return ["--ulimit", "nofile=1024:1024", "--ulimit", f"nproc={processes}:{processes}"]


class Docker(Base):
    name = "docker"
    what = "`docker run --rm --network none` of a local image; engine of its own (overlay2, containerd, runc)"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._home = context.place.work / "docker"
        self._daemon: subprocess.Popen[bytes] | None = None
        # A configuration of its own: the user's settings and contexts are not ours.
        self._base = [find("docker"), "--config", str(self._home / "client"), "--host"]
        self._base.append(f"unix://{self._home}/socket")

    def missing(self) -> str:
        absent = [program for program in ("dockerd", "docker") if not find(program)]
        return "not installed: apt install docker.io" if absent else ""

    def version(self) -> str:
        return program_version(find("dockerd"))

    async def __aenter__(self) -> Self:
        self._home.mkdir()
        (self._home / "client").mkdir()
        argv = [
            find("dockerd"), "--data-root", str(self._home / "data"), "--exec-root", str(self._home / "exec"),
            "--pidfile", str(self._home / "pid"), "--host", f"unix://{self._home}/socket", "--iptables=false",
            "--ip6tables=false", "--bridge=none", "--ip-masq=false", "--storage-driver", "overlay2",
            "--config-file", str(self._home / "client/none.json"), "--log-level", "error",
        ]  # fmt: skip
        (self._home / "client/none.json").write_text("{}")
        with (self._home / "log").open("wb") as log:
            self._daemon = subprocess.Popen(  # noqa: ASYNC220 - once, before anything is timed
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PATH": _PATH},
            )  # fmt: skip
        try:
            await self._answers()
            await _call([*self._base, "import", str(self.context.fixture.rootfs_tar), _IMAGE])
        except BaseException:
            await self._stop()
            raise
        return self

    async def _answers(self) -> None:
        assert self._daemon
        deadline = asyncio.get_running_loop().time() + _DAEMON_START_S
        while "Server" not in await asyncio.to_thread(program_output, *self._base, "version"):
            if self._daemon.poll() is not None or asyncio.get_running_loop().time() > deadline:
                raise EngineError(f"dockerd did not start: {self._log()}")
            await asyncio.sleep(0.2)

    def _log(self) -> str:
        return (self._home / "log").read_text("utf-8", "replace")[-1500:].strip()

    async def _stop(self) -> None:
        if self._daemon:
            self._daemon.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(self._daemon.wait, _DAEMON_STOP_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._daemon.pid, signal.SIGKILL)
                self._daemon.wait()

    async def __aexit__(self, *_exc: object) -> None:
        await self._stop()

    async def start(self) -> Started:
        limits = ["--memory", str(LIMITS.memory_bytes), "--pids-limit", str(LIMITS.pids)]
        return await Command.start(
            [*self._base, "run", "--rm", "--network", "none", *limits,
             "--cgroup-parent", self.context.place.parent_of(self.name), _IMAGE, *COMMAND]
        )  # fmt: skip


class EngineError(Exception):
    """An installed engine could not be prepared."""


async def _call(argv: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise EngineError(f"{' '.join(argv[-3:])}: {output.decode('utf-8', 'replace')[-1500:].strip()}")
