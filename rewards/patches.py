"""Reads git-format patches into their files, without applying them.

Needed to leave out what an agent may not touch. Hunks are consumed by the line counts of their
headers, so text inside a file cannot pose as another file's header; what `git apply` then touches
is compared with what was read here. Lines are split at "\\n" only: CR and form feeds are content.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_START = "diff --git "
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


class PatchError(ValueError):
    """The text is not a git-format patch."""


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The part of a patch about one file."""

    old_path: str | None
    """Path before, relative to the root; None for a new file."""
    new_path: str | None
    """Path after; None for a deleted file."""
    modes: frozenset[str]
    """Every file mode named, as octal text (100644, 100755, 120000, 160000)."""
    binary: bool
    """True when the content is not given as text lines."""
    added_lines: frozenset[int]
    """Line numbers, in the new file, of added lines."""
    text: str
    """The part itself, unchanged, with its final newline."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, or both when renamed or copied."""
        both = [path for path in (self.old_path, self.new_path) if path is not None]
        return tuple(dict.fromkeys(both))

    @property
    def added_text(self) -> bytes:
        """The added lines: all that there is in a new file."""
        hunks = self.text.partition("\n@@")[2].split("\n")[1:]
        lines = [line[1:] for line in hunks if line.startswith("+")]
        return "\n".join(lines).encode("utf-8", "surrogateescape")

    @property
    def path(self) -> str:
        """The path after, or before when deleted."""
        return self.paths[-1]


@dataclass(slots=True)
class _Draft:
    """A file's part while it is read."""

    git_line: str
    old: str | None = None
    new: str | None = None
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    modes: set[str] = field(default_factory=set[str])
    created: bool = False
    deleted: bool = False
    binary: bool = False
    added: set[int] = field(default_factory=set[int])


