"""The function-call format: every value survives, every malformed response gets a message that helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.swe.parsing import TOOLS, FormatError, format_call, parse

values = st.text().filter(lambda text: "</parameter>" not in text)


@given(thought=st.text().filter(lambda text: "<function=" not in text), command=values)
def test_any_command_survives(thought: str, command: str) -> None:
    call = parse(f"{thought}\n{format_call('bash', {'command': command})}")
    assert call.name == "bash"
    assert call.arguments == {"command": command}
    assert call.thought == thought.strip()


@given(path=values, old=values, new=values)
def test_any_edit_survives(path: str, old: str, new: str) -> None:
    arguments = {"command": "str_replace", "path": path, "old_str": old, "new_str": new}
    assert parse(format_call("str_replace_editor", arguments)).arguments == arguments


@given(st.text())
def test_any_text_parses_or_raises_format_error(text: str) -> None:
    try:
        call = parse(text)
    except FormatError as error:
        assert error.message
    else:
        assert call.name in TOOLS


@given(
    st.lists(
        st.sampled_from(["<function=bash>", "<parameter=command>", "</parameter>", "</function>", "\n", "x"])
    )
)
def test_any_order_of_tags_parses_or_raises_format_error(parts: list[str]) -> None:
    try:
        parse("".join(parts))
    except FormatError as error:
        assert error.message


def test_values_may_hold_tags_of_the_format() -> None:
    text = "<function=bash>\n<parameter=command>ls\n</function>"
    assert parse(format_call("bash", {"command": text})).arguments["command"] == text


def test_layout_newlines_are_dropped_once() -> None:
    call = parse("<function=bash>\n<parameter=command>\n\nls\n\n</parameter>\n</function>")
    assert call.arguments["command"] == "\nls\n"


def test_names_of_other_agents() -> None:
    assert parse("<function=finish>\n</function>").name == "submit"
    assert parse("<function=execute_bash>\n<parameter=command>ls</parameter>\n</function>").name == "bash"


def test_typed_values() -> None:
    view = "<function=str_replace_editor><parameter=command> view </parameter><parameter=path>/a</parameter>"
    assert parse(f"{view}<parameter=view_range>[3, -1]</parameter></function>").arguments["view_range"] == (
        3,
        -1,
    )
    insert = view.replace(" view ", "insert")
    assert parse(f"{insert}<parameter=insert_line>0</parameter></function>").arguments["insert_line"] == 0


def test_first_of_several_when_allowed() -> None:
    first, second = (format_call("bash", {"command": command}) for command in ("one", "two"))
    assert parse(f"{first}\n{second}", allow_multiple=True).arguments["command"] == "one"


EDITOR = "<function=str_replace_editor>\n<parameter=command>view</parameter>\n"


@pytest.mark.parametrize(
    ("response", "code", "hint"),
    [
        ("", "missing", "no function call"),
        ("```bash\nls\n```", "missing", "no function call"),
        ("<function=bash>", "unclosed", "</function>"),
        ("<function=bash>\n<parameter=command>ls", "unclosed", "`command`"),
        ("<function=bash>\n<parameter=command>ls</parameter>", "unclosed", "</function>"),
        ("<function=bash>\n</function>", "missing_arg", "command"),
        ("<function=python>\n</function>", "invalid_command", "bash, str_replace_editor, submit"),
        ("<function=submit>\n<parameter=x>1</parameter>\n</function>", "unexpected_arg", "no parameters"),
        (f"{EDITOR}</function>", "missing_arg", "path"),
        (
            f"{EDITOR}<parameter=path>/a</parameter><parameter=path>/b</parameter></function>",
            "bad_arg",
            "twice",
        ),
        (
            f"{EDITOR}<parameter=path>/a</parameter><parameter=view_range>1-2</parameter></function>",
            "bad_arg",
            "[",
        ),
        (
            f"{EDITOR}<parameter=path>/a</parameter><parameter=insert_line>x</parameter></function>",
            "bad_arg",
            "x",
        ),
        (
            EDITOR.replace("view", "open") + "<parameter=path>/a</parameter></function>",
            "bad_arg",
            "view, create, str_replace, insert, undo_edit",
        ),
        ("<function=submit>\n</function>" * 2, "multiple", "exactly one"),
    ],
)
def test_malformed(response: str, code: str, hint: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(response)
    assert caught.value.code == code
    assert hint in caught.value.message
