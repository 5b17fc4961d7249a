"""Text that an expression is sure to give: `"py" + "test"`, `"tset"[::-1]`, `"".join(("a", "b"))`.

Used by the lint, so that a name built from pieces reads like the name. It knows only literals and a few
pure methods of texts, runs nothing, and gives up (None) on everything else.
"""

import ast
import base64
import binascii
import codecs
import re
from collections.abc import Callable
from typing import Any, cast

_LIMIT = 4096
"""Longest text built; a longer one is no name."""
_WIDTH = re.compile(r"[0-9*]{4}")
"""In a format: it could ask for any amount of memory."""
_METHODS = frozenset(
    {"join", "replace", "lower", "upper", "strip", "lstrip", "rstrip", "swapcase", "decode", "encode"}
    | {"casefold", "title", "capitalize", "format", "removeprefix", "removesuffix", "hex"}
)
_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "b64decode": base64.b64decode,
    "urlsafe_b64decode": base64.urlsafe_b64decode,
    "b32decode": base64.b32decode,
    "b16decode": base64.b16decode,
    "b85decode": base64.b85decode,
    "a85decode": base64.a85decode,
    "unhexlify": binascii.unhexlify,
    "a2b_hex": binascii.unhexlify,
}


def folded_text(node: ast.AST) -> str | None:
    """The text or bytes (as latin-1) that `node` gives when that is certain; None otherwise."""
    try:
        value = _fold(node)
    except (
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
        LookupError,
    ):
        return None
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else None


def _fold(node: ast.AST) -> Any:
    """None for what is not understood; also for a value that has grown too long."""
    value = _value(node)
    too_long = isinstance(value, str | bytes | tuple) and len(cast(str, value)) > _LIMIT
    return None if too_long else cast(Any, value)


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=str(text) | bytes(text)):
            return text
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _fold(operand)
            return -number if isinstance(number, int) else None
        case ast.Tuple(elts=items) | ast.List(elts=items):
            values = tuple(_fold(item) for item in items)
            return None if None in values else values
        case ast.JoinedStr(values=parts):
            return _join([_fold(part) for part in parts])
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
            return _fold(value)
        case ast.BinOp(left=left, op=operator, right=right):
            return _operate(operator, _fold(left), _fold(right))
        case ast.Subscript(value=value, slice=index):
            return _subscript(_fold(value), index)
        case ast.Call(func=function, args=arguments, keywords=[]):
            return _call(function, [_fold(argument) for argument in arguments])
        case _:
            return None


def _join(parts: list[Any]) -> Any:
    texts = [str(part) if isinstance(part, int) else part for part in parts]
    return "".join(text for text in texts if isinstance(text, str)) if None not in texts else None


def _operate(operator: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Mult) and isinstance(left, str) and isinstance(right, int):
        return left * right if len(left) * right <= _LIMIT else None
    if isinstance(operator, ast.Mod) and isinstance(left, str) and right is not None:
        return None if _WIDTH.search(left) or "*" in left else left % right
    if isinstance(left, int) and isinstance(right, int):
        if isinstance(operator, ast.Sub):
            return left - right
        if isinstance(operator, ast.BitXor):
            return left ^ right
    return None


def _subscript(value: Any, index: ast.expr) -> Any:
    if not isinstance(value, str | bytes | tuple):
        return None
    if isinstance(index, ast.Slice):
        bounds = [None if part is None else _fold(part) for part in (index.lower, index.upper, index.step)]
        if not all(bound is None or isinstance(bound, int) for bound in bounds):
            return None
        return cast(str, value)[slice(*bounds)]
    number = _fold(index)
    return cast(str, value)[number] if isinstance(number, int) else None


def _call(function: ast.expr, arguments: list[Any]) -> Any:
    if None in arguments:
        return None
    if isinstance(function, ast.Name):
        return _builtin(function.id, arguments)
    if not isinstance(function, ast.Attribute):
        return None
    name = function.attr
    if name in _DECODERS and len(arguments) == 1:
        data = arguments[0].encode() if isinstance(arguments[0], str) else arguments[0]
        return _DECODERS[name](data) if isinstance(data, bytes) else None
    if name == "decode" and len(arguments) == 2 and isinstance(arguments[0], str):
        return cast(Any, codecs.decode)(arguments[0], arguments[1])
    if name == "fromhex" and isinstance(arguments[0], str):
        return bytes.fromhex(arguments[0])
    value = _fold(function.value)
    if isinstance(value, str | bytes) and name in _METHODS:
        if name == "format" and _WIDTH.search(str(value)):
            return None
        return getattr(value, name)(*arguments)
    return None


def _builtin(name: str, arguments: list[Any]) -> Any:
    if name == "chr" and isinstance(arguments[0], int):
        return chr(arguments[0])
    if name == "bytes" and isinstance(arguments[0], tuple):
        return bytes(cast(tuple[int, ...], arguments[0]))
    if name == "str" and len(arguments) == 1 and isinstance(arguments[0], str | int):
        return str(arguments[0])
    if name == "reversed" and isinstance(arguments[0], str):
        return tuple(reversed(arguments[0]))
    return None
