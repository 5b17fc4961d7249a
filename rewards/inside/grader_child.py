"""One process that runs tests, the stream of its signed reports, and the killing of all it started.

Part of the supervisor (grader_run.py).
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
import ctypes
import json
import os
import select
import signal
import sys
import time

from grader_channel import blake2b, make_send  # pyright: ignore

PR_SET_DUMPABLE = 4  # prctl(2)
FRAME_LIMIT = 64 << 20
READS = 64
PROBLEMS = 20
HEAD = 4 + 16


class Child:
    """One process that runs tests, and the stream of its reports."""

    def __init__(self, run, key):
        self.run = run
        self.key = key
        self.data = bytearray()
        self.count = 0
        self.current = None
        self.loading = False
        self.since = time.monotonic()
        self.status = None
        self.reader = None
        self.listener = None
        self.pid = self._start()

    def _message(self):
        request = dict(self.run.request, done=self.run.done, dead_files=self.run.dead_files)
        del request["result"]
        return request

    def _start(self):
        request = self._message()
        if request["kind"] == "wrapped":
            return self._start_wrapped(request)
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        pid = os.fork()
        if pid == 0:
            os.close(self.run.vault)
            os.close(self.reader)
            become_worker(request, writer, self.key)
        os.close(writer)
        return pid

    def _start_wrapped(self, request):
        import socket  # dear, and only needed here

        self.listener = socket.socket(socket.AF_UNIX)
        name = request["channel"] + str(self.run.children)
        self.listener.bind("\0" + name)
        self.listener.listen(8)
        del request["started"]
        self.hello = json.dumps(dict(request, key=self.key.hex())).encode() + b"\n"
        env = dict(os.environ, GRADER_CHANNEL=name, **request["env"])
        pid = os.fork()
        if pid == 0:
            try:
                leave_alone()
                os.execvpe(request["argv"][0], request["argv"], env)
            except BaseException as error:
                os.write(2, (str(error) + "\n").encode())
            os._exit(127)
        return pid

    def wait(self, limit_s):
        """Sleeps until the limit; less when the stream of reports has ended, which it returns, or somebody
        asks for one. Reports alone wake nobody: each would take a busy processor from the tests."""
        poller = select.poll()
        if self.reader is not None:
            poller.register(self.reader, 0)  # poll(2): POLLHUP comes unasked
        if self.listener is not None:
            poller.register(self.listener, select.POLLIN)
        found = [handle for handle, _ in poller.poll(limit_s * 1000)]
        if self.listener is not None and self.listener.fileno() in found:
            self.accept()
            return False
        return bool(found)

    def accept(self):
        """The first process to ask gets the request; another one is turned away and noted."""
        link, _ = self.listener.accept()
        if self.reader is None:
            link.sendall(self.hello)
            self.hello = b""
            self.reader = link.detach()
            os.set_blocking(self.reader, False)
        else:
            link.close()
            self.run.problems.append("more than one process asked for the report channel")

    def read(self):
        """What has come so far; no more than a pipe holds many times, so that a flood does not hold us."""
        for _ in range(READS):
            if self.reader is None:
                return
            try:
                part = os.read(self.reader, 1 << 20)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            if not part:
                os.close(self.reader)
                self.reader = None
                return
            self.data += part
            self._take_frames()

    def _take_frames(self):
        while len(self.data) >= HEAD:
            size = int.from_bytes(self.data[:4], "big")
            if size <= FRAME_LIMIT and len(self.data) < HEAD + size:
                return
            mac, body = bytes(self.data[4:HEAD]), bytes(self.data[HEAD : HEAD + size])
            del self.data[: HEAD + size]
            self.count += 1
            event = None
            if size <= FRAME_LIMIT and blake2b(body, key=self.key, digest_size=16).digest() == mac:
                count, event = json.loads(body.decode())
            if event is None or count != self.count:
                self._forged()
                return
            self.handle(*event)

    def _forged(self):
        if len(self.run.problems) < PROBLEMS:
            self.run.problems.append("reports came that the runner did not write")
        self.data.clear()

    def close(self):
        """Lets go of the stream."""
        if self.reader is not None:
            os.close(self.reader)
        if self.listener is not None:
            self.listener.close()

    def handle(self, kind, *rest):
        run = self.run
        self.since = time.monotonic()
        if kind == "begin":
            self.current, self.loading = rest[0], False
        elif kind == "load":
            self.current, self.loading = rest[0], True
        elif kind == "end":
            run.end(*rest)
            self.current = None
        elif kind == "idle":
            self.current = None
        elif kind == "scope":
            run.scopes.add(rest[0])
        elif kind == "finish":
            run.finish = rest
            self.current = None
        elif kind == "ready" and not run.ready:
            run.ready = True
            if run.request["kind"] == "wrapped":
                os.write(1, (run.request["started"] + "\n").encode())

    def blame(self, status):
        """The test or file that was running gets `status`; False when there was none."""
        if self.current is None:
            return False
        if self.loading:
            self.run.dead_files.append(self.current)
        self.run.end(self.current, "error" if self.loading else status)
        self.current = None
        return True


def leave_alone():
    """In a new child: a session of its own, so that signals to its group spare the supervisor."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def become_worker(request, writer, key):
    """Runs the tests in this process and never returns."""
    status = 70
    try:
        leave_alone()
        send = make_send(writer, key)
        if request["kind"] == "pytest":
            from grader_pytest import run  # pyright: ignore
        else:
            from grader_unittest import run  # pyright: ignore
        leave, flush = os._exit, (sys.stdout.flush, sys.stderr.flush)
        del key
        status = run(request, send)
        for each in flush:
            each()
        leave(status & 255)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(status)


def descendants():
    """Everything below this process, with its state as proc(5) has it; orphans come back to it, since it is a
    subreaper."""
    below, states = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/" + name + "/stat", "rb") as file:
                    fields = file.read().rsplit(b")", 1)[1].split()
            except (OSError, IndexError):
                continue
            below.setdefault(int(fields[1]), []).append(int(name))
            states[int(name)] = fields[0]
    found, queue = {}, [os.getpid()]
    while queue:
        for pid in below.get(queue.pop(), []):
            found[pid] = states[pid]
            queue.append(pid)
    return found


def is_any_stopped():
    """Whether a signal has stopped something below."""
    return b"T" in descendants().values()


def kill_all(limit_s=5.0):
    """Kills all descendants, again until none is left."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        left = descendants()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if not left:
                return
        time.sleep(0.002)
