"""The way out of a sandbox that has an allow-list: an HTTP proxy that the owner serves on a socket inside.

The sandbox keeps its own network namespace with loopback only. Its first process makes a listening socket
there and hands the descriptor out; this module accepts on it, judges each request (`sandbox.allowlist`,
`sandbox.proxy_request`), resolves names itself and connects from the owner's network. So nothing inside has a
route: what is not relayed here does not exist. It does not look into TLS, and so cannot tell what is said to
an allowed host. Everything a program can make it hold is bounded: connections, bytes, time, names in flight.
"""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sandbox.allowlist import Address, AllowList, Rule, address_of, address_problem
from sandbox.proxy_request import HEAD_LIMIT_BYTES, Request, RequestError, parse
from sandbox.types import SandboxSpec

PORT = 3128
"""Where it listens inside, on 127.0.0.1."""

_CHUNK = 1 << 16
_RESOLVERS = 4
_REFUSALS_KEPT = 256
_REASONS = {
    400: "Bad Request", 403: "Forbidden", 408: "Request Timeout", 411: "Length Required",
    431: "Request Header Fields Too Large", 502: "Bad Gateway", 504: "Gateway Timeout",
}  # fmt: skip


def uses_proxy(spec: SandboxSpec) -> bool:
    """With the host's network everything is reachable anyway."""
    return bool(spec.allowed_hosts) and spec.network == "none"


def environment() -> dict[str, str]:
    """Variables that make programs inside use it."""
    url = f"http://127.0.0.1:{PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    local = "localhost,127.0.0.1,::1"
    return dict.fromkeys(names, url) | {"NO_PROXY": local, "no_proxy": local}


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What one sandbox may make its proxy hold."""

    connections: int = 128
    """At once; more wait until one ends."""
    accepts_per_s: int = 500
    """New connections a second; more wait."""
    head_s: float = 15.0
    """For a request to arrive, from connecting on."""
    connect_s: float = 30.0
    """For resolving the name and connecting to the host."""
    idle_s: float = 300.0
    """Without a byte in either direction."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something a program asked for and did not get."""

    target: str
    """`host:port`, or '' when the request itself was refused."""
    reason: str
    """Why."""
    times: int
    """How often."""


