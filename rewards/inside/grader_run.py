"""The supervisor of a test run inside the sandbox: starts it, times it, and writes the signed results.

Runs with the environment's own Python (3.6 or newer), started by grader_boot.py, which read the request; no
code under test has run by then. Tests run in a child that reports each event, signed, through a pipe. A child
that hangs in a test, or dies in one, costs that test only: all it started is killed and a new child runs the
rest. The child can kill or stop this process, but then there are no results; it cannot make it wait, nor read
it (it is not dumpable).
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
import ctypes
import errno
import json
import os
import signal
import sys
import time

from grader_channel import blake2b  # pyright: ignore
from grader_child import PR_SET_DUMPABLE, Child, is_any_stopped, kill_all  # pyright: ignore

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
MAX_CHILDREN = 25
TICK_S = 0.05
SHORT_TICK_S = 0.001
LATE_S = 0.3
NOT_STARTED, MISSING, FULL = 98, 97, 96
WORST_FIRST = ("failed", "error", "crashed", "timeout", "xpassed", "xfailed", "skipped", "passed")


class Run:
    """What is known so far, over all children."""

    def __init__(self, request, vault):
        self.request = request
        self.vault = vault
        self.started = time.monotonic()
        self.deadline = self.started + request["timeout_s"]
        self.statuses = {}
        self.aliases = {}
        self.scopes = set()
        self.done = {}
        self.dead_files = []
        self.problems = []
        self.killed = []
        self.stopped = []
        self.finish = None
        self.ready = False
        self.timed_out = False
        self.late_s = 0.0
        self.children = 0
        self.disk_full = False

    def end(self, test_id, status, names=()):
        self.statuses.setdefault(test_id, []).append(status)
        self.done[test_id] = self.done.get(test_id, 0) + 1
        for name in names:
            if name != test_id:
                self.aliases.setdefault(name, set()).add(test_id)
        if status != "passed" and not self.disk_full:
            self.disk_full = is_full(self.request["workdir"])


def is_full(path):
    """Whether no room is left in the writable layer that holds `path`."""
    try:
        info = os.statvfs(path)
    except OSError:
        return False
    return info.f_blocks > 0 and info.f_bavail * info.f_frsize < 65536


def watch(run, child):
    """Follows one child to its end; returns "exited", "test limit" or "run limit"."""
    limit = run.request["test_timeout_s"]
    tick, now = TICK_S, time.monotonic()
    while True:
        if now >= run.deadline:
            return "run limit"
        if limit and child.current is not None and now - child.since >= limit:
            return "test limit"
        # A stream that ended is a process about to end: its end wakes nobody, so look often at first.
        tick = TICK_S if child.reader is not None else min(2 * tick, TICK_S)
        ended = child.wait(tick)
        before, now = now, time.monotonic()
        late = now - before - tick
        if late > LATE_S:
            run.late_s += late
            # Time that this process did not get either is not held against the test.
            child.since += late
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        child.read()
        if pid:
            child.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
            return "exited"
        if ended:
            tick = SHORT_TICK_S


def supervise(run):
    """Children one after the other until one finishes."""
    while run.children < MAX_CHILDREN:
        run.children += 1
        child = Child(run, os.urandom(32))
        why = watch(run, child)
        if why != "exited" and is_any_stopped():
            run.stopped.append(child.current or "")
        kill_all()
        child.close()
        if why == "run limit":
            child.blame("timeout")
            run.timed_out = True
            return
        if why == "exited" and run.finish is not None:
            check_exit(run, child)
            return
        if not run.ready:
            return
        if child.status == -signal.SIGKILL:
            run.killed.append(child.current or "")
        if not child.blame("timeout" if why == "test limit" else "crashed"):
            status = shell(child.status)
            run.problems.append("the test process ended with status %s outside any test" % status)
            return
    run.problems.append("the test process died too often")


def shell(status):
    """An exit status as a shell tells it."""
    return 128 - status if status is not None and status < 0 else status


def check_exit(run, child):
    expected, wrapped = run.finish[0], run.request["kind"] == "wrapped"
    if child.status != expected and not (wrapped and child.status and expected):
        text = "the test process ended with status %s, its runner said %s"
        run.problems.append(text % (shell(child.status), expected))


def write_results(run, key):
    status, agree, tampered = run.finish or (None, True, [])
    data = json.dumps({
        "statuses": {
            test_id: min(found, key=WORST_FIRST.index) for test_id, found in run.statuses.items()
        },
        "aliases": {name: sorted(ids) for name, ids in run.aliases.items()},
        "scopes": sorted(run.scopes),
        "exit_status": status,
        "finished": run.finish is not None,
        "counts_agree": agree,
        "tampered": tampered,
        "problems": run.problems[:20],
        "killed": run.killed,
        "stopped": run.stopped,
        "timed_out": run.timed_out,
        "late_s": run.late_s,
        "disk_full": run.disk_full,
        "children": run.children,
    }).encode()  # fmt: skip
    os.makedirs(os.path.dirname(run.request["result"]), exist_ok=True)
    handle = os.open(run.request["result"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    payload = blake2b(data, key=key, digest_size=32).hexdigest().encode() + b"\n" + data
    while payload:
        payload = payload[os.write(handle, payload) :]
    os.close(handle)


def hide(request):
    """The command line, where the code under test could look, becomes that of a plain pytest."""
    if request["kind"] == "wrapped":
        return
    words = ["python", "-m", "pytest" if request["kind"] == "pytest" else "unittest"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = words
    with open("/proc/self/stat", "rb") as file:  # proc(5): arg_start and arg_end are fields 48 and 49
        fields = file.read().rsplit(b")", 1)[1].split()
    start, size = int(fields[45]), int(fields[46]) - int(fields[45])
    text = "\0".join(words).encode() + b"\0"
    if start and size > len(text):
        ctypes.memmove(start, text.ljust(size, b"\0"), size)


def main(request, vault):
    """Runs the tests and writes the results, signed with the key that lies in the pipe `vault`."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "PYTHONPATH", "COV_"))]:
        del os.environ[name]
    missing = [path for path in request["must_exist"] if not os.access(path, os.F_OK)]
    if missing:
        text = "test files are missing: " + ", ".join(missing) + "\n"
        os.write(1, text.encode("utf-8", "surrogateescape"))
        os._exit(MISSING)
    hide(request)
    library = ctypes.CDLL(None)
    library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    run = Run(request, vault)
    supervise(run)
    if not run.ready:
        os._exit(NOT_STARTED)
    try:
        write_results(run, bytes.fromhex(os.read(vault, 1000).decode()))
    except OSError as error:
        os._exit(FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
    os._exit(0)
