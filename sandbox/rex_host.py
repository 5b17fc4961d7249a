"""A thread with an event loop in which a sandbox backend lives, for callers whose own loops come and go.

SWE-agent and mini-swe-agent wrap each single call in `asyncio.run`, so every call has another event loop,
while an open sandbox belongs to one. A host keeps that one loop in a thread; calls are handed over to it
from any loop or from plain threads. One host serves a whole process. It knows nothing of SWE-ReX.
"""

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sandbox.errors import SandboxLostError, SandboxUnavailableError
from sandbox.mini import MiniBackend
from sandbox.types import Backend, Sandbox, SandboxSpec


class SandboxHost:
    """Runs one backend while somebody uses it: `enter` and `leave` are counted, or use it as `with`.

    When a process ends without the last `leave`, its sandboxes end with it, as after a kill; the
    owner's empty directory is left to `sandbox.gc`."""

    def __init__(self, make_backend: Callable[[], Backend] = MiniBackend) -> None:
        """`make_backend` is called in the thread, at each start."""
        self._make_backend = make_backend
        self._lock = threading.RLock()  # `discard` may come from the garbage collector at any point
        self._users = 0
        self._running: _Running | None = None

    def enter(self) -> None:
        """Count one more user; the first one starts the thread. Returns before the backend is up."""
        with self._lock:
            if self._running is None:
                self._running = _Running(self._make_backend)
            self._users += 1

    def leave(self, *, wait: bool = True) -> None:
        """Count one user less; the last one closes the backend and with it every sandbox that is open."""
        with self._lock:
            self._users -= 1
            if self._users > 0 or self._running is None:
                return
            running, self._running = self._running, None
        running.stop()
        if wait:
            running.join()

    def discard(self, sandbox: Sandbox) -> None:
        """Close a sandbox and leave, waiting for neither: for destructors, from any thread."""
        with self._lock:
            if self._running is not None:
                self._running.close_soon(sandbox)
                self.leave(wait=False)

    def _current(self) -> "_Running":
        running = self._running
        if running is None:
            raise SandboxUnavailableError("the sandbox host is not running: use `enter` or `with` first")
        return running

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Open a sandbox; its methods are to be called through `call` or `wait` only."""
        return await self.call(self._current().open(spec))

    async def call[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the host's loop and wait for it in the caller's."""
        try:
            loop = self._current().loop
            if asyncio.get_running_loop() is loop:
                return await work
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
        except SandboxUnavailableError:
            work.close()  # it may not have begun; no warning about that
            raise

    def wait[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the host's loop and block for it. Not for use inside an event loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._current().loop).result()
        except SandboxUnavailableError:
            work.close()
            raise

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


class _Running:
    """One life of the thread."""

    def __init__(self, make_backend: Callable[[], Backend]) -> None:
        self.loop = asyncio.new_event_loop()
        self._backend: asyncio.Future[Backend] = self.loop.create_future()
        self._stopping = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()
        # A daemon: a program that forgot to stop its deployment still ends.
        self._thread = threading.Thread(
            target=self._main, args=(make_backend,), name="sandbox-host", daemon=True
        )
        self._thread.start()

    def _main(self, make_backend: Callable[[], Backend]) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve(make_backend))

    async def _serve(self, make_backend: Callable[[], Backend]) -> None:
        try:
            async with make_backend() as backend:
                self._backend.set_result(backend)
                await self._stopping.wait()
        except Exception as error:  # whoever opens a sandbox gets it
            if not self._backend.done():
                self._backend.set_exception(error)
                await self._stopping.wait()
            else:
                raise

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Open a sandbox, once the backend is up."""
        backend = await asyncio.shield(self._backend)
        if self._stopping.is_set():
            raise SandboxLostError("the sandbox host is stopping")
        return await backend.open(spec)

    def close_soon(self, sandbox: Sandbox) -> None:
        """Close a sandbox without waiting for it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._close_in_background, sandbox)

    def _close_in_background(self, sandbox: Sandbox) -> None:
        task = self.loop.create_task(sandbox.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def stop(self) -> None:
        """Ask the backend to close; the thread ends after it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._stopping.set)

    def join(self) -> None:
        """Wait until the backend is closed. Not from the thread itself."""
        if threading.current_thread() is not self._thread:
            self._thread.join()


def shared_host(state_dir: Path | None = None) -> SandboxHost:
    """The one host of this process for a state directory; not running until somebody enters it."""
    return _host_of(os.getpid(), state_dir)


@functools.cache
def _host_of(process: int, state_dir: Path | None) -> SandboxHost:
    # Keyed by the process too: a forked child has the parent's objects but not its threads.
    del process
    return SandboxHost(functools.partial(MiniBackend, state_dir=state_dir))
