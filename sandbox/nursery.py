"""Clones the children that become sandboxes: namespaces, cgroup, id maps, none of the helper's descriptors.

Part of the helper. What a child does with its new life is in `sandbox.start`.
"""

import errno
import os
import signal
import socket

from sandbox import namespaces, syscalls, wire
from sandbox.cgroup import Cgroups, Doors
from sandbox.stage import Stage, Tree
from sandbox.template import Template


class Member:
    """One process that waits for its request, and later the first process of a sandbox."""

    __slots__ = ("base", "directory", "disk", "mounts", "name", "park", "pid", "userns")

    def __init__(
        self, pid: int, park: socket.socket, directory: str, base: int | None, userns: int, mounts: int
    ) -> None:
        self.pid = pid
        """Its process id outside."""
        self.park = park
        """Where its request is sent; closed once it is."""
        self.directory = directory
        """Name of its cgroup directories."""
        self.base = base
        """Its root's id outside where ids are shifted, else None."""
        self.userns = userns
        """Descriptor of its user namespace, to idmap its trees with; -1 where ids are not shifted."""
        self.mounts = mounts
        """Descriptor of its mount namespace, to attach its trees in."""
        self.name = ""
        """The owner's name for the sandbox, once it is one."""
        self.disk = ""
        """Host directory of its disk upper, or ''."""

    def let_go(self) -> None:
        """Close what was needed until it started. Idempotent."""
        self.park.close()
        for fd in (self.userns, self.mounts):
            if fd >= 0:
                os.close(fd)
        self.userns = self.mounts = -1


class Nursery:
    """Makes members over the helper's cgroups and staging area."""

    def __init__(self, cgroups: Cgroups, stage: Stage, program: bytes, *, is_root: bool) -> None:
        self._cgroups = cgroups
        self._stage = stage
        self._template = Template(stage.directory, program)
        self._serial = 0
        self._is_root = is_root
        # Helpers of one machine do not know each other: a random start keeps their sandboxes' ids apart.
        self._first = int.from_bytes(os.urandom(2))
        self._own_mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def make(self, *, shifted: bool, own_network: bool, base: int | None = None) -> Member:
        """Clone a child that prepares itself and waits for its request. Its ids are shifted to `base`, or
        to some that no other sandbox has. Raises OSError."""
        self._serial += 1
        directory = f"s{self._serial}"
        if shifted and base is None:
            base = namespaces.shift(self._first + self._serial)
        self._cgroups.create(directory)
        ours, theirs = wire.pair()
        doors = self._cgroups.doors(directory)
        release_read, release_write = os.pipe2(os.O_CLOEXEC)
        pid = 0
        try:
            pid = self._clone(directory, doors, (theirs.fileno(), release_read), base, own_network)
            member = self._receive(pid, ours, directory, base)
            self.attach(member, self._stage.fixed(member.userns, network=not own_network))
            os.write(release_write, b"g")
            return member
        except OSError:
            ours.close()
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self._cgroups.remove(directory)
            raise
        finally:
            doors.close()
            os.close(release_read)
            os.close(release_write)
            theirs.close()

    def _receive(self, pid: int, park: socket.socket, directory: str, base: int | None) -> Member:
        namespaces.write_maps(pid, base=base)
        flags = os.O_RDONLY | os.O_CLOEXEC
        userns = os.open(f"/proc/{pid}/ns/user", flags) if base is not None else -1
        return Member(pid, park, directory, base, userns, os.open(f"/proc/{pid}/ns/mnt", flags))

    def attach(self, member: Member, trees: list[Tree]) -> None:
        """Attach detached mounts to slots of the staging area as the member sees it; closes them.

        From inside it would be refused a mount that was made outside, so the helper goes there, setns(2)."""
        try:
            syscalls.setns(member.mounts, syscalls.CLONE_NEWNS)
            try:
                for tree, slot in trees:
                    syscalls.move_mount(tree, os.path.join(self._stage.directory, slot))
            finally:
                syscalls.setns(self._own_mounts, syscalls.CLONE_NEWNS)
        finally:
            for tree, _ in trees:
                os.close(tree)

    def _clone(
        self, directory: str, doors: Doors, fds: tuple[int, int], base: int | None, own_network: bool
    ) -> int:
        request = {
            "flags": namespaces.flags(own_network=own_network),
            "base": base,
            "own_network": own_network,
            "host_root": base is None and self._is_root,
            "into": doors.into >= 0,
        }
        passed = (*fds, *doors.tasks)
        if doors.into < 0:
            return self._template.clone(request, passed)
        try:
            return self._template.clone(request, (*passed, doors.into))
        except OSError as error:
            # A filter around us may know no clone3; before 5.7 the flag is unknown.
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG):
                raise
        pid = self._template.clone({**request, "into": False}, passed)
        self._cgroups.push(directory, pid)
        return pid
