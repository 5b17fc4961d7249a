import dataclasses

from rewards.grade import grade
from tests.rewards.project import GOLD, SPEC, LocalSandbox


async def test_gold_earns_one(local: LocalSandbox) -> None:
    result = await grade(SPEC, GOLD, local)
    assert result.reasons == ()
    assert (result.reward, result.resolved, result.f2p_fraction, result.p2p_broken) == (1.0, True, 1.0, 0)
