"""Fields of a data set's row: read, checked and brought into one form, or refused with a reason.

Data sets differ in how they write the same thing (lists as JSON text, null for empty, Windows line ends), and
some rows are broken. Everything here is about one row and raises FieldError with one line for a person.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from rewards.patches import FilePatch, PatchError, parse_patch

MAX_PATCH_BYTES = 64 << 20
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,119}")
_NO_TESTS = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
"""Files of a test patch that are no tests themselves."""


class FieldError(ValueError):
    """The row cannot be used; the message says which field and why."""


def text_of(row: Mapping[str, Any], name: str) -> str:
    """A field that must hold text."""
    value = row.get(name)
    if value is None:
        raise FieldError(f"{name} is missing")
    if not isinstance(value, str):
        raise FieldError(f"{name} is no text but {type(value).__name__}")
    if not value.strip():
        raise FieldError(f"{name} is empty")
    return _writable(value, name)


def optional_text(row: Mapping[str, Any], name: str) -> str:
    """A field that may be absent, null or empty."""
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise FieldError(f"{name} is no text but {type(value).__name__}")
    return _writable(value, name)


def _writable(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair
        raise FieldError(f"{name} holds a character that no file can, at {error.start}") from error
    return text


def statement_of(row: Mapping[str, Any], name: str = "problem_statement") -> str:
    """What the agent is told, with plain line ends."""
    return text_of(row, name).replace("\r\n", "\n")


def patch_of(row: Mapping[str, Any], name: str, *, required: bool) -> str:
    """A git-format patch that can be read, with its final newline; empty for none."""
    text = optional_text(row, name)
    if not text.strip():
        if required:
            raise FieldError(f"{name} is empty")
        return ""
    if len(text) > MAX_PATCH_BYTES:
        raise FieldError(f"{name} has {len(text) >> 20} MiB, more than {MAX_PATCH_BYTES >> 20}")
    text = _plain_line_ends(text.lstrip("\n"))
    text = text if text.endswith("\n") else text + "\n"
    parts_of(text, name)
    return text


def parts_of(patch: str, name: str) -> tuple[FilePatch, ...]:
    """The files of a patch. `name` is the field, for the message."""
    try:
        parts = parse_patch(patch)
    except PatchError as error:
        raise FieldError(f"{name} is no git patch: {error}") from error
    if not parts:
        raise FieldError(f"{name} is no git patch: it names no file")
    return parts


def _plain_line_ends(patch: str) -> str:
    """Undoes Windows line ends that came with transport. Those of the patched files themselves stay: then the
    header lines, which git writes, do not have them."""
    header = patch.split("\n", 1)[0]
    return patch.replace("\r\n", "\n") if header.endswith("\r") else patch


def tests_of(row: Mapping[str, Any], name: str, *, required: bool) -> tuple[str, ...]:
    """Test ids, from a list or a list as JSON text; each once, in order."""
    value: Any = row.get(name)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise FieldError(f"{name} is text, but no JSON list") from error
    if value is None or (isinstance(value, str) and not value.strip()):
        value = []
    if not isinstance(value, list | tuple):
        raise FieldError(f"{name} is no list of texts")
    ids = cast(list[Any], value)
    if not all(isinstance(item, str) and item.strip() for item in ids):
        raise FieldError(f"{name} is no list of texts")
    if required and not ids:
        raise FieldError(f"{name} is empty")
    return tuple(dict.fromkeys(_writable(item, name) for item in cast(list[str], ids)))


def both_tests(row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """FAIL_TO_PASS and PASS_TO_PASS; what stands in both is FAIL_TO_PASS."""
    fail = tests_of(row, "FAIL_TO_PASS", required=True)
    listed = set(fail)
    return fail, tuple(i for i in tests_of(row, "PASS_TO_PASS", required=False) if i not in listed)


def struct_of(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested record, given as such or as JSON text."""
    value: Any = row.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise FieldError(f"{name} is no JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise FieldError(f"{name} is missing" if value is None else f"{name} is no record")
    return cast(Mapping[str, Any], value)


def words_of(value: Any, name: str) -> tuple[str, ...]:
    """A list of texts, one text for a list of one, or nothing."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(i, str) for i in cast(list[Any], value)):
        raise FieldError(f"{name} is no list of texts")
    return tuple(item for item in cast(list[str], value) if item.strip())


def hidden_test_files(test_patch: str) -> tuple[str, ...]:
    """Files that a test patch leaves behind and that may hold tests, in order."""
    if not test_patch:
        return ()
    paths = (part.new_path for part in parts_of(test_patch, "test_patch"))
    return tuple(path for path in paths if path is not None and not path.endswith(_NO_TESTS))


def safe_key(text: str) -> str:
    """A name for files that no other text has: the text itself where it is plain, else what is readable of it
    and a digest, after a `~` that plain texts do not hold."""
    if _PLAIN.fullmatch(text):
        return text
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:60] or "key"
    return f"{readable}~{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def is_key(text: str) -> bool:
    """Whether it can name a file: plain, or one of `safe_key`'s own."""
    return re.fullmatch(rf"{_PLAIN.pattern}(?:~[0-9a-f]{{16}})?", text) is not None


def unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, in order."""
    return tuple(dict.fromkeys(texts))