def parse_patch(text: str) -> tuple[FilePatch, ...]:
    """The patch's files in order. Raises PatchError."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    files: list[FilePatch] = []
    position = 0
    while position < len(lines):
        if not lines[position].startswith(_START):
            if lines[position].strip():
                found = lines[position][:80]
                raise PatchError(f"line {position + 1}: expected 'diff --git', found {found!r}")
            position += 1
            continue
        draft = _Draft(git_line=lines[position])
        end = _read_file(lines, position + 1, draft)
        files.append(_finish(draft, lines[position:end]))
        position = end
    return tuple(files)


def _read_file(lines: Sequence[str], position: int, draft: _Draft) -> int:
    """Reads headers and content after the `diff --git` line; returns where the next file starts."""
    while position < len(lines) and not lines[position].startswith(_START):
        line = lines[position]
        position += 1
        if line.startswith("@@ "):
            position = _read_hunk(lines, position - 1, draft)
        elif line == "GIT binary patch" or (line.startswith("Binary files ") and line.endswith(" differ")):
            draft.binary = True
            while position < len(lines) and not lines[position].startswith(_START):
                position += 1
        else:
            _read_header(line, position, draft)
    return position


def _read_header(line: str, number: int, draft: _Draft) -> None:
    if line.startswith("--- "):
        draft.old = _side(line[4:], "a/")
        draft.created = draft.created or draft.old is None
    elif line.startswith("+++ "):
        draft.new = _side(line[4:], "b/")
        draft.deleted = draft.deleted or draft.new is None
    elif match := re.match(r"(rename|copy) (from|to) (.+)$", line, re.DOTALL):
        draft.renamed[match[2]] = _unquote(match[3])
    elif match := re.match(r"(old mode|new mode|deleted file mode|new file mode) (\d+)$", line):
        draft.modes.add(match[2])
        draft.created = draft.created or match[1] == "new file mode"
        draft.deleted = draft.deleted or match[1] == "deleted file mode"
    elif match := re.match(r"index [0-9a-f]+\.\.[0-9a-f]+(?: (\d+))?$", line):
        if match[1]:
            draft.modes.add(match[1])
    elif line.strip() and not line.startswith(("similarity index ", "dissimilarity index ")):
        raise PatchError(f"line {number}: unexpected {line[:80]!r}")


def _read_hunk(lines: Sequence[str], position: int, draft: _Draft) -> int:
    """Consumes one hunk by its counts; returns the position after it."""
    match = _HUNK.match(lines[position])
    if match is None:
        raise PatchError(f"line {position + 1}: broken hunk header {lines[position][:80]!r}")
    old_left, new_left = int(match[2] or 1), int(match[4] or 1)
    number = int(match[3])
    position += 1
    while old_left > 0 or new_left > 0:
        if position >= len(lines):
            raise PatchError("the patch ends inside a hunk")
        kind = lines[position][:1]
        if kind == "+":
            draft.added.add(number)
            number, new_left = number + 1, new_left - 1
        elif kind == "-":
            old_left -= 1
        elif kind in (" ", ""):
            number, old_left, new_left = number + 1, old_left - 1, new_left - 1
        elif kind != "\\":
            raise PatchError(f"line {position + 1}: not a hunk line: {lines[position][:80]!r}")
        position += 1
    while position < len(lines) and lines[position].startswith("\\"):
        position += 1
    return position


def _finish(draft: _Draft, lines: Sequence[str]) -> FilePatch:
    old, new = draft.renamed.get("from", draft.old), draft.renamed.get("to", draft.new)
    if old is None and new is None:
        old = new = _same_name(draft.git_line)
    if draft.created:
        old = None
    if draft.deleted:
        new = None
    if old is None and new is None:
        raise PatchError(f"no path in {draft.git_line[:200]!r}")
    return FilePatch(
        old_path=old,
        new_path=new,
        modes=frozenset(draft.modes),
        binary=draft.binary,
        added_lines=frozenset(draft.added),
        text="\n".join(lines) + "\n",
    )


def _side(name: str, prefix: str) -> str | None:
    """Path of a `---` or `+++` line; None for /dev/null."""
    # No name here holds a tab of its own, quoted or not: git ends names that hold spaces with one.
    path = _unquote(name.split("\t", 1)[0])
    if path == "/dev/null":
        return None
    if not path.startswith(prefix):
        raise PatchError(f"path {path!r} does not start with {prefix}")
    return path[2:]


def _same_name(git_line: str) -> str:
    """Path of a `diff --git` line whose two names are equal (mode changes, empty and binary files)."""
    rest = git_line[len(_START) :]
    if rest.startswith('"'):
        closing = re.match(r'"(?:[^"\\]|\\.)*"', rest)
        left, right = (closing[0], rest[len(closing[0]) + 1 :]) if closing else (rest, "")
    else:
        middle = len(rest) // 2
        left, right = rest[:middle], rest[middle + 1 :]
    left, right = _unquote(left), _unquote(right)
    if not (left.startswith("a/") and right.startswith("b/") and left[2:] == right[2:] and left[2:]):
        raise PatchError(f"cannot read the path of {git_line[:200]!r}")
    return left[2:]


def _unquote(name: str) -> str:
    """Undoes git's C-style quoting."""
    if not name.startswith('"'):
        return name
    if len(name) < 2 or not name.endswith('"'):
        raise PatchError(f"unfinished quoted path {name[:200]!r}")

    def byte(match: re.Match[str]) -> str:
        code = match[1]
        value = int(code, 8) if code.isdigit() else _ESCAPES.get(code)
        if value is None or value > 255:
            raise PatchError(f"bad escape in path {name[:200]!r}")
        return bytes([value]).decode("latin-1") if value < 128 else chr(0xDC00 + value)

    plain = re.sub(r"\\([0-7]{3}|.)", byte, name[1:-1])
    # Escaped bytes above 127 became surrogates; joined again they usually are UTF-8.
    return plain.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
