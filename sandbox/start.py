"""From a cloned child to a sandbox's first process: identity, root, limits, filter, in that order.

Every step needs privileges that a later one gives up, so the order is the security of it. The child makes
all that no request decides, then waits for its request; in a pool it waits long. What the first process does
afterwards is in `sandbox.init`; how the root is mounted is in `sandbox.mounts`.
"""

import os
import signal
import socket
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from sandbox import cgroup, mounts, namespaces, seccomp, syscalls, wire
from sandbox.init import Init

SPARE_NAME, SANDBOX_NAME = b"spare", b"sandbox"
"""Names of the process before and after its request came, by which `sandbox.listing` tells them apart."""


class Embryo(NamedTuple):
    """What the helper gives to a new child."""

    park: socket.socket
    """Where its request will come."""
    doors: cgroup.Doors
    """Its cgroups."""
    release: int
    """Read end of a pipe: a byte once the id maps are written."""
    shifted: bool
    """Whether ids are shifted."""
    host_root: bool
    """Whether its root keeps the host root's id."""
    own_network: bool
    """Whether it has a network namespace of its own."""
    filter: bytes
    """The seccomp program, built once by the helper."""


def run(embryo: Embryo) -> NoReturn:
    """Body of the cloned child. Never returns."""
    code = 1
    sock: socket.socket | None = None
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        keep_only((embryo.park.fileno(), embryo.release, *embryo.doors.tasks))
        problem = _prepare(embryo)
        received = wire.receive(embryo.park)
        if received is None:
            os._exit(0)  # the helper shuts down and never needed this one
        request, fds = received
        embryo.park.close()
        sock = socket.socket(fileno=fds[0])
        if problem is not None:
            raise problem
        root = _build(request, fds[1:])
        _hand_over(sock, root, request)
        _confine(embryo, request)
        wire.send(sock, {"ready": True, "outside_uid": request["outside_uid"]})
        code = Init(sock).serve()
    except BaseException as error:  # noqa: BLE001 - the boundary of a process: reported, then it ends
        code = _report(sock, error)
    finally:
        os._exit(code)


def keep_only(descriptors: Iterable[int]) -> None:
    """Close all else, above all other sandboxes' sockets. Handlers of the helper's signals go too."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    low = 3
    for fd in sorted(descriptors):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)


def _report(sock: socket.socket | None, error: BaseException) -> int:
    if sock is None:
        return 3
    text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    try:
        wire.send(sock, {"fatal": text})
    except OSError:
        return 2
    return 1


def _prepare(embryo: Embryo) -> Exception | None:
    """Everything before the request; what went wrong is told when there is somebody to tell."""
    try:
        syscalls.set_name(SPARE_NAME)
        cgroup.walk_in(embryo.doors)
        # Until the maps are written this process has no id inside, user_namespaces(7).
        if os.read(embryo.release, 1) != b"g":
            os._exit(3)
        embryo.doors.close()
        os.close(embryo.release)
        namespaces.become_root_inside(shifted=embryo.shifted)
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)
        socket.sethostname("sandbox")
        if embryo.own_network:
            namespaces.bring_up_loopback()
        os.umask(0o022)
        mounts.prepare(host_root=embryo.host_root, own_network=embryo.own_network)
        namespaces.narrow_privileges()
    except OSError as error:
        return error
    return None


def _build(request: wire.Message, fds: list[int]) -> mounts.Root:
    syscalls.set_name(SANDBOX_NAME)
    root = mounts.finish(
        mounts.RootPlan(
            layers=request["layers"],
            binds=[(source, target) for source, target in request["binds"]],
            disk_bytes=request["limits"]["disk_bytes"],
            disk_upper=request["disk_upper"],
            copy_of=fds[0] if fds else -1,
            mode=request["mode"],
            workdir=request["workdir"],
        )
    )
    for fd in fds:
        os.close(fd)
    os.makedirs(request["workdir"], exist_ok=True)
    return root


def _hand_over(sock: socket.socket, root: mounts.Root, request: wire.Message) -> None:
    """What the owner gets: the upper layer, and the proxy's socket if any. Before the limit on open files is
    lowered, for descriptors in flight are counted per user against the sender's own limit, unix(7): a
    neighbour of an ordinary user could otherwise keep a new sandbox from starting."""
    handed = [root.upper]
    if request["proxy_port"]:
        handed.append(namespaces.listen_on_loopback(request["proxy_port"]))
    wire.send(sock, {"root": True, "complete": root.complete, "covered": root.covered}, tuple(handed))
    for fd in handed:
        os.close(fd)


def _confine(embryo: Embryo, request: wire.Message) -> None:
    limits = request["limits"]
    controllers: list[str] = request["controllers"]
    namespaces.set_limits(
        open_files=limits["open_files"],
        pids=None if "pids" in controllers else limits["pids"],
        memory_bytes=None if "memory" in controllers else limits["memory_bytes"],
        file_bytes=limits["disk_bytes"] if request["disk_upper"] else None,
    )
    namespaces.drop_privileges()
    # Last: everything above needs calls that the filter denies.
    seccomp.install(embryo.filter)