class NetworkProxy:
    """Serves one sandbox from its event loop, between `start` and `close`."""

    def __init__(self, allowed_hosts: Sequence[str], *, limits: ProxyLimits | None = None) -> None:
        """Raises ValueError for a malformed entry."""
        self._allowed = AllowList.parse(allowed_hosts)
        self._listener: socket.socket | None = None
        self._limits = limits or ProxyLimits()
        self._slots = asyncio.Semaphore(self._limits.connections)
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        # Not the loop's own: slow names asked for inside must not hold up the owner's file work.
        self._resolver = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="sandbox-proxy")
        self._refused: dict[tuple[str, str], int] = {}

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """What was refused so far, the first 256 kinds of it."""
        return tuple(Refusal(target, reason, times) for (target, reason), times in self._refused.items())

    def start(self, listener: socket.socket) -> None:
        """Begin to accept on `listener`, which it owns from here on."""
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener))

    def stop(self) -> None:
        """Begin to end, from where nothing can be awaited: accept no more, cut every connection."""
        for task in self._running():
            task.cancel()
        self._resolver.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Cut every connection and free the socket. Idempotent."""
        self.stop()
        await asyncio.gather(*self._running(), return_exceptions=True)
        if self._listener:
            self._listener.close()

    def _running(self) -> list[asyncio.Task[None]]:
        return [*self._tasks, *([self._accepting] if self._accepting else [])]

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        second, count = loop.time(), 0
        while True:
            await self._slots.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                # Reset before it was accepted, or this process is out of descriptors, accept(2).
                self._slots.release()
                await asyncio.sleep(0.05)
                continue
            except BaseException:
                self._slots.release()
                raise
            task = asyncio.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            count += 1
            if count >= self._limits.accepts_per_s:
                await asyncio.sleep(max(0.0, second + 1 - loop.time()))
                second, count = loop.time(), 0

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=HEAD_LIMIT_BYTES)
        except OSError:
            connection.close()
            return
        try:
            await self._exchange(reader, writer)
        except RequestError as error:
            await _answer(reader, writer, error)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return  # one of the two ends went away, or neither said anything for long
        finally:
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await self._read(reader)
        upstream_reader, upstream_writer = await self._connect(request)
        try:
            _flush_always(writer)
            _flush_always(upstream_writer)
            if request.connect:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await writer.drain()
            else:
                upstream_writer.write(request.head)
            async with asyncio.timeout(self._limits.idle_s) as clock, asyncio.TaskGroup() as group:
                length = None if request.connect else request.body_bytes
                there = group.create_task(self._pump(reader, upstream_writer, clock, length))
                await self._pump(upstream_reader, writer, clock, None)
                if not request.connect:
                    there.cancel()  # answered; what is left of the request is of no use
            if not request.connect:
                await _linger(reader)
        except* (OSError, TimeoutError) as group_error:
            raise ConnectionAbortedError("cut") from group_error
        finally:
            upstream_writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        try:
            async with asyncio.timeout(self._limits.head_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise self._refusal("", RequestError(408, "no request came")) from None
        except asyncio.LimitOverrunError:
            raise self._refusal("", RequestError(431, "the request's headers are too long")) from None
        try:
            return parse(head)
        except RequestError as error:
            raise self._refusal("", error) from None

    async def _connect(self, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        shown = f"[{request.host}]" if ":" in request.host else request.host
        target = f"{shown}:{request.port}"
        rule = self._allowed.rule_for(request.host, request.port)
        if rule is None:
            raise self._refusal(target, RequestError(403, f"{target} is not in the sandbox's allowed hosts"))
        try:
            async with asyncio.timeout(self._limits.connect_s):
                addresses = await self._addresses(rule, request, target)
                return await _open(addresses, request.port)
        except TimeoutError:
            raise RequestError(504, f"{target} did not answer in time") from None
        except OSError as error:
            raise RequestError(502, f"{target}: {error.strerror or error}") from None

    async def _addresses(self, rule: Rule, request: Request, target: str) -> list[Address]:
        """What may be connected to; the name is resolved once, and the address judged is the one used."""
        literal = address_of(request.host)
        found = [literal] if literal else await self._resolve(request.host)
        problems = [address_problem(rule, address) for address in found]
        good = [address for address, problem in zip(found, problems, strict=True) if problem is None]
        if not good:
            raise self._refusal(
                target, RequestError(403, f"{target}: {problems[0] if problems else 'no address'}")
            )
        return good

    async def _resolve(self, host: str) -> list[Address]:
        def ask() -> list[Address]:
            rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = [address_of(str(row[4][0]).partition("%")[0]) for row in rows]
            return list(dict.fromkeys(each for each in addresses if each))

        return await asyncio.get_running_loop().run_in_executor(self._resolver, ask)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        clock: asyncio.Timeout,
        length: int | None,
    ) -> None:
        """Copy to the end and pass the end on; with `length` only that many bytes, and leave it open."""
        loop = asyncio.get_running_loop()
        left = length
        while left is None or left > 0:
            data = await reader.read(_CHUNK if left is None else min(left, _CHUNK))
            if not data:
                break
            clock.reschedule(loop.time() + self._limits.idle_s)
            writer.write(data)
            await writer.drain()
            left = None if left is None else left - len(data)
        if left is None and writer.can_write_eof():
            writer.write_eof()
        elif left:
            raise ConnectionAbortedError("the request ended early")

    def _refusal(self, target: str, error: RequestError) -> RequestError:
        """Note it for the user, and give it back to raise."""
        key = (target[:300], str(error)[:300])
        if key in self._refused or len(self._refused) < _REFUSALS_KEPT:
            self._refused[key] = self._refused.get(key, 0) + 1
        return error


def _flush_always(writer: asyncio.StreamWriter) -> None:
    """Make `drain` wait until all is handed to the kernel, so that a slow end holds back the other."""
    writer.transport.set_write_buffer_limits(high=0)


async def _open(addresses: list[Address], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    problem: OSError = OSError("no address")
    for address in addresses[:4]:
        try:
            return await asyncio.open_connection(str(address), port)
        except OSError as error:
            problem = error
    raise problem


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, error: RequestError) -> None:
    body = f"minisandbox: {error}\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        writer.write_eof()
        await _linger(reader)
    except OSError:
        return


async def _linger(reader: asyncio.StreamReader) -> None:
    """Closing with bytes unread would reset the connection and could lose the answer."""
    try:
        async with asyncio.timeout(1.0):
            for _ in range(16):
                if not await reader.read(_CHUNK):
                    return
    except TimeoutError:
        return
