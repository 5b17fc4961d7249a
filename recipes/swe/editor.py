"""The str_replace_editor tool, run by us on bytes read from the sandbox and written back to it.

Nothing runs inside for an edit, so a broken interpreter or PATH in there cannot break it. Files that are not
UTF-8 survive an edit byte for byte (surrogateescape), as do CRLF line ends and the file's mode; tabs are
shown and matched as they are. The formats of `view` and of a snippet are those that SWE-agent-LM models were
trained on. The editor never raises for what the model got wrong: that is an observation.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from recipes.swe.parsing import Value
from sandbox.types import Sandbox

_OURS = (ConnectionError, TimeoutError)
"""OSErrors that are no fact about a file: they propagate."""


class EditError(Exception):
    """The call cannot be carried out; the message is the observation."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file's text as the model sees it."""

    text: str
    """Decoded, with `\\n` line ends when all its line ends are CRLF."""
    crlf: bool
    """Whether they are."""
    data: bytes
    """As stored."""

    @classmethod
    def decode(cls, data: bytes) -> "_File":
        text = data.decode("utf-8", "surrogateescape")
        crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
        return cls(text.replace("\r\n", "\n") if crlf else text, crlf, data)

    def encode(self, text: str) -> bytes:
        return (text.replace("\n", "\r\n") if self.crlf else text).encode("utf-8", "surrogateescape")

    def argument(self, value: str) -> str:
        """A string of the model's, with the line ends that `text` has."""
        return value.replace("\r\n", "\n") if self.crlf else value


