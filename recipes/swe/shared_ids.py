"""Prompts of one conversation that share their ids.

Where each prompt extends the one before, keeping every prompt as a tuple of its own costs memory and time
that grow with the square of the turns (128 rollouts of 150 turns in 16,000 tokens: over a gigabyte).
`SharedIds` is the beginning of a conversation that all its prompts share: it compares, slices and adds as the
tuple would, and costs no copy where the answer is a beginning of the same conversation. Where it was rebuilt
of edits (`recipes.report.token_delta`) it keeps them, so that nobody has to look for them again. It changes
no value.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

type TokenIds = "tuple[int, ...] | SharedIds"
type Edit = dict[str, int] | list[int]
"""`{"at": start, "n": count}` copies from the sequence before; a list is new ids. Both survive JSON."""
type PackedEdit = dict[str, int] | bytes
"""The same with new ids as signed 64-bit integers of this machine."""


def packed(made: Iterable[Edit]) -> tuple[PackedEdit, ...]:
    """Edits as they travel."""
    return tuple(edit if isinstance(edit, dict) else array("q", edit).tobytes() for edit in made)


def unpacked(made: Iterable[PackedEdit]) -> list[Edit]:
    """Edits as they were."""
    return [edit if isinstance(edit, dict) else unpacked_ids(edit) for edit in made]


def unpacked_ids(data: bytes) -> list[int]:
    """Ids out of their bytes."""
    values = array("q")
    values.frombytes(data)
    return values.tolist()


class SharedIds(Sequence[int]):
    """The first `length` ids of `whole`; equal to the tuple of them."""

    __slots__ = ("_length", "_origin", "_whole")

    def __init__(
        self,
        whole: tuple[int, ...],
        length: int,
        origin: tuple[TokenIds, tuple[PackedEdit, ...]] | None = None,
    ) -> None:
        """`origin`: other ids, and edits that make these of them. ValueError: `whole` is shorter."""
        if not 0 <= length <= len(whole):
            raise ValueError(f"{length} of {len(whole)} ids")
        self._whole, self._length, self._origin = whole, length, origin

    def edits_of(self, before: TokenIds) -> list[Edit] | None:
        """The edits that made these ids of `before`; None when they were not made of it."""
        return unpacked(self._origin[1]) if self._origin is not None and self._origin[0] == before else None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self._whole[: self._length])

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> TokenIds: ...
    def __getitem__(self, index: int | slice) -> int | TokenIds:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if start == 0 and step == 1:
                return SharedIds(self._whole, stop)
            return self._whole[start:stop] if step == 1 else self._whole[: self._length][index]
        return self._whole[range(self._length)[index]]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedIds) and other._whole is self._whole:
            return other._length == self._length
        if not isinstance(other, (SharedIds, tuple)):
            return NotImplemented
        if len(other) != self._length or self._whole[max(self._length - 8, 0) : self._length] != other[-8:]:
            return False  # what differs mostly differs in the end: the whole is not looked at
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __add__(self, other: TokenIds) -> TokenIds:
        end = self._length + len(other)
        if self._whole[self._length : end] == other:
            return SharedIds(self._whole, end)
        return self._whole[: self._length] + tuple(other)

    def __radd__(self, other: tuple[int, ...]) -> tuple[int, ...]:
        return other + self._whole[: self._length]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedIds, (self._whole, self._length)  # edits can be found again
