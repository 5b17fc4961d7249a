"""The conversation of one rollout as pieces of token ids, from which each prompt is built.

A piece is what was sampled, or a message that was tokenised once; none is ever tokenised again, so a
response stays in every later prompt exactly as it was sampled. Old observations can be elided, as SWE-agent's
`last_n_observations` does it: a short note with their number of lines takes their place. Without that each
prompt extends the one before. It samples nothing and knows no limits.
"""

from dataclasses import dataclass

from recipes.swe.chat import ChatCodec

ELIDED = "Old environment output: ({lines} lines omitted)"
"""What replaces an elided observation, in SWE-agent's words."""


def elided_count(observations: int, keep_last: int | None, every: int = 1) -> int:
    """How many of the first `observations` are elided.

    SWE-agent counts the task's own message as the first observation, never elides it, and moves on only
    when that count reaches a multiple of `every`: between `keep_last` and `keep_last + every - 1` stay."""
    if keep_last is None:
        return 0
    return max(0, (observations + 1) // every * every - keep_last - 1)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One response and the observation that followed."""

    response_ids: tuple[int, ...]
    """As sampled."""
    shown_ids: tuple[int, ...]
    """All that stands between this response and the next."""
    elided_ids: tuple[int, ...]
    """The same with the note in place of the observation; empty when nothing is ever elided."""


class History:
    """Prompts of one rollout."""

    def __init__(
        self, codec: ChatCodec, first_prompt: tuple[int, ...], *, keep_last: int | None, every: int = 1
    ) -> None:
        """`keep_last` observations stay readable, all of them with None; see `elided_count` for `every`."""
        self._codec = codec
        self._first = first_prompt
        self._keep_last = keep_last
        self._every = every
        self._exchanges: list[_Exchange] = []
        self._prompt = first_prompt

    @property
    def prompt(self) -> tuple[int, ...]:
        """Ids of the next prompt."""
        return self._prompt

    def add(self, response_ids: tuple[int, ...], observation: str) -> None:
        """Append a sampled response and what the agent is shown next."""
        closed = self._codec.is_closed(response_ids)
        shown = self._codec.continue_(observation, closed=closed)
        if self._keep_last is None:
            self._prompt = self._prompt + response_ids + shown
            return
        note = ELIDED.format(lines=len(observation.splitlines()))
        elided = self._codec.continue_(note, closed=closed)
        self._exchanges.append(_Exchange(response_ids, shown, elided))
        self._prompt = self._build()

    def _build(self) -> tuple[int, ...]:
        elided = elided_count(len(self._exchanges), self._keep_last, self._every)
        ids = list(self._first)
        for number, exchange in enumerate(self._exchanges):
            ids += exchange.response_ids
            ids += exchange.elided_ids if number < elided else exchange.shown_ids
        return tuple(ids)
