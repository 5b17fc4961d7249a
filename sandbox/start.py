"""From a cloned child to a sandbox's first process: identity, root, limits, filter, in that order.

Every step needs privileges that a later one gives up, so the order is the security of it. What the first
process does afterwards is in `sandbox.init`; how the root is mounted is in `sandbox.mounts`.
"""

import os
import socket
from typing import NoReturn

from sandbox import mounts, namespaces, seccomp, syscalls, wire
from sandbox.init import Init


def run(sock: socket.socket, request: wire.Message, *, stage: str, skeleton: str, shifted: bool) -> NoReturn:
    """Body of the cloned child. Never returns; `request` was completed by the helper."""
    code = 1
    try:
        upper = _build(request, stage=stage, skeleton=skeleton, shifted=shifted)
        wire.send(sock, {"ready": True, "outside_uid": request["outside_uid"]}, (upper,))
        os.close(upper)
        code = Init(sock).serve()
    except BaseException as error:  # noqa: BLE001 - the boundary of a process: reported, then it ends
        try:
            wire.send(sock, {"fatal": f"{type(error).__name__}: {error}"})
        except OSError:
            code = 2
    finally:
        os._exit(code)


def _build(request: wire.Message, *, stage: str, skeleton: str, shifted: bool) -> int:
    namespaces.become_root_inside(shifted=shifted)
    namespaces.scrub_process_strings()
    socket.sethostname("sandbox")
    if request["network"] == "none":
        namespaces.bring_up_loopback()
    os.umask(0o022)
    limits = request["limits"]
    upper = mounts.build_root(
        stage,
        layers=request["layers"],
        skeleton=skeleton,
        binds=[(source, target) for source, target in request["binds"]],
        disk_bytes=limits["disk_bytes"],
    )
    os.makedirs(request["workdir"], exist_ok=True)
    controllers: list[str] = request["controllers"]
    namespaces.set_limits(
        open_files=limits["open_files"],
        pids=None if "pids" in controllers else limits["pids"],
        memory_bytes=None if "memory" in controllers else limits["memory_bytes"],
    )
    namespaces.drop_privileges()
    # Last: everything above needs calls that the filter denies.
    seccomp.install(seccomp.build(syscalls.machine()))
    return upper
