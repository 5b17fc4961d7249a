"""Writes the difference of two sets of files as a git-format patch, without a work tree.

Both states go into a throw-away object store by `git fast-import`, and `git diff` between the two trees
writes the patch: modes, links, binary files and odd names come out as git wants them. The store has no work
tree and no configuration, so neither attributes nor drivers apply. Which files there are `sandbox.diff` says.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import SandboxError

_GIT_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as git sees it."""

    mode: str
    """100644, 100755 or 120000."""
    data: bytes
    """Contents, or the target of a link."""


def write_patch(old: Mapping[str, Entry], new: Mapping[str, Entry], scratch: Path | None = None) -> str:
    """The patch from one state to the other; empty when both are. Raises SandboxError when git cannot.

    `scratch`: where the object store lies meanwhile; best a directory that is cleared when its owner dies."""
    if not old and not new:
        return ""
    try:
        return _written(old, new, scratch if scratch and scratch.is_dir() else None)
    except OSError as error:  # a full disk, or a helper that died and whose directory was removed meanwhile
        raise SandboxError(f"writing a patch: {error}") from error


def _written(old: Mapping[str, Entry], new: Mapping[str, Entry], scratch: Path | None) -> str:
    with tempfile.TemporaryDirectory(prefix="diff-", dir=scratch) as directory:
        store = Path(directory)
        (store / "objects").mkdir()
        (store / "refs").mkdir()
        (store / "info").mkdir()
        (store / "HEAD").write_text("ref: refs/heads/none\n")
        (store / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
        (store / "info" / "attributes").write_bytes(_attributes(old, new))
        _git(store, ["fast-import", "--quiet", "--force"], _commit("old", old) + _commit("new", new))
        arguments = ["diff", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"]
        text = _git(store, [*arguments, "refs/heads/old", "refs/heads/new", "--"], b"")
    return text.decode("utf-8")


def _attributes(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> bytes:
    """Files that are not UTF-8 go as binary patches, so that the patch is always text."""
    lines: list[bytes] = []
    for path in {**old, **new}:
        texts = [entry.data for entry in (old.get(path), new.get(path)) if entry]
        if not all(is_utf8(text) for text in texts):
            escaped = "".join("\\" + char if char in "\\*?[" else char for char in path)
            lines.append(_quote("/" + escaped) + b" -text -diff\n")
    return b"".join(lines)


def is_utf8(data: bytes) -> bool:
    """Whether the bytes are UTF-8 text."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _quote(path: str) -> bytes:
    """A path as a C-style quoted string, as git's formats take it."""
    quoted = b"".join(
        bytes([byte]) if 0x20 <= byte < 0x7F and byte not in b'"\\' else b"\\%03o" % byte
        for byte in os.fsencode(path)
    )
    return b'"' + quoted + b'"'


def _commit(branch: str, entries: Mapping[str, Entry]) -> bytes:
    parts = [f"commit refs/heads/{branch}\ncommitter x <x> 0 +0000\ndata 0\ndeleteall\n".encode()]
    for path, entry in entries.items():
        parts.append(b"M %s inline %s\ndata %d\n" % (entry.mode.encode(), _quote(path), len(entry.data)))
        parts.append(entry.data + b"\n")
    return b"".join(parts)


def _git(store: Path, arguments: list[str], data: bytes) -> bytes:
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_DIR": str(store),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "HOME": str(store),
        "LC_ALL": "C",
    }
    done = subprocess.run(
        ["git", "-c", "core.attributesFile=/dev/null", *arguments],
        input=data, env=env, cwd=store, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SandboxError(f"git {arguments[0]}: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout
