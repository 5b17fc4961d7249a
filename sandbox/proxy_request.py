"""Reads one proxy request strictly: what is doubtful is refused, so that nothing can mean two things.

`CONNECT host:port` and `METHOD http://host/path`, one request per connection, RFC 9110 and RFC 9112. Pure
functions over bytes; `sandbox.proxy` does the transport.
"""

import re
from dataclasses import dataclass

from sandbox.allowlist import split_host_port

HEAD_LIMIT_BYTES = 32 * 1024

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_URL = re.compile(rb"(?i:http)://([^/?#]+)(/[^#]*|\?[^#]*|)")
_HOP_BY_HOP = {
    b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"te", b"upgrade", b"host",
    b"trailer", b"expect", b"http2-settings",
}  # fmt: skip
_KEPT = {b"content-length", b"transfer-encoding"}


class RequestError(Exception):
    """A request that is answered with an error status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """What a program asked for."""

    connect: bool
    """A tunnel; else one plain http exchange."""
    host: str
    """Normalised name or address."""
    port: int
    """Port."""
    head: bytes
    """What to send to the host before the body; empty for a tunnel."""
    body_bytes: int
    """Length of the body that follows, 0 for a tunnel."""


def parse(head: bytes) -> Request:
    """From everything up to and with the empty line. Raises RequestError."""
    first, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = _LINE.fullmatch(first)
    if not line:
        raise RequestError(400, "not an HTTP/1 request")
    headers = [_header(each) for each in rest]
    method, target = line[1], line[2]
    length = _body_length(headers)
    if method == b"CONNECT":
        if length:
            raise RequestError(400, "CONNECT has no body")
        host, port = _authority(target, None)
        return Request(True, host, port, b"", 0)
    url = _URL.fullmatch(target)
    if not url:
        raise RequestError(
            400, "this is a proxy: it takes http://HOST/PATH, and CONNECT HOST:PORT for the rest"
        )
    host, port = _authority(url[1], 80)
    named = [value for name, value in headers if name == b"host"]
    if len(named) > 1 or (named and _authority(named[0], 80) != (host, port)):
        raise RequestError(400, "the Host header differs from the URL")
    path = url[2] if url[2].startswith(b"/") else b"/" + url[2]
    return Request(False, host, port, _forwarded(method, path, url[1], headers), length)


def _header(line: bytes) -> tuple[bytes, bytes]:
    match = _HEADER.fullmatch(line)
    if not match:  # folded lines, blanks before the colon, bare CR or LF
        raise RequestError(400, "malformed header")
    return match[1].lower(), match[2].rstrip(b" \t")


def _body_length(headers: list[tuple[bytes, bytes]]) -> int:
    if any(name == b"transfer-encoding" for name, _ in headers):
        raise RequestError(411, "send Content-Length; chunked requests are taken only through CONNECT")
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) > 1 or not all(re.fullmatch(rb"[0-9]{1,15}", value) for value in lengths):
        raise RequestError(400, "malformed Content-Length")
    return int(lengths[0]) if lengths else 0


def _authority(text: bytes, default_port: int | None) -> tuple[str, int]:
    if b"@" in text:
        raise RequestError(400, "no user or password in a URL")
    try:
        return split_host_port(text.decode("ascii"), default_port)
    except ValueError as error:  # UnicodeDecodeError is one
        raise RequestError(400, f"{error}") from None


def _forwarded(method: bytes, path: bytes, authority: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    listed = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
    dropped = _HOP_BY_HOP | ({item.strip() for item in listed} - _KEPT)
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: " + authority]
    lines += [name + b": " + value for name, value in headers if name not in dropped]
    # One request per connection: what a program sends after it never reaches the host.
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])