class Editor:
    """One agent's editor, with the history that undo_edit needs."""

    def __init__(self, sandbox: Sandbox, *, workdir: str, snippet_lines: int, timeout_s: float) -> None:
        self._sandbox = sandbox
        self._workdir = workdir
        self._snippet_lines = snippet_lines
        self._timeout_s = timeout_s
        self._history: dict[str, list[bytes | None]] = {}

    async def run(self, arguments: Mapping[str, Value]) -> str:
        """Carry out one call; returns the observation."""
        try:
            path = self._path(str(arguments["path"]))
            match arguments["command"]:
                case "view":
                    return await self._view(path, arguments)
                case "create":
                    return await self._create(path, _text(arguments, "file_text", "create"))
                case "str_replace":
                    return await self._str_replace(path, arguments)
                case "insert":
                    return await self._insert(path, arguments)
                case _:
                    return await self._undo(path)
        except EditError as error:
            return f"Error: {error}"

    async def _view(self, path: str, arguments: Mapping[str, Value]) -> str:
        view_range = arguments.get("view_range")
        try:
            file = await self._read(path)
        except IsADirectoryError:
            if view_range is not None:
                raise EditError("`view_range` is for files, and this is a directory.") from None
            return await self._list(path)
        lines = file.text.split("\n")
        first, last = view_range if isinstance(view_range, tuple) else (1, len(lines))
        last = len(lines) if last == -1 else last
        if not 1 <= first <= len(lines):
            raise EditError(f"`view_range` must start between 1 and {len(lines)}, not at {first}.")
        if last < first:
            raise EditError(f"`view_range` ends ({last}) before it begins ({first}).")
        return numbered(lines[first - 1 : last], first, path)

    async def _list(self, path: str) -> str:
        argv = ["find", path, "-maxdepth", "2", "-not", "-path", "*/.*"]
        result = await self._sandbox.exec(argv, timeout_s=self._timeout_s)
        names = "\n".join(sorted(result.text.splitlines()))
        what = f"Here's the files and directories up to 2 levels deep in {path}, excluding hidden items"
        return f"{what}:\n{names}"

    async def _create(self, path: str, text: str) -> str:
        try:
            await self._sandbox.read_file(path)
        except FileNotFoundError:
            await self._write(path, text.encode("utf-8", "surrogateescape"), mode=0o644)
            self._history.setdefault(path, []).append(None)
            return f"File created successfully at: {path}"
        except IsADirectoryError:
            raise EditError(f"{path} is a directory.") from None
        except _OURS:
            raise
        except (OSError, ValueError) as error:
            raise EditError(f"cannot create {path}: {_reason(error)}.") from error
        raise EditError(f"{path} exists already, and `create` does not overwrite; use `str_replace`.")

    async def _str_replace(self, path: str, arguments: Mapping[str, Value]) -> str:
        file = await self._read_text(path)
        old = file.argument(_text(arguments, "old_str", "str_replace"))
        new = file.argument(str(arguments.get("new_str", "")))
        if not old:
            raise EditError("`old_str` is empty; use `insert` to add text.")
        if old == new:
            raise EditError("`new_str` is the same as `old_str`; nothing was changed.")
        found = _occurrences(file.text, old)
        if not found:
            hint = " The file uses tabs; copy them exactly." if "\t" in file.text and "\t" not in old else ""
            raise EditError(f"`old_str` does not occur verbatim in {path}; nothing was changed.{hint}")
        if len(found) > 1:
            at = ", ".join(str(file.text.count("\n", 0, start) + 1) for start in found[:20])
            raise EditError(f"`old_str` is not unique, it occurs at lines {at}; nothing was changed.")
        start = found[0]
        text = file.text[:start] + new + file.text[start + len(old) :]
        await self._edit(path, file, text)
        return self._snippet(path, text, file.text.count("\n", 0, start) + 1, new.count("\n") + 1)

    async def _insert(self, path: str, arguments: Mapping[str, Value]) -> str:
        file = await self._read_text(path)
        after = arguments.get("insert_line")
        if not isinstance(after, int):
            raise EditError("`insert` needs `insert_line`.")
        new = file.argument(_text(arguments, "new_str", "insert"))
        lines = file.text.split("\n")
        if not 0 <= after <= len(lines):
            raise EditError(f"`insert_line` must be between 0 and {len(lines)}, not {after}.")
        added = new.split("\n")
        text = "\n".join([*lines[:after], *added, *lines[after:]])
        await self._edit(path, file, text)
        return self._snippet(path, text, after + 1, len(added))

    async def _undo(self, path: str) -> str:
        history = self._history.get(path)
        if not history:
            raise EditError(f"there is no edit of {path} to undo.")
        before = history[-1]
        if before is None:
            result = await self._sandbox.exec(["rm", "-f", "--", path], timeout_s=self._timeout_s)
            if result.exit_status != 0:
                raise EditError(f"cannot remove {path}: {result.text.strip()}.")
            history.pop()
            return f"Last edit to {path} undone: the file, which it created, was removed."
        await self._write(path, before, mode=await self._mode(path))
        history.pop()
        shown = numbered(_File.decode(before).text.split("\n"), 1, path)
        return f"Last edit to {path} undone successfully. {shown}"

    async def _edit(self, path: str, file: _File, text: str) -> None:
        await self._write(path, file.encode(text), mode=await self._mode(path))
        self._history.setdefault(path, []).append(file.data)

    def _snippet(self, path: str, text: str, first: int, count: int) -> str:
        lines = text.split("\n")
        top = max(1, first - self._snippet_lines)
        shown = lines[top - 1 : first - 1 + count + self._snippet_lines]
        return (
            f"The file {path} has been edited. {numbered(shown, top, f'a snippet of {path}')}"
            "Review the changes and make sure they are as expected. Edit the file again if necessary."
        )

    def _path(self, path: str) -> str:
        path = path.strip()
        if not path.startswith("/"):
            meant = posixpath.normpath(posixpath.join(self._workdir, path))
            raise EditError(f"{path!r} is not an absolute path. Did you mean {meant}?")
        if "\0" in path:
            raise EditError("the path has a NUL character in it.")
        return posixpath.normpath(path)

    async def _read(self, path: str) -> _File:
        """Raises IsADirectoryError for a directory, EditError for anything else that is wrong."""
        try:
            return _File.decode(await self._sandbox.read_file(path))
        except (IsADirectoryError, *_OURS):
            raise
        except FileNotFoundError as error:
            raise EditError(f"the path {path} does not exist.") from error
        except (OSError, ValueError) as error:
            raise EditError(f"cannot read {path}: {_reason(error)}.") from error

    async def _read_text(self, path: str) -> _File:
        try:
            return await self._read(path)
        except IsADirectoryError:
            raise EditError(f"{path} is a directory; only `view` works on directories.") from None

    async def _write(self, path: str, data: bytes, *, mode: int) -> None:
        try:
            await self._sandbox.write_file(path, data, mode=mode)
        except _OURS:
            raise
        except (OSError, ValueError) as error:
            raise EditError(f"cannot write {path}: {_reason(error)}.") from error

    async def _mode(self, path: str) -> int:
        """Permission bits of an existing file, so that an edit keeps them."""
        result = await self._sandbox.exec(["stat", "-L", "-c", "%a", "--", path], timeout_s=self._timeout_s)
        text = result.text.strip()
        return int(text, 8) if result.exit_status == 0 and text.isdigit() else 0o644


def numbered(lines: list[str], first: int, what: str) -> str:
    """Lines with their numbers, as `cat -n` prints them; bytes that are not UTF-8 are replaced."""
    body = "".join(f"{number:6}\t{line}\n" for number, line in enumerate(lines, start=first))
    shown = body.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return f"Here's the result of running `cat -n` on {what}:\n{shown}"


def _occurrences(text: str, part: str) -> list[int]:
    """Where `part` occurs, overlapping occurrences included: any doubt makes an edit ambiguous."""
    found: list[int] = []
    start = text.find(part)
    while start >= 0:
        found.append(start)
        start = text.find(part, start + 1)
    return found


def _text(arguments: Mapping[str, Value], name: str, command: str) -> str:
    if name not in arguments:
        raise EditError(f"`{command}` needs `{name}`.")
    return str(arguments[name])


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
