"""The comparison of plain data with dataclasses."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from launch.config_check import Above, Between, check


@dataclass
class Inner:
    share: Annotated[float, Between(0, 1)]
    positive: Annotated[float, Above(0)] = 1.0


@dataclass
class Outer:
    inner: Inner
    kind: Literal["a", "b"] = "a"
    names: list[str] = field(default_factory=list)
    maybe: int | None = None
    flag: bool = False
    free: dict[str, Any] = field(default_factory=dict)


def test_what_is_right_has_no_errors():
    good = {
        "inner": {"share": 1},
        "kind": "b",
        "names": ["x"],
        "maybe": None,
        "flag": True,
        "free": {"any": [1]},
    }
    assert check(good, Outer) == []


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"inner": {"share": 1.5}}, "inner.share: must be at least 0 and at most 1, is 1.5"),
        ({"inner": {"share": True}}, "inner.share: must be a number, is True"),
        ({"inner": {"share": 0, "positive": 0}}, "inner.positive: must be above 0, is 0"),
        ({"inner": {}}, "inner.share: is required and missing"),
        ({"inner": {"share": "???"}}, "inner.share: is required and has no value; set inner.share=..."),
        ({"inner": 3}, "inner: must be a group of keys, is 3"),
        ({"inner": {"share": 1}, "kind": "c"}, "kind: must be one of a, b, is 'c'"),
        ({"inner": {"share": 1}, "names": "x"}, "names: must be a list, is 'x'"),
        ({"inner": {"share": 1}, "names": ["x", 2]}, "names[1]: must be text, is 2"),
        ({"inner": {"share": 1}, "maybe": 1.5}, "maybe: must be a whole number, is 1.5"),
        ({"inner": {"share": 1}, "flag": 1}, "flag: must be true or false, is 1"),
        ({"inner": {"share": 1}, "free": 1}, "free: must be a group of keys, is 1"),
        ({"inner": {"share": 1}, "king": "a"}, "king: unknown key (did you mean kind?)"),
    ],
)
def test_each_fault_is_told_by_path(value: dict[str, Any], error: str):
    assert check(value, Outer) == [error]


def test_all_faults_are_told():
    assert len(check({"inner": {"share": 2, "x": 1}, "kind": 3, "flag": None}, Outer)) == 4
