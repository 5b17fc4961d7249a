"""Clones the children that become sandboxes: namespaces, cgroup, id maps, none of the helper's descriptors.

Part of the helper. What a child does with its new life is in `sandbox.start`.
"""

import errno
import os
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from sandbox import namespaces, start, syscalls, wire
from sandbox.cgroup import Cgroups, Doors


@dataclass(slots=True)
class Member:
    """One process that waits for its request, and later the first process of a sandbox."""

    pid: int
    """Its process id outside."""
    park: socket.socket
    """Where its request is sent; closed once it is."""
    directory: str
    """Name of its cgroup directories."""
    shifted: bool
    """Whether ids are shifted in it."""
    name: str = ""
    """The owner's name for the sandbox, once it is one."""
    disk: str = ""
    """Host directory of its disk upper, or ''."""


class Nursery:
    """Makes members over the helper's cgroups and one staging area each time."""

    def __init__(self, cgroups: Cgroups, program: bytes) -> None:
        self._cgroups = cgroups
        self._program = program
        self._serial = 0

    def make(self, stage: str, *, shifted: bool, own_network: bool) -> Member:
        """Clone a child that prepares itself and waits for its request. Raises OSError."""
        self._serial += 1
        directory = f"s{self._serial}"
        self._cgroups.create(directory)
        ours, theirs = wire.pair()
        doors = self._cgroups.doors(directory)
        release_read, release_write = os.pipe2(os.O_CLOEXEC)
        # The child's working directory becomes the copy in its own mount namespace: no path is walked there.
        os.chdir(stage)
        pid = 0
        try:
            pid = self._clone(namespaces.flags(own_network=own_network), doors, directory)
            if pid == 0:
                _keep_only((theirs.fileno(), release_read, *doors.tasks))
                start.run(
                    start.Embryo(
                        park=theirs,
                        doors=Doors(doors.tasks, -1),
                        release=release_read,
                        shifted=shifted,
                        own_network=own_network,
                        filter=self._program,
                    )
                )
            namespaces.write_maps(pid, shifted=shifted, outside_uid=0, outside_gid=0)
            os.write(release_write, b"g")
            return Member(pid, ours, directory, shifted)
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


def _keep_only(descriptors: Iterable[int]) -> None:
    """Close all else, above all other sandboxes' sockets. Handlers of the helper's signals go too."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    low = 3
    for fd in sorted(descriptors):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)
