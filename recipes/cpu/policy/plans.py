"""What the scripted agents do: right and plausible wrong edits, and two habits of working.

A *careful* script finds the function, looks at a few lines, then edits; a *hasty* one edits without
looking. Careful scripts are right far more often, so a learner can get better in two ways: by
looking first (the same for every task) and by choosing the right edit (task by task). This module
is pure: text in, scripts out; the scripts are run elsewhere.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from recipes.cpu.policy.types import DemonstrationSettings

CAREFUL_SHARE = 0.5
"""Share of scripts that look before they edit."""
RIGHT_BY_CAREFUL = 0.85
"""Share of a task's right edits that careful scripts make."""
VIEW_LINES = 7
"""Lines that a script looks at: the bug and its neighbours."""
LONGEST_FIX_LINES = 3
"""Longer fixes are not learned by so small a model; such tasks get no right demonstration."""


@dataclass(frozen=True, slots=True)
class TaskSource:
    """The part of a task that scripts are written from."""

    instance_id: str
    """Of the task."""
    path: str
    """Absolute path of the file with the bug, inside the sandbox."""
    buggy: str
    """The file as the agent finds it."""
    fixed: str
    """The file as it should be."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One str_replace."""

    old: str
    """Text that occurs exactly once in the file."""
    new: str
    """What takes its place."""


@dataclass(frozen=True, slots=True)
class Script:
    """One attempt, before its wording is chosen."""

    instance_id: str
    """Of the task."""
    path: str
    """File that is edited."""
    pattern: str
    """What is grepped for."""
    view: tuple[int, int] | None
    """First and last line looked at (from 1); None when the script does not look."""
    edits: tuple[Edit, ...]
    """Replacements, in order."""
    right: bool
    """True when they are the fix."""


def right_edits(task: TaskSource) -> tuple[Edit, ...]:
    """The fix as short replacements, each of text that occurs once when its turn comes."""
    before, after = task.buggy.split("\n"), task.fixed.split("\n")
    edits: list[Edit] = []
    shift = 0
    current = list(before)
    for tag, i1, i2, j1, j2 in SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        edits.append(_unique(current, i1 + shift, i2 + shift, after[j1:j2]))
        current[i1 + shift : i2 + shift] = after[j1:j2]
        shift += (j2 - j1) - (i2 - i1)
    return tuple(edits)


def wrong_edits(task: TaskSource, count: int, *, seed: int) -> list[Edit]:
    """Up to `count` different edits near the bug that look sensible and are not the fix."""
    rng = random.Random(f"{seed}:{task.instance_id}")
    lines = task.buggy.split("\n")
    first, last = bug_lines(task)
    at_bug = [i for i in range(first, last + 1) if lines[i].strip()]
    near = [i for i in _nearby(first, last, len(lines)) if _is_code(lines[i])]
    here = [e for i in at_bug for e in _changes(lines, i)]
    elsewhere = [e for i in near[:6] for e in _changes(lines, i)]
    remarks = [_unique(lines, i, i + 1, [f"{lines[i]}  # fixed"]) for i in (at_bug + near)[:2]]
    rng.shuffle(here)
    fix = right_edits(task)
    chosen: list[Edit] = []
    for edit in _interleave(here, elsewhere, remarks):
        result = task.buggy.replace(edit.old, edit.new, 1)
        too_long = edit.old.count("\n") >= LONGEST_FIX_LINES or edit.old.endswith("\n")
        if result in (task.buggy, task.fixed) or edit in fix or edit in chosen or too_long:
            continue
        chosen.append(edit)
        if len(chosen) == count:
            break
    return chosen


def scripts(task: TaskSource, count: int, settings: DemonstrationSettings, *, seed: int) -> list[Script]:
    """`count` scripts for one task with its share of right ones, in random order."""
    rng = random.Random(f"{seed}:{task.instance_id}:mix")
    fix = right_edits(task)
    wrong = wrong_edits(task, settings.wrong_edits, seed=seed)
    learnable = sum(len(e.new.split("\n")) for e in fix) <= LONGEST_FIX_LINES
    share = settings.right_share + rng.uniform(-settings.right_spread, settings.right_spread)
    rights = round(share * count) if learnable and wrong else (count if learnable else 0)
    careful = round(CAREFUL_SHARE * count)
    careful_rights = min(careful, round(RIGHT_BY_CAREFUL * rights))
    plan = [(True, i < careful_rights) for i in range(careful)]
    plan += [(False, i < rights - careful_rights) for i in range(count - careful)]
    pattern, view = grep_pattern(task), view_range(task)
    made: list[Script] = []
    turn = 0
    for looks, right in plan:
        edits = fix if right else (wrong[turn % len(wrong)],)
        turn += not right
        made.append(Script(task.instance_id, task.path, pattern, view if looks else None, edits, right))
    rng.shuffle(made)
    return made


