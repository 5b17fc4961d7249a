"""The helper: a small single-threaded process that makes sandboxes for one owner.

Forking from the owner would copy the page tables of a large heap and its threads' locks; this process is
small and has neither. To stay small it and all it imports do without `dataclasses`, `shutil` and `platform`.
It ends, and everything it made with it, when the owner dies or closes the socket. Started by `sandbox.mini`.
"""

import gc
import os
import select
import signal
import socket
import sys

from sandbox import namespaces, overlay, seccomp, syscalls, wire
from sandbox.cgroup import Cgroups
from sandbox.nursery import Member, Nursery
from sandbox.pool import Pool
from sandbox.stage import Stage, Tree


def main() -> None:
    """Entry: argv is CONTROL_FD OWNER_PID STATE_DIR POOL_SIZE MODE."""
    control = socket.socket(fileno=int(sys.argv[1]))
    owner, state, pool_size = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    # A pidfd rather than PR_SET_PDEATHSIG: that fires when the owner's *thread* ends, prctl(2).
    owner_fd = os.pidfd_open(owner)
    if os.getppid() != owner:
        return
    # A collection in a forked child would write to, and so copy, every page that it shares with us.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        # Here once for all sandboxes: what they fork from shows neither our paths nor our environment.
        namespaces.scrub_process_strings(b"minisandbox")
        helper = Helper(control, owner_fd, state, pool_size, sys.argv[5])
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
        namespaces.write_maps("self", base=None, outside_uid=uid, outside_gid=gid)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        return False, -1
    syscalls.unshare(syscalls.CLONE_NEWNS)
    # Slave, not private: what the host unmounts must not stay busy in here. Nothing of ours goes back.
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    # Keeps capabilities when the effective user changes for a moment, see `Nursery`, capabilities(7).
    syscalls.prctl(syscalls.PR_SET_SECUREBITS, syscalls.SECBIT_NO_SETUID_FIXUP)
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

    def __init__(
        self, control: socket.socket, owner_fd: int, state: str, pool_size: int, wanted: str
    ) -> None:
        self._control = control
        self._owner_fd = owner_fd
        self._sandboxes: dict[int, Member] = {}
        """pid of a sandbox's first process -> what is known of it."""
        self._outside_uid = os.geteuid()
        self._cgroups = Cgroups(os.path.basename(state))
        self._state = state
        shifted, userns = _enter_private_mounts(state)
        self._shifted = shifted
        directory = os.path.join(state, "stage")
        os.mkdir(directory, 0o711)
        skeletons = os.path.join(state, "skeletons")
        self._stage = Stage(directory, skeletons=skeletons, idmap_userns=userns)
        self._way = overlay.choose(wanted, self._stage, state, userns)
        program = seccomp.build(syscalls.machine())
        self._nursery = Nursery(self._cgroups, self._stage, program, is_root=self._outside_uid == 0)
        self._pool = Pool(lambda: self._nursery.make(shifted=shifted, own_network=True), pool_size)
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the owner decides
        wire.send(
            control,
            {
                "hello": True,
                "outside_uid": namespaces.SHIFT_BASE if shifted else self._outside_uid,
                "shifted": shifted,
                "mode": self._way.mode,
                "upper": self._way.upper,
                "mode_reason": self._way.reason,
                "cgroup_version": self._cgroups.version,
                "controllers": list(self._cgroups.controllers),
                "cgroup_directories": sorted(set(self._cgroups.bases.values())),
            },
        )

    def serve(self) -> None:
        """Until the owner is gone."""
        poller = select.poll()
        for fd in (self._control.fileno(), self._owner_fd, self._wake_read):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(self._pool.wait_ms())}
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
            if ready:
                self._pool.postpone()
            else:
                self._pool.refill()

    def shut_down(self) -> None:
        """Kill every sandbox, wait, remove the cgroups."""
        self._control.close()
        for pid in self._sandboxes:
            os.kill(pid, signal.SIGKILL)
        for member in [*self._sandboxes.values(), *self._pool.empty()]:
            os.waitpid(member.pid, 0)
            self._cgroups.remove(member.directory)
        self._cgroups.remove_all()

    def _handle(self, message: wire.Message, fds: list[int]) -> None:
        match message["op"]:
            case "open":
                self._reap()  # a member that died since must not be taken
                self._open(message, socket.socket(fileno=fds[0]), fds[1:])
            case "close":
                self._close(message["name"])
            case other:
                raise ValueError(f"unknown operation {other}")

    def _close(self, name: str) -> None:
        for pid, member in self._sandboxes.items():
            if member.name == name:
                os.kill(pid, signal.SIGKILL)
                return
        wire.send(self._control, {"closed": name, "reason": ""})  # it never started, or was reaped before

    def _open(self, request: wire.Message, sock: socket.socket, extra: list[int]) -> None:
        with sock:
            try:
                self._start(request, sock, extra)
            except BrokenPipeError:
                # The member died this moment. End of file without a word tells the owner to ask again.
                return
            except (OSError, ValueError) as error:  # ValueError: a path no system call takes
                wire.send(sock, {"fatal": str(error)})
            finally:
                for fd in extra:
                    os.close(fd)

    def _start(self, request: wire.Message, sock: socket.socket, extra: list[int]) -> None:
        own_network = request["network"] == "none"
        binds = [source for source, _, _ in request["binds"]]
        # A layer on an overlay or network file system: this sandbox's root keeps our id outside.
        shifted = self._shifted and self._stage.can_shift(request["layers"], binds)
        if request["fork_of"]:
            member = self._make_like(request["fork_of"], own_network=own_network)
        elif own_network and shifted == self._shifted:
            member = self._pool.take()
        else:
            member = self._nursery.make(shifted=shifted, own_network=own_network)
        member.name = request["name"]
        self._sandboxes[member.pid] = member
        try:
            self._equip(member, request, sock)
            wire.send(member.park, request, (sock.fileno(), *extra))
        except OSError:
            os.kill(member.pid, signal.SIGKILL)  # reaped, and its cgroup removed, by the loop
            raise
        finally:
            member.let_go()

    def _equip(self, member: Member, request: wire.Message, sock: socket.socket) -> None:
        """Limits and trees of one sandbox, and what the owner may know of it while the sandbox may not."""
        limits = request["limits"]
        self._cgroups.limit(
            member.directory,
            memory_bytes=limits["memory_bytes"],
            pids=limits["pids"],
            cpu_weight=limits["cpu_weight"],
        )
        layers, binds, trees = self._stage.requested(
            request["layers"], request["binds"], member.userns, proxied=bool(request["proxy_port"])
        )
        request["layers"], request["binds"], request["disk_upper"] = layers, binds, None
        request["mode"] = self._way.mode
        if "disk" in (request["upper"], self._way.upper):
            trees.append(self._make_disk(member))
            request["disk_upper"] = trees[-1][1]
        self._nursery.attach(member, trees)
        request["controllers"] = list(self._cgroups.controllers)
        request["outside_uid"] = self._outside_uid if member.base is None else member.base
        outside = {"pid": member.pid, "cgroups": self._cgroups.directories(member.directory)}
        base = self._stage.skeleton(network=request["network"] != "none")
        wire.send(sock, {"outside": outside, "disk": member.disk, "base": base})

    def _make_like(self, name: str, *, own_network: bool) -> Member:
        """A member with the ids of a sandbox: only so its first process may read that one's files."""
        for origin in self._sandboxes.values():
            if origin.name == name:
                shifted = origin.base is not None
                return self._nursery.make(shifted=shifted, own_network=own_network, base=origin.base)
        raise OSError("the sandbox to fork is gone")

    def _make_disk(self, member: Member) -> Tree:
        """A directory beside the stage for what the sandbox writes."""
        member.disk = os.path.join(self._state, f"disk-{member.directory}")
        os.mkdir(member.disk, 0o700)
        if member.base is not None:
            os.chown(member.disk, member.base, member.base)
        return self._stage.disk(member.disk)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            member = self._sandboxes.pop(pid, None) or self._pool.drop(pid)
            if member is None:
                continue
            reason = self._cgroups.why_killed(member.directory)
            self._cgroups.remove(member.directory)
            if member.name:
                wire.send(self._control, {"closed": member.name, "reason": reason})
