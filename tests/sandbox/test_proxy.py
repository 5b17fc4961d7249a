"""The way out of a sandbox: what the list means, what the proxy refuses, and what it can be made to hold."""

import asyncio
import ipaddress
import os
import socket
import ssl
import subprocess
import sys
import urllib.parse
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from uv import find_uv_bin

from sandbox import proxy
from sandbox.allowlist import AllowList, address_problem, normal_host, parse_rule
from sandbox.errors import SandboxLostError, SandboxStartError
from sandbox.mini import MiniBackend
from sandbox.overlay import MODES, Mode
from sandbox.proxy import NetworkProxy, ProxyLimits
from sandbox.proxy_request import RequestError, parse
from sandbox.types import BindMount, SandboxSpec

# -- the list


@pytest.mark.parametrize(
    ("entries", "host", "port", "allowed"),
    [
        (["example.org"], "example.org", 443, True),
        (["example.org"], "example.org", 80, True),
        (["example.org"], "example.org", 22, False),
        (["example.org:8080"], "example.org", 8080, True),
        (["example.org:8080"], "example.org", 443, False),
        (["Example.ORG"], "example.org", 443, True),
        (["example.org"], "www.example.org", 443, False),
        (["example.org"], "example.org.evil.net", 443, False),
        (["example.org"], "notexample.org", 443, False),
        (["*.example.org"], "a.b.example.org", 443, True),
        (["*.example.org"], "example.org", 443, False),
        (["*.example.org"], "notexample.org", 443, False),
        (["*.example.org:81"], "a.example.org", 80, False),
        (["[::1]:80"], "::1", 80, True),
        (["[0:0:0::1]:80"], "::1", 80, True),
        (["127.0.0.1:80"], "::ffff:127.0.0.1", 80, False),
        (["10.0.0.1"], "10.0.0.1", 443, True),
        ([], "example.org", 443, False),
    ],
)
def test_list(entries: list[str], host: str, port: int, allowed: bool) -> None:
    assert (AllowList.parse(entries).rule_for(host, port) is not None) is allowed


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.org", "*.*.org", "a b", "http://a.org", "a.org/", "a.org:", "a.org:0", "a.org:65536",
     "a.org:x", "::1", "[::1", "[::1%lo]:80", "*.1.2.3.4", "a@b.org", "a..org", "-a.org", "é.org", "a.org\n",
     "1.2.3", "a:1:2"],
)  # fmt: skip
def test_list_refuses_what_is_unclear(entry: str) -> None:
    with pytest.raises(ValueError, match="allowed host"):
        parse_rule(entry)


@pytest.mark.parametrize(
    "host",
    ["127.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "127.0.0.1.", "localhost.", "127.0.0.01",
     "a.0x7f", "1.2.3.4.5", "[::1%25lo]", "[fe80::1%eth0]", "a\0.org", "a.org\r\nx: y", "a" * 64 + ".org",
     ".".join(["a" * 60] * 5), "%61.org", "a,b.org", "[127.0.0.1]", ""],
)  # fmt: skip
def test_odd_spellings_are_no_hosts(host: str) -> None:
    with pytest.raises(ValueError):
        normal_host(host)


@pytest.mark.parametrize(
    ("entry", "address", "fine"),
    [
        ("example.org", "93.184.216.34", True),
        ("example.org", "10.1.2.3", True),
        ("example.org", "127.0.0.1", False),
        ("example.org", "169.254.169.254", False),
        ("example.org", "fe80::1", False),
        ("example.org", "::1", False),
        ("example.org", "::ffff:127.0.0.1", False),
        ("example.org", "64:ff9b::7f00:1", False),
        ("example.org", "2002:7f00:1::", False),
        ("example.org", "0.0.0.0", False),
        ("example.org", "224.0.0.1", False),
        ("example.org", "255.255.255.255", False),
        ("*.example.org", "93.184.216.34", True),
        ("*.example.org", "10.1.2.3", False),
        ("*.example.org", "fd00::1", False),
        ("*.example.org", "100.64.0.1", False),
        ("*.example.org", "::ffff:10.0.0.1", False),
        ("localhost", "127.0.0.1", True),
        ("127.0.0.1:80", "127.0.0.1", True),
        ("169.254.169.254", "169.254.169.254", True),
    ],
)
def test_addresses_that_an_allowed_name_may_have(entry: str, address: str, fine: bool) -> None:
    assert (address_problem(parse_rule(entry), ipaddress.ip_address(address)) is None) is fine


