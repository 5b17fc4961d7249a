"""Paths of a sandbox that has no root of its own: where each one is, and the files that hold some.

`PathMap` says it for one sandbox. Absolute links, `#!` lines and the few files in which Python environments
record their own place are rewritten while layers are copied, so that a copied venv runs.
"""

import os
from dataclasses import dataclass

HOST = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/dev", "/proc", "/sys")
"""Seen as the host has them, as far as they may be read."""
_RECORDS = (".pth", "pyvenv.cfg")
_FINDER = "__editable__"
_SHEBANG_BYTES = 512


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class PathMap:
    """Where paths of one sandbox are."""

    root: str
    """Private directory that stands for `/`."""
    binds: tuple[tuple[str, str], ...]
    """(path inside, path outside); the longest that fits wins."""
    former: str | None = None
    """Private directory of the sandbox that this one is a copy of, as recorded in its files."""

    def outside(self, path: str) -> str:
        """Where an absolute path is on the host. What is there already is left as it is."""
        path = os.path.normpath("/" + path.lstrip("/"))
        if _below(path, self.root):
            return path
        if self.former and _below(path, self.former):
            return self.outside(path[len(self.former) :])
        for target, source in sorted(self.binds, key=lambda bind: -len(bind[0])):
            if _below(path, target):
                return os.path.normpath(source + path[len(target.rstrip("/")) :])
            if _below(path, source):
                return path
        private = os.path.normpath(self.root + path)
        if any(_below(path, host) for host in HOST) and not os.path.lexists(private):
            return path
        return private

    def value(self, text: str) -> str:
        """An environment value: a path, or several with colons between, else as it is."""
        if not text.startswith("/") or "\0" in text:
            return text
        return ":".join(self.outside(part) if part.startswith("/") else part for part in text.split(":"))

    def link(self, _path: str, target: bytes) -> bytes:
        """Target of a symbolic link of a layer."""
        return os.fsencode(self.outside(os.fsdecode(target))) if target.startswith(b"/") else target

    def contents(self, path: str, data: bytes) -> bytes:
        """Contents of a file of a layer: `#!` lines, and the paths in records of Python environments."""
        if data.startswith(b"#!/"):
            line, newline, rest = data[:_SHEBANG_BYTES].partition(b"\n")
            program, space, arguments = line[2:].partition(b" ")
            line = b"#!" + os.fsencode(self.outside(os.fsdecode(program))) + space + arguments
            return line + newline + rest + data[_SHEBANG_BYTES:]
        name = os.path.basename(path)
        if name.endswith(_RECORDS) or name.startswith(_FINDER):
            return b"\n".join(self._words(line) for line in data.split(b"\n"))
        return data

    def _words(self, line: bytes) -> bytes:
        """A line that is a path, `key = path`, or Python source with quoted paths."""
        if line.startswith(b"/"):
            return self.link("", line)
        head, equals, tail = line.partition(b" = ")
        if equals and tail.startswith(b"/"):
            return head + equals + self.link("", tail)
        for quote in (b"'", b'"'):
            parts = line.split(quote)
            line = quote.join(
                self.link("", part) if index % 2 and part.startswith(b"/") else part
                for index, part in enumerate(parts)
            )
        return line
