"""File calls of the owner, carried out by a sandbox's first process.

It has no privileges and opens every path below the sandbox's root (openat2, RESOLVE_IN_ROOT), so no path
tricks it. Copies of trees run in a thread of this process, which nothing inside can stop or kill.
"""

import _thread
import errno
import os
import socket
import stat
from collections.abc import Callable

from sandbox import tree, wire

_RETRIES = 20

Open = Callable[[str, int, int], int]


class Files:
    """Reads, writes and copies for the owner."""

    def __init__(self, sock: socket.socket, open_inside: Open, proc_device: int) -> None:
        self._sock = sock
        self._open_inside = open_inside
        self._proc_device = proc_device

    def _open(self, path: str, flags: int, mode: int = 0) -> int:
        for _ in range(_RETRIES):
            try:
                return self._open_inside(path, flags, mode)
            except BlockingIOError:
                continue  # a rename inside crossed the resolution of the path, openat2(2)
        return self._open_inside(path, flags, mode)

    def read(self, message: wire.Message) -> None:
        """Answer with a descriptor; the owner looks what it is. Where a neighbour of the same user has taken
        all descriptors that may be in flight, unix(7), the owner is told and asks for a stream."""
        try:
            fd = self._open(message["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError) as error:
            wire.send(self._sock, {"reply": message["id"], "errno": error_number(error)})
            return
        try:
            wire.send(self._sock, {"reply": message["id"]}, (fd,), patient=False)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            wire.send(self._sock, {"reply": message["id"], "errno": error.errno})
        finally:
            os.close(fd)

    def stream(self, message: wire.Message, stream: int) -> None:
        """Send what is in a regular file over a socket."""
        self._start(message, stream, self._stream)

    def write(self, message: wire.Message, source: int) -> None:
        """Create or replace a file with what is in a memory file."""
        reply: wire.Message = {"reply": message["id"]}
        try:
            self._copy_into(message["path"], source, message["mode"])
        except (OSError, ValueError) as error:
            reply["errno"] = error_number(error)
        wire.send(self._sock, reply)

    def _copy_into(self, path: str, source: int, mode: int) -> None:
        self._make_parents(_absolute(path))
        # Not O_TRUNC yet: only once it is known to be a regular file.
        fd = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, mode)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            os.ftruncate(fd, 0)
            os.fchmod(fd, mode)
            offset = 0
            while sent := os.sendfile(fd, source, offset, 1 << 20):
                offset += sent
        finally:
            os.close(fd)

    def _make_parents(self, path: str) -> None:
        """Make the directory that `path` lies in."""
        directory = os.path.dirname(path)
        try:
            os.close(self._open(directory, os.O_PATH | os.O_DIRECTORY))
        except FileNotFoundError:
            self._make_parents(directory)
            parent = self._open(os.path.dirname(directory), os.O_PATH | os.O_DIRECTORY)
            try:
                os.mkdir(os.path.basename(directory), 0o755, dir_fd=parent)
            except FileExistsError:
                # A dangling link, or someone inside was faster; the open that follows tells.
                return
            finally:
                os.close(parent)

    def pack(self, message: wire.Message, stream: int) -> None:
        """Send a file or tree over a socket."""
        self._start(message, stream, self._pack)

    def unpack(self, message: wire.Message, stream: int) -> None:
        """Make a file or tree from what comes over a socket."""
        self._start(message, stream, self._unpack)

    def _start(self, message: wire.Message, stream: int, work: Callable[[str, socket.socket], None]) -> None:
        peer = socket.socket(fileno=os.dup(stream))
        try:
            # Every module this needs is loaded; a thread of pid 1 is as safe from inside as pid 1.
            _thread.start_new_thread(self._work, (message, peer, work))
        except RuntimeError:
            peer.close()
            wire.send(self._sock, {"reply": message["id"], "errno": errno.EAGAIN})

    def _work(
        self, message: wire.Message, peer: socket.socket, work: Callable[[str, socket.socket], None]
    ) -> None:
        reply: wire.Message = {"reply": message["id"]}
        try:
            work(message["path"], peer)
        except (OSError, ValueError, EOFError) as error:
            reply["errno"] = errno.EPIPE if isinstance(error, EOFError) else error_number(error)
        finally:
            try:
                # The owner holds the other descriptor too: closing alone would not end the stream.
                peer.shutdown(socket.SHUT_WR if work != self._unpack else socket.SHUT_RDWR)
            except OSError:
                pass  # the owner was faster
            peer.close()
            wire.send(self._sock, reply)

    def _stream(self, path: str, peer: socket.socket) -> None:
        fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, "a directory")
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "not a regular file")
            while os.sendfile(peer.fileno(), fd, None, 1 << 20):
                continue
        finally:
            os.close(fd)

    def _pack(self, path: str, peer: socket.socket) -> None:
        top = self._open(_absolute(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            with tree.writer(peer) as out:
                tree.Packer(out, self._proc_device).pack(top)
        finally:
            os.close(top)

    def _unpack(self, path: str, peer: socket.socket) -> None:
        path = _absolute(path).rstrip("/")
        self._make_parents(path)
        parent = self._open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        try:
            with tree.reader(peer) as source:
                tree.Unpacker(
                    source,
                    parent,
                    os.fsencode(os.path.basename(path)),
                    open_existing=lambda: self._open(path, os.O_RDONLY | os.O_DIRECTORY),
                ).unpack()
        finally:
            os.close(parent)


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise OSError(errno.EINVAL, "not an absolute path")
    return path


def error_number(error: OSError | ValueError) -> int:
    """Error number to report; a text that cannot be a path is an invalid argument."""
    return (error.errno or errno.EIO) if isinstance(error, OSError) else errno.EINVAL
