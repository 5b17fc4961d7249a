"""Patches as text: made, turned round, and turned into exact replacements.

Turning round covers what git writes for text: files changed, made, deleted and renamed, and modes. The rest
covers the patches that tasks of ours hold (files that exist on both sides). It is no general tool: agents'
patches are applied by the grader, with git.
"""

import difflib
import hashlib
import re
from collections.abc import Sequence

NO_NEWLINE = "\\ No newline at end of file\n"


def split_lines(text: str) -> list[str]:
    """Lines with their ends, as git sees them: only a newline ends one, a form feed does not."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def make_patch(path: str, old: str, new: str, *, executable: bool = False) -> str:
    """git-format diff from `old` to `new` of one file; empty when they are equal.

    git warns, and the grader refuses, when the mode is not the file's."""
    if old == new:
        return ""
    body = difflib.unified_diff(split_lines(old), split_lines(new), f"a/{path}", f"b/{path}")
    lines = [line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in body]
    index = f"index {_blob_id(old)[:7]}..{_blob_id(new)[:7]} {'100755' if executable else '100644'}\n"
    return f"diff --git a/{path} b/{path}\n{index}" + "".join(lines)


def file_patch(path: str, old: str | None, new: str | None, *, executable: bool = False) -> str:
    """As `make_patch`, also for a file that is made (`old` is None) or deleted (`new` is None)."""
    if old is not None and new is not None:
        return make_patch(path, old, new, executable=executable)
    if old is None and new is None:
        return ""
    head = f"{'new' if old is None else 'deleted'} file mode {'100755' if executable else '100644'}"
    ids = ("0" * 7, _blob_id(new or "")[:7]) if old is None else (_blob_id(old)[:7], "0" * 7)
    lines = [f"diff --git a/{path} b/{path}\n", f"{head}\n", f"index {ids[0]}..{ids[1]}\n"]
    sides = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
    body = difflib.unified_diff(split_lines(old or ""), split_lines(new or ""), *sides)
    return "".join([*lines, *(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in body)])


def reverse_patch(patch: str) -> str:
    """The patch that undoes `patch`."""
    out: list[str] = []
    plus: list[str] = []
    minus: list[str] = []
    in_hunk = False

    def flush() -> None:
        # Deletions come first within a change, as git writes them.
        out.extend((*minus, *plus))
        plus.clear()
        minus.clear()

    last = out
    for line in split_lines(patch):
        if line.startswith("diff --git "):
            in_hunk = False
        if line.startswith("@@ "):
            flush()
            in_hunk = True
            out.append(_reverse_hunk_header(line))
        elif in_hunk and line.startswith("-"):
            last = plus
            plus.append("+" + line[1:])
        elif in_hunk and line.startswith("+"):
            last = minus
            minus.append("-" + line[1:])
        elif in_hunk and line.startswith("\\"):
            last.append(line)
        else:
            flush()
            last = out
            out.append(_reverse_header(line))
    flush()
    return _order_file_headers("".join(out))


def _reverse_hunk_header(line: str) -> str:
    head, old, new, rest = line.split(" ", 3)
    return f"{head} -{new[1:]} +{old[1:]} {rest}"


def _reverse_header(line: str) -> str:
    if line.startswith("index ") and ".." in line:
        ids, _, mode = line[6:].partition(" ")
        old, _, new = ids.strip().partition("..")
        return f"index {new}..{old}" + (f" {mode}" if mode else "\n")
    if line.startswith("diff --git a/") and line.count(" b/") == 1:
        old, new = line[len("diff --git a/") :].rstrip("\n").split(" b/")
        return f"diff --git a/{new} b/{old}\n"
    for before, after in _HEADERS:
        if line.startswith(before):
            return after + line[len(before) :]
        if line.startswith(after):
            return before + line[len(after) :]
    return line


_HEADERS = (
    ("--- a/", "+++ b/"),
    ('--- "a/', '+++ "b/'),
    ("--- /dev/null", "+++ /dev/null"),
    ("new file mode ", "deleted file mode "),
    ("old mode ", "new mode "),
    ("rename from ", "rename to "),
)
"""Pairs of header lines that take each other's place."""
_FIRST = ("--- ", "old mode ", "rename from ")
_SECOND = ("+++ ", "new mode ", "rename to ")


