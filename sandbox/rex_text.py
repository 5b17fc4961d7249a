"""What SWE-ReX's callers expect of text: decoding, terminal escapes, and the words of its errors.

Pure functions; nothing here knows of sandboxes.
"""

import re

PROMPT = "SHELLPS1PREFIX"
"""What SWE-ReX puts into `expect_string` when a command ended by itself: the prompt of its shell."""

_ESCAPES = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: window titles, links
    r"|[ -/]+[0-~]"  # nF: character sets
    r"|[0-Z\\^-~]"  # two-character sequences
    r")"
)

_RESERVED = "if|then|elif|else|fi|for|while|until|do|done|case|esac|in|select|function|coproc|time"
_WORD = r"""(?:[\w./:=,@%+^~*?-]|'[^']*'|"[^"\\$`]*"|\$\w)++"""
_REDIRECTION = rf"[0-9]?(?:>>?[ \t]*{_WORD}|<[ \t]*{_WORD}|>&[0-9])"
_SIMPLE = rf"(?!(?:{_RESERVED})\b){_WORD}(?:[ \t]+(?:{_REDIRECTION}|{_WORD}))*+"
_PLAIN_COMMAND = re.compile(rf"[ \t]*{_SIMPLE}(?:[ \t]*(?:&&|\|\|?|;)[ \t]*{_SIMPLE})*+\s*", re.ASCII)


def is_plain_command(command: str) -> bool:
    """True for lines such as `cd /x && grep -n "a b" y.py | head -5`, which bash parses whatever the words
    are: no substitution, no compound command, no here-document. False means only that bash must be asked."""
    return _PLAIN_COMMAND.fullmatch(command) is not None


def decode(data: bytes) -> str:
    """Output as SWE-ReX gives it: bytes that are not UTF-8 become `\\xNN`."""
    return data.decode("utf-8", "backslashreplace")


def plain(text: str) -> str:
    """Without terminal escape sequences (ECMA-48)."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def from_terminal(data: bytes) -> str:
    """What a program wrote to a terminal: no escapes, and line ends as in files."""
    return plain(decode(data)).replace("\r\n", "\n")


def first_match(text: str, wanted: list[str]) -> tuple[int, str] | None:
    """Position and string of the wanted string that begins first in the text; the longest at a tie."""
    found = [(text.find(string), -len(string), string) for string in wanted if string and string in text]
    if not found:
        return None
    position, _, string = min(found)
    return position, string


def with_reason(reason: str, message: str) -> str:
    """The caller's `error_msg` in front of ours."""
    return f"{reason}: {message}" if reason else message
