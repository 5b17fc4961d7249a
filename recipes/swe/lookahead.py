"""A data loader that knows its next batch.

`Lookahead` hands out the batches of the loader that it wraps, in the same order, and fetches each one batch
early, so that sandboxes for the next step can be opened while the policy is updated. Its state is that of the
batches that were handed out: a checkpoint resumes as it would without. The last batch of an epoch has no
known successor.
"""

from collections.abc import Iterator
from typing import Any

_END = object()


class Lookahead:
    """Stands where SkyRL's trainer keeps its `StatefulDataLoader`."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._state: dict[str, Any] | None = None
        self.next_batch: list[dict[str, Any]] = []
        """The batch that comes after the one handed out last; empty when that is not known."""

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        batches = iter(self._loader)
        ahead = next(batches, _END)
        while ahead is not _END:
            batch: Any = ahead
            self._state = self._loader.state_dict()
            ahead = next(batches, _END)
            self.next_batch = [] if ahead is _END else list(ahead)  # type: ignore[call-overload]
            yield batch
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """State after the batch that was handed out last."""
        return self._loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there with the next iteration."""
        self._state, self.next_batch = None, []
        self._loader.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
