"""docs/failures.md lists exactly the ends and the classes that exist."""

import re
from pathlib import Path
from typing import get_args

from recipes.swe.types import WAITS, EndReason, FailureKind

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "failures.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_end_and_every_class_has_a_row_and_a_counter() -> None:
    for title, names, counter in (
        ("The model's own ends", get_args(EndReason), "num_end_"),
        ("Failures of ours", get_args(FailureKind), "num_fail_"),
    ):
        rows = re.findall(r"^\| `(\w+)` \|.*`(?:environment/)?(\w+)` \|$", section(title), flags=re.MULTILINE)
        assert dict(rows) == {name: counter + name for name in names}


def test_every_wait_is_named() -> None:
    named = PAGE.split("`Rollout.waits_s` has ", 1)[1].split("docs/metrics.md", 1)[0]
    assert sorted(re.findall(r"`(\w+)`", named)) == sorted(WAITS)
