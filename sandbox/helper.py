"""The helper: a small single-threaded process that makes sandboxes for one owner.

Forking from the owner would copy the page tables of a large heap and its threads' locks; this process is
small and has neither. It ends, and everything it made with it, when the owner dies or closes the socket.
Started by `sandbox.mini`; imports nothing heavy.
"""

import os
import select
import signal
import socket
import sys

from sandbox import namespaces, start, syscalls, wire
from sandbox.cgroup import Cgroups
from sandbox.stage import NotIdmappableError, Stage


def main() -> None:
    """Entry: argv is CONTROL_FD OWNER_PID STATE_DIR."""
    control = socket.socket(fileno=int(sys.argv[1]))
    owner, state = int(sys.argv[2]), sys.argv[3]
    # A pidfd rather than PR_SET_PDEATHSIG: that fires when the owner's *thread* ends, prctl(2).
    owner_fd = os.pidfd_open(owner)
    if os.getppid() != owner:
        return
    try:
        helper = Helper(control, owner_fd, os.path.basename(state), state)
    except OSError as error:
        wire.send(control, {"fatal": str(error)})
        return
    try:
        helper.serve()
    finally:
        helper.shut_down()


def _enter_private_mounts(state: str) -> tuple[bool, int]:
    """Leave the host's mount namespace. Returns (ids are shifted, descriptor of the idmap)."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        namespaces.write_maps("self", shifted=False, outside_uid=uid, outside_gid=gid)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        return False, -1
    syscalls.unshare(syscalls.CLONE_NEWNS)
    # Slave, not private: what the host unmounts must not stay busy in here. Nothing of ours goes back.
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    try:
        userns = namespaces.idmap_userns()
        tree = syscalls.open_tree(state)
        try:
            syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_IDMAP, userns)
        finally:
            os.close(tree)
    except OSError:
        # Root of a container with few ids, or a file system without idmapped mounts: map root to itself.
        return False, -1
    return True, userns


class Helper:
    """State of the helper."""

    def __init__(self, control: socket.socket, owner_fd: int, owner: str, state: str) -> None:
        self._control = control
        self._owner_fd = owner_fd
        self._sandboxes: dict[int, str] = {}
        """pid of a sandbox's init -> name."""
        self._outside_uid = os.geteuid()
        self._cgroups = Cgroups(owner)
        self._state = state
        shifted, userns = _enter_private_mounts(state)
        self._stages = {shifted: self._make_stage(shifted, userns)}
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_write = wake_write
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the owner decides
        wire.send(
            control,
            {
                "hello": True,
                "outside_uid": namespaces.SHIFT_BASE if shifted else self._outside_uid,
                "shifted": shifted,
                "cgroup_version": self._cgroups.version,
                "controllers": list(self._cgroups.controllers),
                "cgroup_directories": sorted(set(self._cgroups.bases.values())),
            },
        )

    def _make_stage(self, shifted: bool, userns: int) -> Stage:
        directory = os.path.join(self._state, "shifted" if shifted else "plain")
        os.mkdir(directory, 0o711)
        return Stage(directory, shifted=shifted, idmap_userns=userns)

    def serve(self) -> None:
        """Until the owner is gone."""
        poller = select.poll()
        for fd in (self._control.fileno(), self._owner_fd, self._wake_read):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._owner_fd in ready:
                return
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._control.fileno() in ready:
                received = wire.receive(self._control)
                if received is None:
                    return
                self._handle(*received)

    def shut_down(self) -> None:
        """Kill every sandbox, wait, remove the cgroups."""
        self._control.close()
        for pid in self._sandboxes:
            os.kill(pid, signal.SIGKILL)
        for pid, name in self._sandboxes.items():
            os.waitpid(pid, 0)
            self._cgroups.remove(name)
        self._cgroups.remove_all()

    def _handle(self, message: wire.Message, fds: list[int]) -> None:
        match message["op"]:
            case "open":
                self._open(message, socket.socket(fileno=fds[0]))
            case "close":
                self._close(message["name"])
            case other:
                raise ValueError(f"unknown operation {other}")

    def _close(self, name: str) -> None:
        for pid, each in self._sandboxes.items():
            if each == name:
                os.kill(pid, signal.SIGKILL)
                return
        wire.send(self._control, {"closed": name})  # it never started, or was reaped before

    def _open(self, request: wire.Message, sock: socket.socket) -> None:
        with sock:
            try:
                self._start(request, sock)
            except (OSError, ValueError) as error:  # ValueError: a path no system call takes
                wire.send(sock, {"fatal": str(error)})

    def _start(self, request: wire.Message, sock: socket.socket) -> None:
        name: str = request["name"]
        shifted = self._complete(request)
        self._cgroups.create(
            name, memory_bytes=request["limits"]["memory_bytes"], pids=request["limits"]["pids"]
        )
        release_read, release_write = os.pipe2(os.O_CLOEXEC)
        own_network = request["network"] == "none"
        pid = 0
        try:
            pid = syscalls.clone(namespaces.flags(own_network=own_network))
            if pid == 0:
                self._child(request, sock, shifted, release_read, release_write)
            self._sandboxes[pid] = name
            self._cgroups.enter(name, pid)
            namespaces.write_maps(pid, shifted=shifted)
            os.write(release_write, b"g")
        except OSError:
            if pid:
                os.kill(pid, signal.SIGKILL)  # reaped, and its cgroup removed, by the loop
            else:
                self._cgroups.remove(name)
            raise
        finally:
            os.close(release_read)
            os.close(release_write)

    def _complete(self, request: wire.Message) -> bool:
        """Replace host paths by names in a staging area; returns whether ids are shifted in it."""
        shifted = True in self._stages
        try:
            staged = self._stages[shifted].resolve(request["layers"], request["binds"])
        except NotIdmappableError:
            # A layer on an overlay or network file system: this sandbox's root keeps our id outside.
            shifted = False
            if shifted not in self._stages:
                self._stages[shifted] = self._make_stage(shifted, -1)
            staged = self._stages[shifted].resolve(request["layers"], request["binds"])
        request["layers"], request["binds"] = staged
        request["controllers"] = list(self._cgroups.controllers)
        request["outside_uid"] = namespaces.SHIFT_BASE if shifted else self._outside_uid
        return shifted

    def _child(
        self, request: wire.Message, sock: socket.socket, shifted: bool, release: int, release_write: int
    ) -> None:
        # The write end first: this process must see end of file if the helper dies before releasing it.
        os.close(release_write)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (self._control.detach(), self._owner_fd, self._wake_read, self._wake_write):
            os.close(fd)
        # Until the maps are written this process has no id inside, user_namespaces(7).
        if os.read(release, 1) != b"g":
            os._exit(1)
        os.close(release)
        stage = self._stages[shifted]
        skeleton = stage.skeleton(network=request["network"] == "host")
        start.run(sock, request, stage=stage.directory, skeleton=skeleton, shifted=shifted)

    def _reap(self) -> None:
        while self._sandboxes:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name = self._sandboxes.pop(pid)
            self._cgroups.remove(name)
            wire.send(self._control, {"closed": name})
