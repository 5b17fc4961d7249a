"""The generator between fan-out and trainer: rows, seeds, and what a broken record costs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from skyrl.train.generators.base import TrajectoryID

from recipes.swe.generator import SweGenerator, rollout_seed
from recipes.swe.types import Rollout, RolloutRequest
from tests.agent.fakes import task
from tests.skyrl.replay import make_rollout, make_turn

WHOLE = [make_turn([1, 2], [3]), make_turn([1, 2, 3, 4], [5])]
ELIDED = [make_turn([1, 2], [3]), make_turn([1, 9, 4], [5])]


class Recorded:
    """Stands in for the fan-out and for an observer."""

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self._rollouts = list(rollouts)
        self.requests: list[RolloutRequest] = []
        self.seen: list[Rollout] = []

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        self.requests = list(requests)
        return self._rollouts

    async def observe(self, phase: str, step: int, rollouts: Sequence[Rollout]) -> None:
        self.seen = list(rollouts)


async def generate(recorded: Recorded, count: int, phase: str = "train", **options: Any) -> Any:
    generator = SweGenerator(
        recorded, {"a": task(instance_id="a")}, seed=7, pad_token_id=0, observers=[recorded], **options
    )
    return await generator.generate(
        {
            "prompts": [[]] * count,
            "trajectory_ids": [TrajectoryID("a", number) for number in range(count)],
            "batch_metadata": SimpleNamespace(global_step=3, training_phase=phase),
            "sampling_params": {"temperature": 0.5, "top_p": 0.9},
        }  # type: ignore[typeddict-item]
    )


async def test_rows_of_each_rollout_stay_together() -> None:
    recorded = Recorded([make_rollout("a", ELIDED, 1.0), make_rollout("a", WHOLE, 0.0)])
    output = await generate(recorded, 2, step_wise=True)
    assert output["response_ids"] == [[3], [5], [3, 4, 5]]
    assert [one.repetition_id for one in output["trajectory_ids"]] == [0, 0, 1]
    assert output["is_last_step"] == [False, True, True]
    first = recorded.requests[0]
    assert (first.trajectory_id, first.temperature, first.top_p) == ("step0003/a/0", 0.5, 0.9)
    assert first.seed == rollout_seed(7, 3, "a", 0)


async def test_elided_records_without_step_wise_training_are_told_not_trained() -> None:
    recorded = Recorded([make_rollout("a", ELIDED, 1.0), make_rollout("a", WHOLE, 0.0)])
    output = await generate(recorded, 2)
    assert output["stop_reasons"] == ["failed_internal", "submitted"]
    assert "step_wise_trajectories is off" in output["failure_messages"][0]
    assert output["rollout_metrics"]["environment/num_fail_internal"] == 1
    assert recorded.seen[0].failure is not None, "observers are told of what is trained"


async def test_overlong_filtering_is_of_training_only() -> None:
    cut = [make_rollout("a", WHOLE, 1.0, end="context"), make_rollout("a", WHOLE, 0.0)]
    trained = await generate(Recorded(cut), 2, overlong_filtering=True)
    assert trained["loss_masks"] == [[0, 0, 0], [1, 0, 1]]
    judged = await generate(Recorded(cut), 2, phase="eval", overlong_filtering=True)
    assert judged["loss_masks"] == [[1, 0, 1], [1, 0, 1]]
