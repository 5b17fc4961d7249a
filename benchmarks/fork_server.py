"""A fork server that does the least any sandbox of namespaces must: the floor for start times.

Run as `python -I -S fork_server.py CONTROL_FD FLAGS REPOSITORY`, as small as the sandbox's own helper. For
each request (a descriptor to write to) it clones with FLAGS, writes the identity maps, and the child becomes
bash: no root of its own, no limits, no filter. FLAGS 0 is a plain fork.
"""

import gc
import os
import select
import signal
import socket
import sys

CONTROL, FLAGS = int(sys.argv[1]), int(sys.argv[2])
sys.path.insert(0, sys.argv[3])

from sandbox import syscalls, wire  # noqa: E402 - the path is an argument

ARGV = ["bash", "-c", "echo ok"]
MAP = "0 100000 65536\n"
ENV = {"PATH": "/usr/bin:/bin"}


def start(output: int) -> int:
    """Clone and let bash write to `output`; its pid."""
    if not FLAGS:
        pid = os.fork()
        if pid == 0:
            become_bash(output)
        return pid
    wait_read, wait_write = os.pipe()
    pid = syscalls.clone(FLAGS)
    if pid == 0:
        os.close(wait_write)
        if os.read(wait_read, 1) != b"g":
            os._exit(1)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        become_bash(output)
    for name in ("uid_map", "gid_map"):
        syscalls.write_setting(f"/proc/{pid}/{name}", MAP)
    os.write(wait_write, b"g")
    os.close(wait_read)
    os.close(wait_write)
    return pid


def become_bash(output: int) -> None:
    """Never returns."""
    os.dup2(output, 1)
    os.execve("/usr/bin/bash" if os.path.exists("/usr/bin/bash") else "/bin/bash", ARGV, ENV)  # noqa: PTH110


def serve() -> None:
    """Until the owner closes its end."""
    control = socket.socket(fileno=CONTROL)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, int] = {}
    # The owner's own code does not touch the heap either: no collection that dirties shared pages.
    gc.collect()
    gc.freeze()
    gc.disable()
    poller = select.poll()
    poller.register(CONTROL, select.POLLIN)
    poller.register(wake_read, select.POLLIN)
    wire.send(control, {"hello": True})
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if CONTROL in ready:
            received = wire.receive(control)
            if received is None:
                return
            message, fds = received
            children[start(fds[0])] = message["id"]
            os.close(fds[0])
        if wake_read in ready:
            os.read(wake_read, 4096)
            while children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                wire.send(control, {"exit": children.pop(pid), "status": status})


if __name__ == "__main__":
    serve()
