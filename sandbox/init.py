"""The first process of a sandbox, once `sandbox.start` has built it: spawns, reaps and kills for the owner.

It runs Python inside the sandbox's namespaces without privileges, cannot be traced or signalled from
inside, and takes its orders from one socket only; end of file on it ends the sandbox. It never
interprets what programs print: exit statuses come from waitpid(2).
"""

import errno
import json
import os
import select
import signal
import socket
import time

from sandbox import syscalls, terminal, wire
from sandbox.files_inside import Files, error_number
from sandbox.jobs_inside import Spawned, others, started_since

_INTERRUPT = signal.SIGUSR1
_KILL_PASSES = 25
_DYING_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD)


class Init:
    """The event loop of pid 1."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._children: dict[int, int] = {}
        """pid -> the owner's id for it."""
        self._pids: dict[int, int] = {}
        self._spawned = Spawned()
        self._stopped: set[int] = set()
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._proc_device = os.stat("/proc").st_dev
        self._files = Files(sock, self._open, self._proc_device)

    def serve(self) -> int:
        """Until end of file on the socket."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        # pid 1 ignores signals it has no handler for, even SIGKILL, when sent from inside, pid_namespaces(7).
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        poller = select.poll()
        poller.register(self._sock.fileno(), select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap()
            if self._sock.fileno() in ready:
                received = wire.receive(self._sock)
                if received is None:
                    return 0
                self._handle(*received)

    def _handle(self, message: wire.Message, fds: list[int]) -> None:
        try:
            match message["op"]:
                case "spawn":
                    self._spawn(message, fds)
                case "kill":
                    self._kill(message)
                case "signal":
                    self._signal(message)
                case "jobs":
                    self._jobs(message)
                case "read":
                    self._files.read(message)
                case "stream":
                    self._files.stream(message, fds[0])
                case "pack":
                    self._files.pack(message, fds[0])
                case "unpack":
                    self._files.unpack(message, fds[0])
                case "terminal":
                    self._open_terminal(message)
                case "pause":
                    self._stop_all()
                    wire.send(self._sock, {"reply": message["id"]})
                case "resume":
                    self._continue_all()
                    wire.send(self._sock, {"reply": message["id"]})
                case "write":
                    self._files.write(message, fds[0])
                case other:
                    raise ValueError(f"unknown operation {other}")
        finally:
            for fd in fds:
                os.close(fd)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is None:
                continue  # an orphan that init inherited
            del self._pids[child]
            code = os.waitstatus_to_exitcode(status)
            wire.send(self._sock, {"exit": child, "status": code if code >= 0 else 128 - code})

    def _spawn(self, message: wire.Message, fds: list[int]) -> None:
        child: int = message["id"]
        argv: list[str] = message["argv"]
        env: dict[str, str] = message["env"]
        problem = _enter(message["cwd"], message["fallback_cwd"])
        if problem is None:
            actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = []
            for target in message["null"]:
                actions.append((os.POSIX_SPAWN_OPEN, target, "/dev/null", os.O_RDWR, 0))
            for fd, target in zip(fds, message["targets"], strict=True):
                actions.append((os.POSIX_SPAWN_DUP2, fd, target))
            if message.get("terminal"):
                actions += terminal.spawn_actions(message["terminal"])
            try:
                pid = _posix_spawn(argv, env, actions)
                self._children[pid] = child
                self._pids[child] = pid
                self._spawned.add(pid, child)
                return
            except OSError as error:
                problem = (127 if error.errno == errno.ENOENT else 126, f"{argv[0]}: {error.strerror}")
            except ValueError as error:
                problem = (126, f"{argv[0]!r}: {error}")
        status, text = problem
        if fds:  # a program on a terminal has none
            os.write(fds[-1], text.encode("utf-8", "replace") + b"\n")
        wire.send(self._sock, {"exit": child, "status": status})

    def _kill(self, message: wire.Message) -> None:
        """End what a command started. `shell`: ask the shell itself to stop, saving its state."""
        pid = self._pids.get(message["id"])
        if pid is None:
            return
        cwd = ""
        if message["shell"]:
            try:
                cwd = os.readlink(f"/proc/{pid}/cwd")
            except OSError:
                cwd = ""  # gone, or made itself untraceable: the owner falls back to the last known directory
            # First the signal, which the shell acts on as soon as its foreground command dies, else it
            # would go on with the next command of the list.
            os.kill(pid, _INTERRUPT)
        else:
            os.kill(pid, signal.SIGKILL)
        self._kill_tree(pid, _tick(message["since_s"]))
        wire.send(self._sock, {"killed": message["id"], "cwd": cwd})

    def _signal(self, message: wire.Message) -> None:
        """Send one signal to a shell and another to what it started, as a terminal does on Ctrl-C."""
        pid = self._pids.get(message["id"])
        if pid is None:
            return
        victims: list[int] = []
        if message["tree"]:
            victims = started_since(pid, _tick(message["since_s"]), spare=set(self._children))
        # The shell first: it must know before the command it waits for has died.
        for victim, number in [(pid, message["shell"])] + [(each, message["tree"]) for each in victims]:
            try:
                if number:
                    os.kill(victim, number)
            except ProcessLookupError:
                continue

    def _jobs(self, message: wire.Message) -> None:
        before = None if message["since_s"] is None else _tick(message["since_s"])
        fd = wire.memory_file(json.dumps(self._spawned.jobs(set(message["shells"]), before)).encode())
        self._reply_with(message, fd)

    def _reply_with(self, message: wire.Message, fd: int) -> None:
        try:
            wire.send(self._sock, {"reply": message["id"]}, (fd,))
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            wire.send(self._sock, {"reply": message["id"], "errno": error.errno})
        finally:
            os.close(fd)

    def _kill_tree(self, pid: int, since: int) -> None:
        killed: set[int] = set()
        deadline = time.monotonic() + _DYING_S
        passes = 0
        while passes < _KILL_PASSES:
            victims = started_since(pid, since, spare=set(self._children))
            if not victims or (killed.issuperset(victims) and time.monotonic() > deadline):
                return
            # On a busy machine the killed need a while to die; only new ones tell that it forks on.
            passes += not killed.issuperset(victims)
            killed.update(victims)
            for victim in victims:
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.001)
            # Statuses of our own children must not be lost here, so reap as always.
            self._reap()
        # It forks faster than we look: one call ends every process but this one, kill(2).
        os.kill(-1, signal.SIGKILL)

    def _stop_all(self) -> None:
        """Stop every process that is not stopped already, until none is found running: nobody writes then."""
        for _ in range(_KILL_PASSES):
            running = [pid for pid in self.others() if pid not in self._stopped]
            if not running:
                return
            for pid in running:
                try:
                    os.kill(pid, signal.SIGSTOP)
                    self._stopped.add(pid)
                except ProcessLookupError:
                    continue
            time.sleep(0.0005)

    def others(self) -> list[int]:
        """All processes inside but this one that run or wait; a mode without a pid namespace knows better."""
        return others()

    def _continue_all(self) -> None:
        for pid in self._stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
        self._stopped.clear()

    def _open_terminal(self, message: wire.Message) -> None:
        try:
            fd = terminal.open_master(self._root)
        except OSError as error:
            wire.send(self._sock, {"reply": message["id"], "errno": error_number(error)})
            return
        self._reply_with(message, fd)

    def _open(self, path: str, flags: int, mode: int = 0) -> int:
        # Magic links (/proc/N/fd) could name objects of other mount namespaces, proc_pid_fd(5).
        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
        fd = syscalls.openat2(self._root, path, flags, mode=mode, resolve=resolve)
        # /proc/self would be this process, which may read more of itself than the agent, proc_pid_maps(5).
        if os.fstat(fd).st_dev == self._proc_device:
            os.close(fd)
            raise OSError(errno.EACCES, "files of /proc are read by commands only")
        return fd


def _tick(since_s: float) -> int:
    """A time of CLOCK_BOOTTIME in clock ticks, as /proc/PID/stat counts."""
    return int(since_s * _TICKS)


def _enter(cwd: str, fallback: str | None) -> tuple[int, str] | None:
    """Change directory for the child to inherit (posix_spawn has no such action); a problem or None."""
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        if fallback is None:
            return 126, f"{cwd!r}: {error}"
        try:
            os.chdir(fallback)
        except OSError:
            os.chdir("/")
    return None


def _posix_spawn(
    argv: list[str], env: dict[str, str], actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]]
) -> int:
    path = _find(argv[0], env.get("PATH", "/usr/bin:/bin"))
    try:
        return _spawn_path(path, argv, env, actions)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        return _spawn_path("/bin/sh", ["sh", path, *argv[1:]], env, actions)


def _spawn_path(
    path: str,
    argv: list[str],
    env: dict[str, str],
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]],
) -> int:
    try:
        return os.posix_spawn(
            path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_RESET_SIGNALS
        )
    finally:
        os.chdir("/")


def _find(program: str, search: str) -> str:
    if "/" in program:
        return program
    for directory in search.split(":"):
        path = os.path.join(directory or ".", program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise FileNotFoundError(errno.ENOENT, "command not found", program)
