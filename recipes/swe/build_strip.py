"""Takes debug information and symbol tables out of an interpreter's programs and libraries.

An interpreter as uv, pyenv or conda install it may be half debug information and symbols (37 of the 75 MB of
CPython 3.12), which no test needs. Done here and not by strip(1), so that the same interpreter gives the same
layer on every machine, with binutils or without. What is loaded into memory is left as it is, byte for byte;
only what lies behind it in the file goes. A file that is not laid out as linkers do it is left alone. Layout:
elf(5).
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

STRIP_VERSION = "1"
"""Raise it when a change here must rebuild layers."""
_IDENT = b"\x7fELF\x02\x01\x01"
"""64 bits, little endian, version 1: all machines that wheels are common for."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_EXECUTABLE, _SHARED = 2, 3
_ALLOCATED = 2
_NO_BITS = 8
_STRINGS = 3


@dataclass(frozen=True, slots=True)
class _Section:
    """A row of the table of sections."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int

    @property
    def end(self) -> int:
        """Where its bytes end in the file."""
        return self.offset + (0 if self.kind == _NO_BITS else self.size)


def strip_tree(folder: Path) -> int:
    """Strips every program and library below `folder`; bytes saved. Links are left alone."""
    saved = 0
    for place, _, files in os.walk(folder):
        for name in files:
            path = Path(place) / name
            if not path.is_symlink() and path.is_file():
                saved += _strip_file(path)
    return saved


def _strip_file(path: Path) -> int:
    with path.open("rb") as file:
        data = file.read(len(_IDENT))
        if data != _IDENT:
            return 0
        data += file.read()
    stripped = strip(data)
    if stripped is None or len(stripped) >= len(data):
        return 0
    fresh = path.with_name(f".{path.name}.stripped")
    fresh.write_bytes(stripped)
    fresh.chmod(path.stat().st_mode & 0o7777)
    fresh.replace(path)
    return len(data) - len(stripped)


def strip(data: bytes) -> bytes | None:
    """The program or library without what is never loaded; None when it is none, or is laid out otherwise."""
    try:
        return _strip(data)
    except (struct.error, ValueError):
        return None  # cut off, or no ELF file at all


def _strip(data: bytes) -> bytes | None:
    header = _HEADER.unpack_from(data)
    ident, kind, *_, table, _, _, _, programs, width, count, strings = header
    if ident[: len(_IDENT)] != _IDENT or kind not in (_EXECUTABLE, _SHARED) or width != _SECTION.size:
        return None
    sections = [_Section(*_SECTION.unpack_from(data, table + at * width)) for at in range(count)]
    kept = 1 + max((at for at, one in enumerate(sections) if one.flags & _ALLOCATED), default=0)
    if kept == 1 or any(not one.flags & _ALLOCATED for one in sections[1:kept]):
        return None
    if any(one.link >= kept for one in sections[:kept]) or strings < kept:
        return None
    end = max([one.end for one in sections[:kept]] + _segment_ends(data, header[5], programs))
    rest = [one.offset for one in sections[kept:] if one.kind != _NO_BITS]
    if min([*rest, table]) < end or len(data) > max(table + count * width, *(one.end for one in sections)):
        return None  # something to keep lies among what goes, or behind it
    return _assemble(data[:end], sections[:kept], _names(data, sections[:kept], sections[strings]))


def _segment_ends(data: bytes, table: int, count: int) -> list[int]:
    """Where the parts that are loaded end in the file."""
    rows = [_PROGRAM.unpack_from(data, table + at * _PROGRAM.size) for at in range(count)]
    return [offset + size for _, _, offset, _, _, size, _, _ in rows]


def _names(data: bytes, sections: list[_Section], strings: _Section) -> list[bytes]:
    starts = [strings.offset + one.name for one in sections]
    return [data[start : data.index(b"\0", start)] for start in starts]


def _assemble(loaded: bytes, sections: list[_Section], names: list[bytes]) -> bytes:
    """What is loaded, then the names of sections, then the table of sections."""
    text, rows = b"", b""
    for one, name in zip(sections, names, strict=True):
        rows += _SECTION.pack(
            len(text), one.kind, one.flags, one.address, one.offset, one.size,
            one.link, one.info, one.align, one.entry_size,
        )  # fmt: skip
        text += name + b"\0"
    own = len(text)
    text += b".shstrtab\0"
    rows += _SECTION.pack(own, _STRINGS, 0, 0, len(loaded), len(text), 0, 0, 1, 0)
    body = loaded + text
    body += bytes(-len(body) % 8)
    fields = list(_HEADER.unpack_from(body))
    fields[6], fields[12], fields[13] = len(body), len(sections) + 1, len(sections)
    return _HEADER.pack(*fields) + body[_HEADER.size :] + rows
