"""The processes of one sandbox of the Landlock mode: a supervisor, and below it the first process.

The supervisor copies the layers, gives rights up, forks the first process, and waits; when that or the owner
ends it kills everything and ends. The first process enters a second, inner set of the same rules, so that
commands can neither signal nor trace the supervisor, and then runs `sandbox.init`'s loop with its paths
mapped into the private directory. Started by `sandbox.weak`; imports nothing heavy. landlock(7).
"""

import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

from sandbox import (
    copies,
    images,
    landlock,
    namespaces,
    relocate,
    seccomp,
    syscalls,
    weak_filter,
    weak_ids,
    wire,
)
from sandbox.weak_first import FirstProcess

_PR_SET_CHILD_SUBREAPER = 36
_DIRECTORIES = (
    ("tmp", 0o1777), ("root", 0o700), ("home", 0o755), ("var", 0o755), ("var/tmp", 0o1777), ("opt", 0o755),
    ("mnt", 0o755), ("run", 0o755),
)  # fmt: skip
_ETC = (
    "passwd", "group", "hosts", "nsswitch.conf", "host.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "os-release", "debian_version", "mime.types", "services", "protocols", "alternatives",
    "fonts",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")


def main() -> None:
    """Entry: argv is SOCKET_FD LIFE_FD OWNER_PID."""
    sock, life, owner = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    for fd in (sock.fileno(), life):
        os.set_inheritable(fd, False)  # they came by inheritance and must go no further
    owner_fd = os.pidfd_open(owner)
    if os.getppid() != owner:
        return
    namespaces.scrub_process_strings(b"sandbox")
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the owner decides
    received = wire.receive(sock)
    if received is None:
        return
    request, fds = received
    supervisor = Supervisor(request, owner)
    try:
        supervisor.prepare(fds)
        pid = supervisor.fork_first(sock, (owner_fd, life))
    except (OSError, ValueError) as error:
        wire.send(sock, {"fatal": str(error)})
        return
    sock.close()
    try:
        _wait((owner_fd, life, os.pidfd_open(pid)))
    finally:
        supervisor.kill_all()


def _wait(fds: tuple[int, ...]) -> None:
    """Until one of them is readable: somebody ended, or wants the end."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    poller.poll()


class Supervisor:
    """Makes one sandbox and ends it."""

    def __init__(self, request: wire.Message, owner: int) -> None:
        self._request = request
        self._owner = owner
        self._map = relocate.PathMap(request["root"], ())
        self._ruleset = -1
        self._scoped = False
        self._lock: weak_ids.Lock | None = None
        self._uid: int | None = None

    def prepare(self, copy_of: list[int]) -> None:
        """Copy the layers, or the files of the sandbox to fork; become the reaper; enter the outer rules."""
        self._lock = weak_ids.take()
        self._uid = self._lock.uid if self._lock else None
        copied = self._sort_binds()
        self._fill(copy_of, copied)
        syscalls.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._ruleset = landlock.ruleset(self._rules())
        landlock.enter(self._ruleset)
        self._scoped = self._may_not_signal_owner()
        if not self._scoped and self._uid is None:
            raise OSError(
                "Landlock here does not keep signals inside (Linux 6.12 does) and there is no private user "
                "id: commands could kill any process of this user"
            )

    def _may_not_signal_owner(self) -> bool:
        """By doing: nothing relies on the version, since a kill of all processes will."""
        try:
            os.kill(self._owner, 0)
        except PermissionError:
            return landlock.abi() >= landlock.SCOPE_ABI
        return False

    def _sort_binds(self) -> list[tuple[str, str]]:
        """(source, target) of those to copy, because the private id may not reach where they are (an
        interpreter in root's home); the others are used in their place."""
        binds: list[tuple[str, str, bool]] = [
            (source, target, rw) for source, target, rw in self._request["binds"]
        ]
        copied: list[tuple[str, str]] = []
        for source, target, writable in binds:
            if not os.path.exists(source):
                raise OSError(f"{source}: no such file or directory")
            if self._uid is not None and not weak_ids.can_reach(self._uid, source):
                if writable or not os.path.isdir(source):
                    raise OSError(f"{source}: user id {self._uid} of the sandbox may not reach it")
                copied.append((source, target))
        self._request["binds"] = [bind for bind in binds if (bind[0], bind[1]) not in copied]
        self._map = relocate.PathMap(
            self._request["root"],
            tuple((target, source) for source, target, _ in self._request["binds"]),
            self._request["former"],
        )
        return copied

    def _fill(self, copy_of: list[int], copied: list[tuple[str, str]]) -> None:
        root: str = self._request["root"]
        sources = copy_of or [_open_layer(path) for path in self._request["layers"]]
        target = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name, mode in () if copy_of else _DIRECTORIES:
                os.mkdir(name, dir_fd=target)
                os.chmod(name, mode, dir_fd=target)
                if self._uid is not None:
                    os.chown(name, self._uid, self._uid, dir_fd=target)
            options = copies.Options(owner=self._uid, edit_file=self._edit, edit_link=self._edit_link)
            copies.merge(sources, target, options=options)
            for source, inside in () if copy_of else copied:
                self._copy_bind(source, self._map.outside(inside), options)
            self._make_directories(self._map.outside(self._request["workdir"]))
            # After the layers, whose own root may be anybody's: nobody else looks in here.
            os.fchmod(target, 0o700)
            if self._uid is not None:
                os.fchown(target, self._uid, self._uid)
        finally:
            for fd in [target, *sources]:
                os.close(fd)

    def _copy_bind(self, source: str, place: str, options: copies.Options) -> None:
        self._make_directories(place)
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        tree = _open_layer(source)
        try:
            copies.merge([tree], directory, options=options)
        finally:
            os.close(directory)
            os.close(tree)

    def _make_directories(self, path: str) -> None:
        """Those that are missing, for the sandbox's id; what lies outside the private directory exists."""
        if os.path.isdir(path) or not path.startswith(self._request["root"]):
            return
        self._make_directories(os.path.dirname(path))
        os.mkdir(path, 0o755)
        if self._uid is not None:
            os.chown(path, self._uid, self._uid)

    def _edit(self, path: str, data: bytes) -> bytes:
        """The work tree is left as it is, or its patches would show what we changed."""
        return data if self._in_workdir(path) else self._map.contents(path, data)

    def _edit_link(self, path: str, target: bytes) -> bytes:
        return target if self._in_workdir(path) else self._map.link(path, target)

    def _in_workdir(self, path: str) -> bool:
        workdir: str = self._request["workdir"]
        return workdir != "/" and (path + "/").startswith(workdir.rstrip("/") + "/")

    def _rules(self) -> list[landlock.Rule]:
        rules = [landlock.Rule(path, "execute") for path in relocate.HOST[:7]]
        rules += [landlock.Rule("/etc/" + name, "read") for name in _ETC]
        rules += [landlock.Rule("/dev/" + name, "device") for name in _DEVICES]
        rules += [landlock.Rule("/proc", "read"), landlock.Rule("/sys/devices/system/cpu", "read")]
        for source, _, writable in self._request["binds"]:
            rules.append(landlock.Rule(source, "write" if writable else "execute"))
        return [*rules, landlock.Rule(self._request["root"], "write")]

    def fork_first(self, sock: socket.socket, ours: tuple[int, ...]) -> int:
        """Start the first process; its pid."""
        pid = os.fork()
        if pid:
            os.close(self._ruleset)
            return pid
        code = 1
        try:
            for fd in ours:
                os.close(fd)
            root = os.open(self._request["root"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # Before open files are limited, see `sandbox.start`.
            wire.send(sock, {"root": True, "complete": False}, (root,))
            os.close(root)
            self._become_first()
            first = FirstProcess(sock, self._map)
            wire.send(sock, {"ready": True, "outside_uid": os.getuid()})
            code = first.serve()
        except BaseException as error:  # noqa: BLE001 - the boundary of a process: reported, then it ends
            code = _report(sock, error)
        finally:
            os._exit(code)

    def _become_first(self) -> None:
        if self._lock:
            self._lock.socket.close()
        _prefer_as_victim()
        weak_ids.narrow_privileges()
        if self._uid is not None:
            os.setgroups([])
            os.setresgid(self._uid, self._uid, self._uid)
            os.setresuid(self._uid, self._uid, self._uid)
        # After the ids, which clear it, prctl(2). Not SIGKILL: then it has to end the others.
        signal.signal(signal.SIGTERM, _end)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)
        syscalls.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        os.umask(0o022)
        limits = self._request["limits"]
        namespaces.set_limits(
            open_files=limits["open_files"],
            pids=limits["pids"] + (0 if self._uid is not None else weak_ids.processes_of(os.getuid())),
            memory_bytes=limits["memory_bytes"],
        )
        weak_ids.drop_privileges()
        landlock.enter(self._ruleset)
        os.close(self._ruleset)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        machine = syscalls.machine()
        # The stricter one first: the other denies what installing takes nothing of.
        weak_filter.install(machine, private_id=self._uid is not None)
        seccomp.install(seccomp.build(machine))

    def kill_all(self) -> None:
        """Kill all that was started here, until nothing is left. As reaper of all orphans this process has
        no child exactly when nothing is."""
        while True:
            if self._uid is not None:
                weak_ids.kill_everything_of(self._uid)
            elif self._scoped:
                os.kill(-1, signal.SIGKILL)  # only what is inside the outer rules, and not this process
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                return
            time.sleep(0.002)


def _end(_number: int, _frame: object) -> NoReturn:
    sys.exit(1)


def _prefer_as_victim() -> None:
    """Out of memory, the kernel kills one of these before the supervisor, proc_pid_oom_score_adj(5)."""
    try:
        syscalls.write_setting("/proc/self/oom_score_adj", "500")
    except OSError:
        return  # no writable /proc: then the usual order holds


def _open_layer(path: str) -> int:
    if not os.path.isdir(path):
        kind = images.kind(path) if os.path.isfile(path) else None
        what = f"{kind} image, which this mode cannot mount: unpack it" if kind else "not a directory"
        raise OSError(f"{path}: {what}")
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _report(sock: socket.socket, error: BaseException) -> int:
    text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    try:
        wire.send(sock, {"fatal": text})
    except OSError:
        return 2
    return 1
