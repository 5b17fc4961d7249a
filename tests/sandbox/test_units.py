"""Parts that need no sandbox."""

import os
import struct

import pytest

from sandbox import process, seccomp, wire
from sandbox.output import Collector


@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
def test_messages_of_any_size_and_descriptors(size: int) -> None:
    ours, theirs = wire.pair()
    read_end, write_end = os.pipe()
    with ours, theirs:
        wire.send(ours, {"text": "é\ud800" + "x" * size}, (read_end,))
        received = wire.receive(theirs)
        assert received is not None
        message, fds = received
        assert message == {"text": "é\ud800" + "x" * size}
        os.write(write_end, b"through")
        assert os.read(fds[0], 100) == b"through"
        assert not os.get_inheritable(fds[0])
        for fd in (read_end, write_end, *fds):
            os.close(fd)
        ours.close()
        assert wire.receive(theirs) is None


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("size", [0, 99, 100, 101, 5000, 2_000_000])
def test_collector_keeps_head_and_tail(size: int, chunk: int) -> None:
    if size // chunk > 10_000:
        pytest.skip("slow and no different")
    data = bytes(index % 251 for index in range(size))
    collector = Collector(100)
    for start in range(0, size, chunk):
        collector.add(data[start : start + chunk])
    output, truncated = collector.result()
    assert truncated == (size > 100)
    if truncated:
        assert output == data[:50] + b"\n[... %d bytes left out ...]\n" % (size - 100) + data[-50:]
    else:
        assert output == data


def _run_filter(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = (0, 0)) -> int:
    """A classic BPF interpreter for the few instructions used."""
    memory = struct.pack("iIQ6Q", number, arch, 0, *arguments, *(0,) * (6 - len(arguments)))
    code = [struct.unpack_from("HBBI", program, offset) for offset in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        op, yes, no, value = code[at]
        at += 1
        if op == 0x20:
            (accumulator,) = struct.unpack_from("I", memory, value)
        elif op == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[
                op
            ]
            at += yes if holds else no


@pytest.mark.parametrize(
    ("machine", "arch", "clone", "socket_number", "mount", "read"),
    [("x86_64", 0xC000003E, 56, 41, 165, 0), ("aarch64", 0xC00000B7, 220, 198, 40, 63)],
)
def test_filter(machine: str, arch: int, clone: int, socket_number: int, mount: int, read: int) -> None:
    program = seccomp.build(machine)
    allow, deny = 0x7FFF0000, 0x00050000
    assert _run_filter(program, arch, read) == allow
    assert _run_filter(program, arch, mount) == deny | 1
    assert _run_filter(program, arch, 435) == deny | 38
    assert _run_filter(program, arch, clone, (17, 0)) == allow
    assert _run_filter(program, arch, clone, (0x10000000 | 17, 0)) == deny | 1
    for family, verdict in (
        (1, allow),
        (2, allow),
        (10, allow),
        (16, allow),
        (40, deny | 97),
        (38, deny | 97),
    ):
        assert _run_filter(program, arch, socket_number, (family, 0)) == verdict
    # Protocols: TCP may, SCTP may not; netlink's route may, its firewall may not.
    assert _run_filter(program, arch, socket_number, (2, 1, 6)) == allow
    assert _run_filter(program, arch, socket_number, (2, 1, 132)) != allow
    assert _run_filter(program, arch, socket_number, (16, 3, 0)) == allow
    assert _run_filter(program, arch, socket_number, (16, 3, 12)) != allow
    assert _run_filter(program, 0x40000003, read) == deny | 38


def test_process_tags() -> None:
    own = process.tag(os.getpid())
    assert process.is_alive(own)
    pid, started, namespace = own.split("-")
    assert not process.is_alive(f"{pid}-{int(started) - 1}-{namespace}")
    assert not process.is_alive(f"4194303-5-{namespace}")
    assert process.is_alive(f"4194303-5-{int(namespace) + 1}"), "another container's: not ours to judge"
    assert process.is_alive("no tag")