# -- requests


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n", 400),
        (b"GET https://a.org/ HTTP/1.1\r\n\r\n", 400),
        (b"GET ftp://a.org/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/2.0\r\n\r\n", 400),
        (b"GET http://a.org/\r\n\r\n", 400),
        (b"GET http://u:p@a.org/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a.org@evil.org/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a.org\\@evil.org/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http:///x HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a.org/#x HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a.org/ x HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nHost: b.org\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nHost: a.org:81\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\nHost: a.org\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nHost : a.org\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nX: a\r\n folded\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nX: a\nHost: b.org\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nX: a\rHost: b.org\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nX: a\0\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\n: a\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nContent-Length: 0x1\r\n\r\n", 400),
        (b"GET http://a.org/ HTTP/1.1\r\nContent-Length: 1,1\r\n\r\n", 400),
        (b"POST http://a.org/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST http://a.org/ HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: x\r\n\r\n", 411),
        (b"CONNECT a.org HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT http://a.org:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a.org:443/ HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT u@a.org:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT ::1:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a.org:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
def test_doubtful_requests_are_refused(head: bytes, status: int) -> None:
    with pytest.raises(RequestError) as caught:
        parse(head)
    assert caught.value.status == status


def test_what_is_sent_on_names_the_judged_host_and_drops_hop_by_hop_headers() -> None:
    request = parse(
        b"GET http://A.org:81?q=1 HTTP/1.1\r\nHost: a.ORG:81\r\nProxy-Authorization: secret\r\n"
        b"Connection: keep-alive, X-Drop, Content-Length\r\nX-Drop: 1\r\n"
        b"Content-Length: 2\r\nX-Keep: 2\r\n\r\n"
    )
    assert (request.host, request.port, request.body_bytes) == ("a.org", 81, 2)
    assert request.head == (
        b"GET /?q=1 HTTP/1.1\r\nHost: A.org:81\r\ncontent-length: 2\r\nx-keep: 2\r\nConnection: close\r\n\r\n"
    )


# -- the server


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _upstream(handler: Handler) -> AsyncGenerator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def _serving(
    *allowed: str, limits: ProxyLimits | None = None
) -> AsyncGenerator[tuple[NetworkProxy, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    served = NetworkProxy(allowed, limits=limits)
    served.start(listener)
    try:
        yield served, port
    finally:
        await served.close()


async def _ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def _whole_then_upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers only after the other side's end of file."""
    writer.write((await reader.read()).upper())
    writer.close()


async def test_tunnel_carries_bytes_both_ways_and_half_close() -> None:
    payload = os.urandom(3_000_000)
    async with _upstream(_whole_then_upper) as port, _serving(f"127.0.0.1:{port}") as (_, proxy_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy_port)
        # The first bytes of the tunnel come with the request, as an eager client sends them.
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port + payload)
        writer.write_eof()
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n" + payload.upper()
        writer.close()


async def test_refusals_are_403_counted_and_never_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def resolve(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        raise OSError("not in this test")

    async with _serving("example.org") as (served, port):
        monkeypatch.setattr(proxy.socket, "getaddrinfo", resolve)
        # asyncio resolves through the same module, so connections below are to an address.
        for _ in range(2):
            answer = await _raw_ask(port, b"CONNECT evil.net:443 HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert answer.endswith(
                b"\r\n\r\nminisandbox: evil.net:443 is not in the sandbox's allowed hosts\n"
            )
        assert (await _raw_ask(port, b"CONNECT example.org:22 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
        answer = await _raw_ask(port, b"GET http://[fe80::1]/ HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert asked == []
        assert [(r.target, r.times) for r in served.refused] == [
            ("evil.net:443", 2), ("example.org:22", 1), ("[fe80::1]:80", 1),
        ]  # fmt: skip


async def _raw_ask(port: int, request: bytes) -> bytes:
    """Without the name functions that tests replace."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    with sock:
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, request)
        data = b""
        async with asyncio.timeout(10):
            while more := await loop.sock_recv(sock, 65536):
                data += more
        return data


@pytest.mark.parametrize("entry", ["example.org", "*.org"])
@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"])
async def test_an_allowed_name_is_no_door_to_this_machine(
    entry: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[bool] = []

    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(True)
        writer.close()

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    async with _upstream(handler) as port:
        rule = entry.replace("*.org", "*.example.org") + f":{port}"
        name = "a.example.org" if entry.startswith("*") else "example.org"
        async with _serving(rule) as (served, proxy_port):
            rows = [(family, socket.SOCK_STREAM, 6, "", (address, 0))]
            monkeypatch.setattr(proxy.socket, "getaddrinfo", lambda *_, **__: rows)
            answer = await _raw_ask(proxy_port, f"CONNECT {name}:{port} HTTP/1.1\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403 ") and b"loopback" in answer
            assert [refusal.target for refusal in served.refused] == [f"{name}:{port}"]
    assert reached == []


async def test_a_name_is_resolved_once_and_connected_to_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebinding: a second answer of the name service would be a different address."""
    asked: list[str] = []
    connected: list[str] = []

    def resolve(host: str, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        asked.append(host)
        address = "192.0.2.7" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    async def connect(host: str, port: int, **_: object) -> None:
        connected.append(host)
        raise ConnectionRefusedError(111, "Connection refused")

    served = NetworkProxy(["example.org"])
    monkeypatch.setattr(proxy.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(proxy.asyncio, "open_connection", connect)
    request = parse(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
    with pytest.raises(RequestError, match="refused"):
        await served._connect(request)
    await served.close()
    assert (asked, connected) == (["example.org"], ["192.0.2.7"])


async def test_only_one_request_per_connection_reaches_the_host() -> None:
    seen = bytearray()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readuntil(b"hello"))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        await asyncio.sleep(0.1)
        seen.extend(bytes(reader._buffer))  # pyright: ignore
        writer.close()

    async with _upstream(handler) as port, _serving(f"127.0.0.1:{port}") as (_, proxy_port):
        first = b"POST http://127.0.0.1:%d/a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello" % port
        second = b"GET http://127.0.0.1:%d/b HTTP/1.1\r\nHost: other.org\r\n\r\n" % port
        answer = await _ask(proxy_port, first + second)
    assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"\r\n\r\nok")
    assert seen.startswith(b"POST /a HTTP/1.1\r\nHost: 127.0.0.1:") and seen.endswith(b"\r\n\r\nhello")


async def test_an_early_answer_to_a_large_upload_arrives() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        writer.write_eof()
        await reader.read()
        writer.close()

    async with _upstream(handler) as port, _serving(f"127.0.0.1:{port}") as (_, proxy_port):
        request = b"PUT http://127.0.0.1:%d/ HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" % port
        assert (await _ask(proxy_port, request + bytes(150_000))).startswith(b"HTTP/1.1 413 ")


async def test_unreachable_hosts_are_502() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with _serving(f"127.0.0.1:{port}") as (served, proxy_port):
        answer = await _ask(proxy_port, b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert served.refused == ()


async def test_slow_and_endless_requests_are_cut() -> None:
    async with _serving("example.org", limits=ProxyLimits(head_s=0.3)) as (_, port):
        assert (await _ask(port, b"CONNECT example.org:4")).startswith(b"HTTP/1.1 408 ")
        assert (await _ask(port, b"GET http://example.org/" + b"a" * 40_000)).startswith(b"HTTP/1.1 431 ")
        many = b"GET http://example.org/ HTTP/1.1\r\n" + b"X: y\r\n" * 9_000
        assert (await _ask(port, many)).startswith(b"HTTP/1.1 431 ")


async def test_idle_connections_are_cut() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    limits = ProxyLimits(idle_s=0.3)
    async with _upstream(silent) as port, _serving(f"127.0.0.1:{port}", limits=limits) as (_, proxy_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy_port)
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
        async with asyncio.timeout(5):
            try:
                assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            except ConnectionResetError:
                pass  # cut is what is asked for
        writer.close()


async def test_connections_above_the_limit_wait_and_are_then_served() -> None:
    before = len(os.listdir("/proc/self/fd"))
    limits = ProxyLimits(connections=2, head_s=60)
    async with _serving(limits=limits) as (served, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        await asyncio.sleep(0.2)
        assert len(served._tasks) == 2
        # The sockets of this test, the two accepted ones, the listener: none for those that wait.
        assert len(os.listdir("/proc/self/fd")) - before <= 40 + 2 + 2
        for _, writer in idle:
            writer.close()
        answer = await _ask(port, b"CONNECT a.org:1 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")


async def test_the_rate_of_connections_is_limited() -> None:
    async with _serving(limits=ProxyLimits(accepts_per_s=5)) as (_, port):
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(_ask(port, b"CONNECT a.org:1 HTTP/1.1\r\n\r\n") for _ in range(12)))
        assert asyncio.get_running_loop().time() - started > 1.8


async def test_kinds_of_refusals_kept_are_bounded() -> None:
    async with _serving() as (served, port):
        served._limits = ProxyLimits(accepts_per_s=10_000)
        for start in range(0, 300, 30):
            hosts = range(start, start + 30)
            await asyncio.gather(*(_ask(port, b"CONNECT h%d.org:1 HTTP/1.1\r\n\r\n" % n) for n in hosts))
        assert len(served.refused) == 256


async def test_close_cuts_everything_and_leaves_no_descriptor() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with _upstream(silent) as port:
        before = len(os.listdir("/proc/self/fd"))
        async with _serving(f"127.0.0.1:{port}") as (served, proxy_port):
            clients = [await asyncio.open_connection("127.0.0.1", proxy_port) for _ in range(8)]
            for reader, writer in clients[:4]:
                writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            await served.close()
            await served.close()
        for _, writer in clients:
            writer.close()
        for _ in range(100):
            if len(os.listdir("/proc/self/fd")) <= before:
                break
            await asyncio.sleep(0.02)
        assert len(os.listdir("/proc/self/fd")) <= before
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy_port)


# -- in a sandbox


_FETCH = (
    "import sys, urllib.request\n"
    "try:\n    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())\n"
    "except Exception as error:\n    print(type(error).__name__, error)\n"
)
_PYTHON_ENV = {"LD_LIBRARY_PATH": "/opt/python/lib"}


async def _page(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
    writer.close()


@pytest.fixture
def interpreter() -> BindMount:
    """The Python that runs the tests: the machine's own may be none or an old one."""
    return BindMount(Path(sys.base_prefix).resolve(), "/opt/python")


async def test_programs_inside_reach_what_is_allowed_and_nothing_else(
    backend: MiniBackend, interpreter: BindMount
) -> None:
    async with _upstream(_page) as allowed, _upstream(_page) as other:
        spec = SandboxSpec(
            binds=(interpreter,),
            allowed_hosts=(f"127.0.0.1:{allowed}",),
            env={**_PYTHON_ENV, "NO_PROXY": "", "no_proxy": ""},
        )
        async with await backend.open(spec) as sandbox:

            async def fetch(port: int) -> str:
                argv = ["/opt/python/bin/python3", "-c", _FETCH, f"http://127.0.0.1:{port}/"]
                return (await sandbox.exec(argv, timeout_s=60)).text

            assert await fetch(allowed) == "hello\n"
            assert "403" in await fetch(other)
            assert [refusal.target for refusal in sandbox.refused] == [f"127.0.0.1:{other}"]
            script = f"grep -c . /proc/net/dev; exec 3<>/dev/tcp/127.0.0.1/{allowed}"
            result = await sandbox.exec(["bash", "-c", script], timeout_s=60)
            assert result.output.startswith(b"3\n") and result.exit_status != 0  # no way but the proxy


async def test_the_proxy_ends_with_its_sandbox(backend: MiniBackend) -> None:
    before = len(os.listdir("/proc/self/fd"))
    sandbox = await backend.open(SandboxSpec(allowed_hosts=("example.org",)))
    script = "exec 3<>/dev/tcp/127.0.0.1/3128; exec 4<>/dev/tcp/127.0.0.1/3128; echo open"
    assert (await sandbox.exec(["bash", "-c", script], timeout_s=60)).output == b"open\n"
    task = asyncio.create_task(sandbox.exec(["bash", "-c", f"{script}; sleep 987"], timeout_s=60))
    await asyncio.sleep(0.3)
    await sandbox.close()
    with pytest.raises(SandboxLostError):
        await task
    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert [each for each in asyncio.all_tasks() if "_accept" in repr(each)] == []


async def test_a_malformed_entry_is_told_before_anything_opens(backend: MiniBackend) -> None:
    with pytest.raises(SandboxStartError, match=r"allowed host 'http://a\.org'"):
        await backend.open(SandboxSpec(allowed_hosts=("http://a.org",)))


async def test_without_a_list_there_is_no_proxy(backend: MiniBackend) -> None:
    async with await backend.open(SandboxSpec()) as sandbox:
        script = "env | grep -ci proxy; exec 3<>/dev/tcp/127.0.0.1/3128"
        result = await sandbox.exec(["bash", "-c", script], timeout_s=60)
        assert result.output.startswith(b"0\n") and result.exit_status != 0


@pytest.mark.skipif(not Path("/etc/ssl/certs").is_dir(), reason="this machine keeps no certificates there")
@pytest.mark.parametrize("mode", MODES)
async def test_certificates_of_authorities_come_with_the_list(mode: Mode, state_dir: Path) -> None:
    """curl and git look there; nobody needs them where there is no way out, and nobody may change them."""
    script = "ls /etc/ssl/certs | wc -l; touch /etc/ssl/certs/x && echo written"
    async with MiniBackend(state_dir=state_dir, mode=mode) as backend:
        async with await backend.open(SandboxSpec(allowed_hosts=("example.org",))) as sandbox:
            result = await sandbox.exec(["sh", "-c", script], timeout_s=60)
            assert result.output.startswith(b"%d\n" % len(os.listdir("/etc/ssl/certs")))
            assert b"Read-only" in result.output and b"written" not in result.output
        async with await backend.open(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["ls", "/etc/ssl/certs"], timeout_s=60)).exit_status != 0


@pytest.mark.parametrize("installer", ["pip", "uv"])
async def test_packages_install_through_it(
    installer: str, backend: MiniBackend, interpreter: BindMount
) -> None:
    """From the index that pip on this machine is set to, which set-up needs too."""
    listing = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
    )
    index = os.environ.get("PIP_INDEX_URL") or listing.stdout.strip() or "https://pypi.org/simple"
    files = () if os.environ.get("PIP_INDEX_URL") or listing.stdout.strip() else ("files.pythonhosted.org",)
    url = urllib.parse.urlsplit(index)
    host = f"[{url.hostname}]" if ":" in str(url.hostname) else str(url.hostname)
    entry = f"{host}:{url.port}" if url.port else host
    certificates = ssl.get_default_verify_paths().cafile or os.environ.get("SSL_CERT_FILE", "")
    bundle = os.environ.get("PIP_CERT") or certificates
    binds = [interpreter, BindMount(Path(find_uv_bin()), "/opt/uv")]
    binds += [BindMount(Path(bundle).resolve(), "/opt/ca.pem")] if bundle else []
    env = _PYTHON_ENV | {"UV_HTTP_RETRIES": "0"}
    env |= {"PIP_CERT": "/opt/ca.pem", "SSL_CERT_FILE": "/opt/ca.pem"} if bundle else {}
    spec = SandboxSpec(binds=tuple(binds), allowed_hosts=(entry, *files), env=env)
    install = {
        "pip": "/opt/python/bin/python3 -m pip install -q --retries 0",
        "uv": "/opt/uv pip install -q --python /opt/python/bin/python3",
    }[installer] + f" --no-deps --target /tmp/t -i {index} iniconfig==2.0.0"
    async with await backend.open(spec) as sandbox:
        result = await sandbox.exec(["sh", "-c", f"{install} 2>&1; ls /tmp/t"], timeout_s=200)
        assert b"iniconfig\n" in result.output, (result.text, sandbox.refused)
    async with await backend.open(SandboxSpec(binds=tuple(binds), env=env)) as sealed:
        result = await sealed.exec(["sh", "-c", f"{install} 2>&1"], timeout_s=200)
        assert result.exit_status != 0, result.text
