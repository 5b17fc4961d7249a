"""Copies bytes between descriptors in a thread of its own, for the command line.

A thread, since a write to a terminal or pipe that nobody reads blocks for as long as it likes, and the event
loop must meanwhile still see signals. The threads are daemons: a read that never ends does not keep us alive.
"""

import asyncio
import os
import threading

_CHUNK = 1 << 16


def start_copy(source: int, target: int, *, close_target: bool) -> asyncio.Future[None]:
    """Copy until either end is gone, then close `source` or, for the way in, `target`.

    A reader that goes away (`| head`) closes the pipe behind it, so that the writer inside gets SIGPIPE."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not ended.done():
            ended.set_result(None)

    def copy() -> None:
        try:
            while data := os.read(source, _CHUNK):
                view = memoryview(data)
                while view:
                    view = view[os.write(target, view) :]
        except OSError:
            pass  # end of a terminal (EIO), or nobody reads any more (EPIPE)
        finally:
            os.close(target if close_target else source)
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:
                return  # the loop is closed: nobody waits

    threading.Thread(target=copy, daemon=True).start()
    return ended
