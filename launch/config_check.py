"""Checks plain configuration data against dataclasses and reports every fault, not just the first.

Types, ranges, unknown and missing keys are told by path (`trainer.lr: must be a number, is 'abc'`).
It serves our own schema and SkyRL's dataclasses alike, since SkyRL itself does not check types. It
changes nothing and converts nothing: an integer is accepted where a float is wanted, no more.
"""

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

MISSING = "???"


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, both included."""

    low: float
    """Smallest value allowed."""
    high: float = float("inf")
    """Largest value allowed."""


@dataclass(frozen=True, slots=True)
class Above:
    """A bound that is itself not allowed."""

    low: float
    """Values must be larger than this."""


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """Of a text."""


def check(value: Any, kind: Any, path: str = "") -> list[str]:
    """Every way in which `value` is not a `kind` (a dataclass, or any type hint used in one)."""
    if isinstance(value, str) and value == MISSING:
        return [f"{path}: is required and has no value; set {path}=..."]
    if get_origin(kind) is Annotated:
        base, *bounds = get_args(kind)
        return check(value, base, path) or _check_bounds(value, bounds, path)
    if dataclasses.is_dataclass(kind):
        return _check_dataclass(value, cast(type, kind), path)
    if get_origin(kind) in (Union, types.UnionType):
        return _check_union(value, get_args(kind), path)
    if get_origin(kind) is Literal:
        allowed = get_args(kind)
        if any(value == choice and type(value) is type(choice) for choice in allowed):
            return []
        return [f"{path}: must be one of {', '.join(map(str, allowed))}, is {value!r}"]
    return _check_container_or_scalar(value, kind, path)


def _check_dataclass(value: Any, kind: type, path: str) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{path}: must be a group of keys, is {value!r}"]
    given = cast(Mapping[str, Any], value)
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    errors: list[str] = []
    for name in given:
        if name not in fields:
            errors.append(f"{_join(path, str(name))}: unknown key{_did_you_mean(str(name), fields)}")
    for name, field in fields.items():
        if name in given:
            errors.extend(check(given[name], hints[name], _join(path, name)))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            errors.append(f"{_join(path, name)}: is required and missing")
    return errors


def _check_union(value: Any, options: tuple[Any, ...], path: str) -> list[str]:
    if value is None and type(None) in options:
        return []
    attempts = [check(value, option, path) for option in options if option is not type(None)]
    return [] if any(not errors for errors in attempts) else min(attempts, key=len)


def _check_container_or_scalar(value: Any, kind: Any, path: str) -> list[str]:
    origin = get_origin(kind) or kind
    arguments = get_args(kind)
    if origin in (list, tuple, set) or getattr(origin, "__name__", "") == "Sequence":
        if not isinstance(value, list | tuple):
            return [f"{path}: must be a list, is {value!r}"]
        if not arguments:
            return []
        items = cast(Iterable[Any], value)
        return [e for i, item in enumerate(items) for e in check(item, arguments[0], f"{path}[{i}]")]
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, Mapping):
            return [f"{path}: must be a group of keys, is {value!r}"]
        if len(arguments) < 2 or arguments[1] is Any:
            return []
        group = cast(Mapping[str, Any], value)
        return [e for name, one in group.items() for e in check(one, arguments[1], f"{path}.{name}")]
    return _check_scalar(value, kind, path)


def _check_scalar(value: Any, kind: Any, path: str) -> list[str]:
    fits = {
        bool: lambda: isinstance(value, bool),
        int: lambda: isinstance(value, int) and not isinstance(value, bool),
        float: lambda: isinstance(value, int | float) and not isinstance(value, bool),
        str: lambda: isinstance(value, str),
    }.get(kind)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if fits is None or fits():
        return []
    return [f"{path}: must be {words[kind]}, is {value!r}"]


def _check_bounds(value: Any, bounds: list[Any], path: str) -> list[str]:
    if value == "" and any(isinstance(bound, NotEmpty) for bound in bounds):
        return [f"{path}: must not be empty"]
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return []
    for bound in bounds:
        if isinstance(bound, Above) and not value > bound.low:
            return [f"{path}: must be above {bound.low:g}, is {value!r}"]
        if isinstance(bound, Between) and not bound.low <= value <= bound.high:
            upper = "" if bound.high == float("inf") else f" and at most {bound.high}"
            return [f"{path}: must be at least {bound.low}{upper}, is {value!r}"]
    return []


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
