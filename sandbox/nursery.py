"""Clones the children that become sandboxes: namespaces, cgroup, id maps, none of the helper's descriptors.

Part of the helper. What a child does with its new life is in `sandbox.start`.
"""

import errno
import os
import signal
import socket
from dataclasses import dataclass

from sandbox import namespaces, start, syscalls, wire
from sandbox.cgroup import Cgroups, Doors
from sandbox.stage import Stage, Tree


@dataclass(slots=True)
class Member:
    """One process that waits for its request, and later the first process of a sandbox."""

    pid: int
    """Its process id outside."""
    park: socket.socket
    """Where its request is sent; closed once it is."""
    directory: str
    """Name of its cgroup directories."""
    base: int | None
    """Its root's id outside where ids are shifted, else None."""
    userns: int
    """Descriptor of its user namespace, to idmap its trees with; -1 where ids are not shifted."""
    mounts: int
    """Descriptor of its mount namespace, to attach its trees in."""
    name: str = ""
    """The owner's name for the sandbox, once it is one."""
    disk: str = ""
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
        self._program = program
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
        # The child's working directory becomes the copy in its own mount namespace: no path is walked there.
        os.chdir(self._stage.directory)
        pid = 0
        try:
            pid = self._clone_as(base, namespaces.flags(own_network=own_network), doors, directory)
            if pid == 0:
                start.run(
                    start.Embryo(
                        park=theirs,
                        doors=Doors(doors.tasks, -1),
                        release=release_read,
                        shifted=shifted,
                        host_root=not shifted and self._is_root,
                        own_network=own_network,
                        filter=self._program,
                    )
                )
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

    def _clone_as(self, base: int | None, flags: int, doors: Doors, directory: str) -> int:
        """Clone as the user that the sandbox will be outside: whoever makes a user namespace is charged for
        what is used in it, user_namespaces(7), and that must be neither root nor a neighbour."""
        if base is None:
            return self._clone(flags, doors, directory)
        pid = -1
        os.seteuid(base)
        try:
            pid = self._clone(flags, doors, directory)
            return pid
        finally:
            # Not in the child, which has no ids at all until its maps are written.
            if pid != 0:
                os.seteuid(0)

    def _clone(self, flags: int, doors: Doors, directory: str) -> int:
        if doors.into < 0:
            return syscalls.clone(flags)
        try:
            return syscalls.clone_into(flags, doors.into)
        except OSError as error:
            # A filter around us may know no clone3; before 5.7 the flag is unknown.
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG):
                raise
        pid = syscalls.clone(flags)
        if pid:
            self._cgroups.push(directory, pid)
        return pid