def _order_file_headers(text: str) -> str:
    """Puts the old side first again. Only between `diff --git` and the first hunk: content looks alike."""
    lines = split_lines(text)
    in_header = False
    for at in range(len(lines) - 1):
        if lines[at].startswith("diff --git "):
            in_header = True
        elif lines[at].startswith("@@ "):
            in_header = False
        elif in_header and lines[at].startswith(_SECOND) and lines[at + 1].startswith(_FIRST):
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
    return "".join(lines)


def changed_paths(patch: str) -> tuple[str, ...]:
    """Paths that the patch touches, in order."""
    return tuple(line[6:].rstrip("\n") for line in split_lines(patch) if line.startswith("+++ b/"))


def apply_patch(patch: str, path: str, text: str) -> str:
    """`text` of the file `path` after `patch`. Raises ValueError when a line does not match exactly."""
    lines = split_lines(text)
    out: list[str] = []
    at = 0
    for start, old, new in _hunks(patch, path):
        out.extend(lines[at:start])
        if lines[start : start + len(old)] != old:
            raise ValueError(f"{path}: the patch does not match at line {start + 1}")
        out.extend(new)
        at = start + len(old)
    return "".join([*out, *lines[at:]])


def _hunks(patch: str, path: str) -> list[tuple[int, list[str], list[str]]]:
    """(index of the first old line, old lines, new lines) of every hunk of one file."""
    hunks: list[tuple[int, list[str], list[str]]] = []
    current = ""
    touched: list[list[str]] = []
    for line in split_lines(patch):
        if line.startswith("diff --git "):
            current = ""
        elif line.startswith("+++ b/"):
            current = line[6:].rstrip("\n")
        elif line.startswith("@@ ") and current == path:
            first, _, count = line.split(" ", 3)[1][1:].partition(",")
            hunks.append((int(first) - (count != "0"), [], []))
        elif current == path and hunks:
            _, old, new = hunks[-1]
            if line.startswith("\\"):
                for side in touched:
                    side[-1] = side[-1].removesuffix("\n")
                continue
            touched = {" ": [old, new], "-": [old], "+": [new]}.get(line[0], [])
            for side in touched:
                side.append(line[1:])
    return hunks


def replacements(old: str, new: str) -> list[tuple[str, str]]:
    """Replacements (old text, new text), each old text unique in the file when its turn comes, that turn
    `old` into `new`. As few lines as that allows: a deleted line takes a neighbour as its anchor."""
    old_lines = split_lines(old)
    new_lines = split_lines(new)
    matcher = difflib.SequenceMatcher(a=old_lines, b=new_lines, autojunk=False)
    edits: list[tuple[str, str]] = []
    # From the end of the file, so that earlier line numbers stay right; uniqueness is asked of the
    # file as it is then.
    text = old
    for tag, first, last, new_first, new_last in reversed(matcher.get_opcodes()):
        if tag == "equal":
            continue
        replacement = new_lines[new_first:new_last]
        edit = _unique_edit(split_lines(text), first, last, replacement)
        edits.append(edit)
        text = text.replace(edit[0], edit[1], 1)
    return edits


def _unique_edit(lines: Sequence[str], first: int, last: int, new: Sequence[str]) -> tuple[str, str]:
    """Widens lines[first:last] by as few neighbours as make its text unique, the shortest such text."""
    text = "".join(lines)
    for extra in range(first + len(lines) - last + 1):
        windows = ((first - above, last + extra - above) for above in range(extra + 1))
        texts = [
            ("".join(lines[low:high]), low, high) for low, high in windows if low >= 0 and high <= len(lines)
        ]
        unique = [window for window in texts if _occurs_once(window[0], text)]
        if unique:
            old, low, high = min(unique, key=lambda window: len(window[0]))
            replaced = "".join([*lines[low:first], *new, *lines[last:high]])
            return _without_last_newline(text, old, replaced)
    raise ValueError("no text of the file is unique")


def _occurs_once(part: str, text: str) -> bool:
    """Overlapping occurrences count, which str.count would miss."""
    return bool(part) and text.find(part) == text.rfind(part) >= 0


def _without_last_newline(text: str, old: str, new: str) -> tuple[str, str]:
    """Both without their last line end, where that leaves them what they are."""
    if old.endswith("\n") and new.endswith("\n") and _occurs_once(old[:-1], text):
        return old[:-1], new[:-1]
    return old, new


def _blob_id(text: str) -> str:
    data = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
