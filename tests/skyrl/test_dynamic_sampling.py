"""Dynamic sampling over whole groups: failed rollouts, trajectories of several rows, batches with nothing."""

from typing import Any

import pytest
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.utils.trainer_utils import validate_generator_output

from recipes.swe.dynamic_sampling import NothingToLearnError, SamplingRound, groups_of, joined

FLAT, MIXED = (1.0, 1.0), (1.0, 0.0)


def batch(groups: dict[str, tuple[float, ...]], rows: int = 1, failed: tuple[str, ...] = ()) -> list[Any]:
    """The groups of a batch; each trajectory has `rows` rows, the last rollout of the `failed` failed."""
    owners = [
        (uid, number, row, reward)
        for uid, rewards in groups.items()
        for number, reward in enumerate(rewards)
        for row in range(rows)
    ]
    output: Any = {
        "prompt_token_ids": [[1, row] for _, _, row, _ in owners],
        "response_ids": [[number, row] for _, number, row, _ in owners],
        "rewards": [reward for *_, reward in owners],
        "loss_masks": [[1, 1]] * len(owners),
        "stop_reasons": ["submitted"] * len(owners),
        "rollout_logprobs": None,
        "trajectory_ids": [TrajectoryID(uid, number) for uid, number, *_ in owners],
        "is_last_step": [row == rows - 1 for _, _, row, _ in owners] if rows > 1 else None,
        "trajectory_time_splits": {"llm": [float(row) for _, _, row, _ in owners]},
        "rollout_metrics": {"environment/num_rollouts": 4.0},
    }
    out = [uid in failed and number == len(groups[uid]) - 1 for uid, number, *_ in owners]
    return groups_of(output, [uid for uid, *_ in owners], out)


def choose(sampled: SamplingRound, kind: str = "filter", **changes: Any):
    keys = {"wanted": 2, "most_batches": 3, "least_share": 0.3} | changes
    return sampled.choose(kind, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 3])
def test_filter_samples_on_until_the_step_is_full(rows: int):
    sampled = SamplingRound()
    sampled.add(batch({"a": FLAT, "b": FLAT}, rows), {"environment/resolved_mean": 1.0})
    assert choose(sampled) is None  # SkyRL's own fails here: it cannot cut a batch down to nothing
    sampled.add(batch({"c": MIXED, "d": FLAT}, rows), {"environment/resolved_mean": 0.5})
    assert choose(sampled) is None
    sampled.add(batch({"e": MIXED, "f": MIXED}, rows), {"environment/num_rollouts": 4.0})
    chosen = choose(sampled)
    assert chosen is not None
    output, uids = joined(chosen)
    assert uids == ["c"] * 2 * rows + ["e"] * 2 * rows
    assert [one.instance_id for one in output["trajectory_ids"]] == uids
    assert len(output["trajectory_time_splits"]["llm"]) == len(uids)
    validate_generator_output(4, output, step_wise=rows > 1)
    assert sampled.combined_metrics() == {
        "environment/resolved_mean": 0.75,
        "environment/num_rollouts": 4.0,
        "environment/num_sampled_batches": 3.0,
    }


def test_a_task_that_comes_again_is_a_group_of_its_own():
    sampled = SamplingRound()
    sampled.add(batch({"a": MIXED, "b": FLAT}), {})
    sampled.add(batch({"a": MIXED, "c": FLAT}), {})
    chosen = choose(sampled)
    assert chosen is not None and joined(chosen)[1] == ["a", "a", "a#copy2", "a#copy2"]


def test_at_the_limit_the_step_is_filled_up_and_ends_only_with_nothing_at_all():
    sampled = SamplingRound()
    sampled.add(batch({"a": FLAT, "b": MIXED}), {})
    chosen = choose(sampled, most_batches=1)
    assert chosen is not None and joined(chosen)[1] == ["b", "b", "a", "a"]
    nothing = SamplingRound()
    nothing.add(batch({"a": FLAT, "b": (0.0, 0.0)}), {})
    assert choose(nothing, most_batches=2) is None
    assert choose(nothing, most_batches=-1) is None  # for ever
    nothing.add(batch({"c": FLAT}), {})
    with pytest.raises(NothingToLearnError, match="in 2 batches"):
        choose(nothing, most_batches=2)


@pytest.mark.parametrize("rows", [1, 2])
def test_replace_puts_copies_in_their_place(rows: int):
    sampled = SamplingRound()
    sampled.add(batch({"a": FLAT, "b": MIXED, "c": FLAT, "d": MIXED}, rows), {})
    chosen = choose(sampled, "replace")
    assert chosen is not None
    output, uids = joined(chosen)
    assert list(dict.fromkeys(uids)) == ["b", "d", "d#copy1", "b#copy2"]
    assert [one.instance_id for one in output["trajectory_ids"]] == uids
    per_group = 2 * rows
    assert output["rewards"][:per_group] == output["rewards"][-per_group:]
    validate_generator_output(8, output, step_wise=rows > 1)
    few = SamplingRound()
    few.add(batch({"a": FLAT, "b": FLAT, "c": FLAT, "d": MIXED}, rows), {})
    assert choose(few, "replace") is None and few.useful == []


def test_a_failed_rollout_is_no_variance():
    flat, mixed = batch({"a": (1.0, 1.0, 0.0), "b": (1.0, 0.5, 0.0)}, failed=("a", "b"))
    assert (flat.useful, mixed.useful) == (False, True)
    (alone,) = batch({"a": (1.0, 0.0)}, failed=("a",))
    assert not alone.useful
