"""The data loader that knows its next batch: same batches, same order, same state as SkyRL's own."""

from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from recipes.swe.lookahead import Lookahead


def loader(seed: int = 3) -> Any:
    """As SkyRL builds it: shuffled by a seeded generator, the last batch dropped when short."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    rows = [{"uid": str(number)} for number in range(11)]
    return StatefulDataLoader(
        rows, batch_size=2, shuffle=True, collate_fn=list, drop_last=True, generator=generator
    )


def test_batches_are_those_of_the_plain_loader_over_epochs() -> None:
    plain, ahead = loader(), Lookahead(loader())
    assert len(ahead) == len(plain) == 5
    for _ in range(3):
        assert list(ahead) == list(plain)


def test_the_next_batch_is_the_one_that_comes() -> None:
    ahead = Lookahead(loader())
    announced: list[Any] = []
    seen: list[Any] = []
    for batch in ahead:
        seen.append(batch)
        announced.append(ahead.next_batch)
    assert announced == [*seen[1:], []]


def after(one: Any, handed_out: int) -> Any:
    """Its state when so many batches were handed out."""
    for number, _ in enumerate(one, start=1):
        if number == handed_out:
            return one.state_dict()
    raise AssertionError("it has fewer")


def test_a_saved_state_goes_on_as_the_plain_loaders_does() -> None:
    for handed_out in range(1, 6):
        plain, ahead = loader(seed=99), Lookahead(loader(seed=99))
        plain.load_state_dict(after(loader(), handed_out))
        ahead.load_state_dict(after(Lookahead(loader()), handed_out))
        resumed = [list(ahead), list(ahead)]
        assert resumed == [list(plain), list(plain)]
        assert resumed[0] == list(loader())[handed_out:]
