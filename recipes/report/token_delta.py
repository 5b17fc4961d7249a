"""A sequence of token ids as edits of the one before: what is copied from it, and what is new.

Prompts of one rollout repeat each other, whether each extends the last or an old observation was elided in
the middle. Stored as edits they grow with what is new and not with the square of the turns. Looked for are
the two cases that occur: a common start, and the whole end of the sequence before at another place. Anything
else is stored in full, so any sequence can be rebuilt.
"""

from array import array
from collections.abc import Callable, Sequence

from recipes.swe.shared_ids import Edit, SharedIds, TokenIds

ANCHOR = 8
"""Ids at the end of the sequence before by which it is found in the new one."""

SIZE = array("q").itemsize
"""Bytes of one id while comparing."""


def edits(before: TokenIds, ids: TokenIds) -> list[Edit]:
    """Edits that make `ids` of `before`."""
    if isinstance(ids, SharedIds) and (known := ids.edits_of(before)) is not None:
        return known
    if before and ids[: len(before)] == before:  # the usual case; quick where both hold the same objects
        rest = ids[len(before) :]
        return [{"at": 0, "n": len(before)}, *([list(rest)] if rest else [])]
    # Compared as bytes: slices of tuples cost a reference count an id.
    old, new = array("q", before).tobytes(), array("q", ids).tobytes()
    head = _most(min(len(before), len(ids)), lambda n: old[: n * SIZE] == new[: n * SIZE])
    end = _end_of_anchor(old, new, head) if head < len(before) else head
    tail = _most(
        min(len(before) - head, end - head),
        lambda n: old[len(old) - n * SIZE :] == new[(end - n) * SIZE : end * SIZE],
    )
    result: list[Edit] = [{"at": 0, "n": head}] if head else []
    if tail:
        result += [list(ids[head : end - tail]), {"at": len(before) - tail, "n": tail}]
    rest = ids[end:] if tail else ids[head:]
    return [*result, list(rest)] if rest else result


def rebuild(before: TokenIds, made: Sequence[Edit]) -> TokenIds:
    """The ids that `edits` was given."""
    ids: TokenIds = ()
    for edit in made:  # adding to an empty tuple, and slicing a whole one, copies nothing
        ids += before[edit["at"] : edit["at"] + edit["n"]] if isinstance(edit, dict) else tuple(edit)
    return ids


def _most(limit: int, agrees: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that agrees, where all smaller ones do."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if agrees(middle) else (low, middle - 1)
    return low


def _end_of_anchor(old: bytes, new: bytes, start: int) -> int:
    """Where the last `ANCHOR` ids of `old` end in `new`, at their last place from id `start` on."""
    anchor, low, high = old[-ANCHOR * SIZE :], start * SIZE, len(new)
    found = new.rfind(anchor, low, high)
    while found >= 0 and found % SIZE:  # bytes of two neighbours
        found = new.rfind(anchor, low, found + len(anchor) - 1)
    return (found + len(anchor)) // SIZE if found >= 0 else start
