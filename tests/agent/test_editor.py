"""The editor on files in memory: exact bytes, unique matches, messages that help."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.swe.editor import Editor
from tests.agent.fakes import FakeSandbox

PATH = "/testbed/a.py"


def editor(files: dict[str, bytes]) -> tuple[Editor, FakeSandbox]:
    sandbox = FakeSandbox(files)
    return Editor(sandbox, workdir="/testbed", snippet_lines=1, timeout_s=5), sandbox


async def edit(data: bytes, **arguments: Any) -> tuple[str, bytes]:
    tool, sandbox = editor({PATH: data})
    return await tool.run({"path": PATH, **arguments}), sandbox.files[PATH]


async def test_view_numbers_lines() -> None:
    shown, _ = await edit(b"a\nb\nc\n", command="view", view_range=(2, 3))
    assert shown == f"Here's the result of running `cat -n` on {PATH}:\n     2\tb\n     3\tc\n"


async def test_view_to_the_end_and_beyond() -> None:
    assert "     3\tc" in (await edit(b"a\nb\nc", command="view", view_range=(2, -1)))[0]
    assert "     3\tc" in (await edit(b"a\nb\nc", command="view", view_range=(1, 99)))[0]
    assert "between 1 and 3" in (await edit(b"a\nb\nc", command="view", view_range=(4, 5)))[0]
    assert "before it begins" in (await edit(b"a\nb\nc", command="view", view_range=(3, 2)))[0]


async def test_view_directory() -> None:
    tool, _ = editor({PATH: b"", "/testbed/src/b.py": b""})
    assert PATH in await tool.run({"command": "view", "path": "/testbed/"})
    assert "directory" in await tool.run({"command": "view", "path": "/testbed", "view_range": (1, 2)})
    assert "directory" in await tool.run({"command": "str_replace", "path": "/testbed", "old_str": "a"})


async def test_str_replace_shows_a_snippet() -> None:
    shown, data = await edit(b"a\nb\nc\nd\n", command="str_replace", old_str="b\nc", new_str="x")
    assert data == b"a\nx\nd\n"
    assert "     1\ta\n     2\tx\n     3\td\n" in shown


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("z", "y", "does not occur verbatim"),
        ("a", "y", "lines 1, 3"),
        ("b", "b", "same as"),
        ("", "y", "empty"),
    ],
)
async def test_str_replace_refuses(old: str, new: str, hint: str) -> None:
    shown, data = await edit(b"a\nb\na\n", command="str_replace", old_str=old, new_str=new)
    assert hint in shown
    assert data == b"a\nb\na\n"


async def test_overlapping_occurrences_are_ambiguous() -> None:
    assert "not unique" in (await edit(b"aaa", command="str_replace", old_str="aa", new_str="b"))[0]


async def test_tabs_are_kept_and_hinted_at() -> None:
    shown, data = await edit(b"if x:\n\ty = 1\n", command="str_replace", old_str="        y = 1", new_str="")
    assert "tabs" in shown
    assert data == b"if x:\n\ty = 1\n"
    _, data = await edit(
        b"if x:\n\ty = 1\n\tz = 1\n", command="str_replace", old_str="y = 1", new_str="y = 2"
    )
    assert data == b"if x:\n\ty = 2\n\tz = 1\n"


async def test_insert_at_both_ends() -> None:
    assert (await edit(b"a\nb\n", command="insert", insert_line=0, new_str="x"))[1] == b"x\na\nb\n"
    assert (await edit(b"a\nb\n", command="insert", insert_line=2, new_str="x"))[1] == b"a\nb\nx\n"
    assert "between 0 and 3" in (await edit(b"a\nb\n", command="insert", insert_line=4, new_str="x"))[0]
    assert "needs `insert_line`" in (await edit(b"a\n", command="insert", new_str="x"))[0]


async def test_create_and_undo() -> None:
    tool, sandbox = editor({PATH: b"a"})
    assert "exists already" in await tool.run({"command": "create", "path": PATH, "file_text": "b"})
    new = "/testbed/new.py"
    assert "created" in await tool.run({"command": "create", "path": new, "file_text": "b\n"})
    await tool.run({"command": "str_replace", "path": new, "old_str": "b", "new_str": "c"})
    assert sandbox.files[new] == b"c\n"
    await tool.run({"command": "undo_edit", "path": new})
    assert sandbox.files[new] == b"b\n"
    assert "removed" in await tool.run({"command": "undo_edit", "path": new})
    assert new not in sandbox.files
    assert "no edit" in await tool.run({"command": "undo_edit", "path": new})


async def test_mode_is_kept() -> None:
    tool, sandbox = editor({PATH: b"a"})
    sandbox.modes[PATH] = 0o755
    await tool.run({"command": "str_replace", "path": PATH, "old_str": "a", "new_str": "b"})
    assert sandbox.modes[PATH] == 0o755


async def test_paths() -> None:
    tool, _ = editor({PATH: b"a"})
    assert f"Did you mean {PATH}?" in await tool.run({"command": "view", "path": "a.py"})
    assert "does not exist" in await tool.run({"command": "view", "path": "/testbed/b.py"})


async def test_missing_parameters_are_named() -> None:
    assert "needs `old_str`" in (await edit(b"", command="str_replace"))[0]
    assert "needs `new_str`" in (await edit(b"", command="insert", insert_line=0))[0]
    tool, _ = editor({})
    assert "needs `file_text`" in await tool.run({"command": "create", "path": PATH})


@given(before=st.binary(max_size=60), after=st.binary(max_size=60))
async def test_bytes_around_an_edit_survive(before: bytes, after: bytes) -> None:
    marker = b"@marker@"
    data = before + marker + after
    _, edited = await edit(data, command="str_replace", old_str="@marker@", new_str="@changed@")
    if data.count(marker) == 1:
        assert edited == before + b"@changed@" + after


@given(st.lists(st.sampled_from(["a", "b", "", "\ttext", "é"]), min_size=2, max_size=8))
async def test_crlf_is_kept(lines: list[str]) -> None:
    data = "\r\n".join(["first", *lines]).encode()
    _, edited = await edit(
        data, command="str_replace", old_str=f"first\n{lines[0]}", new_str=f"1\n2\n{lines[0]}"
    )
    assert edited == "\r\n".join(["1", "2", *lines]).encode()
    shown, _ = await edit(data, command="view")
    assert "\r" not in shown


async def test_view_of_bytes_is_text() -> None:
    shown, _ = await edit(b"caf\xe9\n", command="view")
    shown.encode("utf-8")
    assert "caf\ufffd" in shown


@pytest.mark.parametrize("error", [ConnectionResetError("helper"), TimeoutError("slow")])
async def test_faults_of_the_sandbox_are_not_observations(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tool, sandbox = editor({PATH: b"a"})

    async def fail(path: str, **_: Any) -> bytes:
        raise error

    monkeypatch.setattr(sandbox, "read_file", fail)
    for command in ("view", "create", "str_replace"):
        with pytest.raises(type(error)):
            await tool.run({"command": command, "path": PATH, "file_text": "", "old_str": "a"})


async def test_a_refused_write_is_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    tool, sandbox = editor({PATH: b"a"})

    async def fail(path: str, data: bytes, **_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sandbox, "write_file", fail)
    shown = await tool.run({"command": "str_replace", "path": PATH, "old_str": "a", "new_str": "b"})
    assert "No space left on device" in shown
    assert "no edit" in await tool.run({"command": "undo_edit", "path": PATH})
