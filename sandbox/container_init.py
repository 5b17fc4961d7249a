"""The first process of a container: connects to its owner and then is `sandbox.init`'s loop.

Started as the container's command by a Python of the host that is bound into it, with nothing but the
standard library and this package. Namespaces and limits are the engine's; here its own traces are removed,
limits set that the engine does not know, and the system-call filter of MiniSandbox installed.
"""

import os
import signal
import socket
import sys

from sandbox import namespaces, seccomp, syscalls, wire
from sandbox.init import Init

HOME = "/.sandbox"
"""Where interpreter, package and socket are inside."""
SOCKET = HOME + "/link/socket"


def main() -> None:
    """Entry: argv is WORKDIR OPEN_FILES PROXY_PORT (0 for none)."""
    workdir, open_files, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    namespaces.scrub_process_strings(b"sandbox")
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(SOCKET)
    try:
        os.umask(0o022)
        os.chmod("/", 0o755)  # podman makes it 0555, and root has no capability to write there then
        os.makedirs(workdir, exist_ok=True)
        handed = (namespaces.listen_on_loopback(port),) if port else ()
        wire.send(sock, {"ready": True}, handed)
        for fd in handed:
            os.close(fd)
        namespaces.set_limits(open_files=open_files, pids=None, memory_bytes=None)
        # On top of the engine's own filter, which differs from engine to engine.
        seccomp.install(seccomp.build(syscalls.machine()))
    except OSError as error:
        wire.send(sock, {"fatal": str(error)})
        return
    sys.exit(Init(sock).serve())