def bug_lines(task: TaskSource) -> tuple[int, int]:
    """First and last line (from 0) of the buggy file that the fix touches; an insertion counts as its
    neighbour above."""
    matcher = SequenceMatcher(a=task.buggy.split("\n"), b=task.fixed.split("\n"), autojunk=False)
    changes = [(i1, i2) for tag, i1, i2, _, _ in matcher.get_opcodes() if tag != "equal"]
    first, last = changes[0][0], changes[-1][1] - 1
    return max(0, min(first, last)), max(0, last)


def view_range(task: TaskSource) -> tuple[int, int]:
    """A few lines around the bug, from 1."""
    first, last = bug_lines(task)
    spare = max(0, VIEW_LINES - (last - first + 1))
    start = max(1, first + 1 - (spare + 1) // 2)
    return start, min(len(task.buggy.split("\n")), last + 1 + spare // 2)


def grep_pattern(task: TaskSource) -> str:
    """The header of the function (or class) that holds the bug."""
    lines = task.buggy.split("\n")
    first, _ = bug_lines(task)
    for index in range(first, -1, -1):
        found = re.match(r"\s*(?:async )?(def|class) (\w+)", lines[index])
        if found and (index == first or _indent(lines[index]) < _indent(lines[first])):
            return f"{found[1]} {found[2]}"
    return "import"


_SWAPS: tuple[tuple[str, str], ...] = (
    (r" == ", " != "),
    (r" != ", " == "),
    (r" <= ", " > "),
    (r" >= ", " < "),
    (r" < ", " >= "),
    (r" > ", " <= "),
    (r" is not ", " is "),
    (r" not in ", " in "),
    (r" and ", " or "),
    (r" or ", " and "),
    (r" \+ ", " * "),
    (r" - ", " + "),
    (r" \* ", " - "),
    (r" \+= ", " -= "),
    (r" -= ", " += "),
    (r"\bTrue\b", "None"),
    (r"\bFalse\b", "None"),
    (r"\bNone\b", "False"),
    (r"\b0\b", "2"),
    (r"\b1\b", "2"),
    (r"\[:", "[1:"),
    (r"\bif not ", "if "),
    (r"\bif (?!not )", "if not "),
    (r"\breturn (?!None$)(.+)$", "return None"),
    (r"\bbreak\b", "continue"),
    (r"\bcontinue\b", "break"),
    (r" = (.+[^\[({,:\\])$", r" = not \1"),
)
"""A pattern and what a hasty reader would make of it."""


def _changes(lines: Sequence[str], index: int) -> list[Edit]:
    line = lines[index]
    made: list[Edit] = []
    for pattern, replacement in _SWAPS:
        changed = re.sub(pattern, replacement, line, count=1)
        if changed != line:
            made.append(_unique(lines, index, index + 1, [changed]))
    return made


def _unique(lines: Sequence[str], start: int, stop: int, new: Sequence[str]) -> Edit:
    """Replace lines [start, stop) by `new`, with as little context as makes the old text unique."""
    text = "\n".join(lines)
    before, after = 0, 0
    if start == stop or not new:
        before = 1 if start > 0 else 0
        after = 0 if before else 1
    while True:
        low, high = start - before, stop + after
        old = "\n".join(lines[low:high])
        replacement = "\n".join([*lines[low:start], *new, *lines[stop:high]])
        margin = _common_indent(old, replacement)
        trimmed = Edit(old[margin:], replacement[margin:])
        if trimmed.old.strip() and text.count(trimmed.old) == 1:
            return trimmed
        if old.strip() and text.count(old) == 1:
            return Edit(old, replacement)
        if low > 0 and (before <= after or high >= len(lines)):
            before += 1
        elif high < len(lines):
            after += 1
        else:
            return Edit(text, "\n".join([*lines[:start], *new, *lines[stop:]]))


def _common_indent(old: str, new: str) -> int:
    """Leading blanks that both begin with: they need not be spelled out."""
    return min(_indent(old), _indent(new)) if old.strip() and new.strip() else 0


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_code(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith(("#", '"', "'", "@"))


def _nearby(first: int, last: int, length: int) -> Iterator[int]:
    for distance in range(1, 4):
        for index in (last + distance, first - distance):
            if 0 <= index < length:
                yield index


def _interleave(*sources: Sequence[Edit]) -> Iterator[Edit]:
    for rank in range(max((len(s) for s in sources), default=0)):
        for source in sources:
            if rank < len(source):
                yield source[rank]
