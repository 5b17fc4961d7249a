"""Rows rebuilt from recorded turns, byte for byte, and what happens to failed rollouts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.utils.trainer_utils import validate_generator_output

from recipes.swe.output import HistoryError, to_generator_output, trainable, trajectory_rows
from recipes.swe.types import Failure, Rollout, Trajectory, Turn
from rewards.types import RewardResult

PAD = 0
tokens = st.lists(st.integers(1, 999), min_size=1, max_size=6).map(tuple)


def make_turn(prompt: tuple[int, ...], response: tuple[int, ...], logprobs: tuple[float, ...]) -> Turn:
    return Turn(prompt, response, logprobs, "stop", "text", "call", "shown")


def make_rollout(name: str, turns: tuple[Turn, ...], reward: float = 1.0) -> Rollout:
    return Rollout(
        f"step0001/{name}",
        name.split("/")[0],
        Trajectory(turns, "", "submitted"),
        RewardResult(reward, reward == 1.0, reward, 0),
        {"llm": 1.0, "env": 0.5, "grade": 0.5},
    )


FAILED = Rollout("step0001/a/9", "a", None, None, failure=Failure("sandbox", "lost"), attempts=2)


@given(first=tokens, pieces=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=5), data=st.data())
def test_a_row_is_exactly_what_was_sent_and_sampled(first, pieces, data):
    prompt, turns, expected_mask, expected_logprobs = first, [], [], []
    for number, (response, shown) in enumerate(pieces):
        logprobs = tuple(data.draw(st.floats(-20, 0, width=32)) for _ in response)
        turns.append(make_turn(prompt, response, logprobs))
        expected_mask += [1] * len(response)
        expected_logprobs += logprobs
        if number < len(pieces) - 1:
            prompt = prompt + response + shown
            expected_mask += [0] * len(shown)
            expected_logprobs += [0.0] * len(shown)
    (row,) = trajectory_rows(Trajectory(tuple(turns), "", "submitted"), 1.0)
    last = turns[-1]
    assert tuple(row.prompt_ids + row.response_ids) == last.prompt_ids + last.response_ids
    assert row.prompt_ids == list(first)
    assert row.loss_mask == expected_mask
    assert row.logprobs == expected_logprobs
    sampled = [t for t, m in zip(row.response_ids, row.loss_mask, strict=True) if m]
    assert sampled == [t for turn in turns for t in turn.response_ids]


def test_prompts_that_do_not_extend_the_last_make_rows_of_their_own():
    turns = (
        make_turn((1, 2), (3,), (-0.1,)),
        make_turn((1, 2, 3, 8), (4,), (-0.2,)),
        make_turn((1, 2, 9), (6, 7), (-0.3, -0.4)),
        make_turn((1, 2, 9, 6), (5,), (-0.5,)),
    )
    rows = trajectory_rows(Trajectory(turns, "", "submitted"), 1.0)
    assert [(row.prompt_ids, row.response_ids, row.loss_mask, row.logprobs) for row in rows] == [
        ([1, 2], [3, 8, 4], [1, 0, 1], [-0.1, 0.0, -0.2]),
        ([1, 2, 9], [6, 7], [1, 1], [-0.3, -0.4]),
        ([1, 2, 9, 6], [5], [1], [-0.5]),
    ]
    assert {row.reward for row in rows} == {1.0}


def test_step_wise_rows_are_contiguous_and_marked():
    several = make_rollout("a/0", (make_turn((1, 2), (3,), (-0.1,)), make_turn((1, 4), (6,), (-0.1,))))
    one = make_rollout("a/1", (make_turn((1, 2), (3,), (-0.1,)),))
    ids = [TrajectoryID("a", 0), TrajectoryID("a", 1), TrajectoryID("a", 2)]
    output = to_generator_output([several, FAILED, one], pad_token_id=PAD, trajectory_ids=ids, step_wise=True)
    assert output["trajectory_ids"] == [ids[0], ids[0], ids[1], ids[2]]
    assert output["is_last_step"] == [False, True, True, True]
    assert output["trajectory_generation_times"] == [2.0, 2.0, 0, 2.0]
    assert output["failure_messages"] == ["", "", "lost", ""]
    validate_generator_output(3, output, step_wise=True)
    metrics = output["rollout_metrics"]
    assert metrics["generate/avg_num_tokens"] == 1.5, "tokens of a trajectory, not of a row"
    assert metrics["generate/tokens_per_turn_mean"] == 1


@pytest.mark.parametrize("step_wise", [False, True])
def test_a_record_that_cannot_be_trained_on_costs_one_rollout(step_wise: bool):
    good = make_rollout("a/0", (make_turn((1,), (2,), (-0.5,)),))
    elided = make_rollout("a/1", (make_turn((1, 2), (3,), (-0.1,)), make_turn((1, 4), (6,), (-0.1,))))
    torn = make_rollout("a/2", (make_turn((1,), (2, 3), (-0.1,)),))
    with pytest.raises(HistoryError):
        to_generator_output([good, elided, torn], pad_token_id=PAD, step_wise=step_wise)
    checked, rows = trainable([good, elided, torn, FAILED, replace(good, reward=None)], step_wise=step_wise)
    kinds = [rollout.failure and rollout.failure.kind for rollout in checked]
    assert kinds == [None, None if step_wise else "internal", "internal", "sandbox", "internal"]
    made = to_generator_output(checked, pad_token_id=PAD, step_wise=step_wise)
    assert to_generator_output(checked, pad_token_id=PAD, grouped=rows, step_wise=step_wise) == made


def test_overlong_filtering_masks_what_a_limit_cut():
    turns = (make_turn((1,), (2, 3), (-0.5, -0.5)),)
    ends = ("submitted", "format", "context", "turn_limit", "time")
    rollouts = [
        replace(make_rollout("a/0", turns), trajectory=Trajectory(turns, "", end))  # type: ignore[arg-type]
        for end in ends
    ]
    plain = to_generator_output([*rollouts, FAILED], pad_token_id=PAD)
    assert plain["loss_masks"] == [[1, 1]] * 5 + [[0]]
    filtered = to_generator_output([*rollouts, FAILED], pad_token_id=PAD, overlong_filtering=True)
    assert filtered["loss_masks"] == [[1, 1], [1, 1], [0, 0], [0, 0], [0, 0], [0]]
    assert filtered["rewards"] == plain["rewards"]


def test_ids_without_logprobs_are_refused():
    with pytest.raises(HistoryError, match="logprobs"):
        trajectory_rows(Trajectory((make_turn((1,), (2, 3), (-0.1,)),), "", "submitted"), 0.0)


def test_failed_rollouts_keep_order_and_length():
    good = make_rollout("a/0", (make_turn((1, 2), (3, 4), (-0.5, -0.25)),))
    ungraded = replace(good, reward=None)
    empty = replace(good, trajectory=Trajectory((), "", "time"))
    output = to_generator_output([good, FAILED, ungraded, good, empty], pad_token_id=PAD)
    assert output["response_ids"] == [[3, 4], [PAD], [PAD], [3, 4], [PAD]]
    assert output["prompt_token_ids"] == [[1, 2], [PAD], [PAD], [1, 2], [PAD]]
    assert output["loss_masks"] == [[1, 1], [0], [0], [1, 1], [0]]
    assert output["rewards"] == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert output["rollout_logprobs"] == [[-0.5, -0.25], [0.0], [0.0], [-0.5, -0.25], [0.0]]
    assert output["stop_reasons"] == [
        "submitted",
        "failed_sandbox",
        "failed_internal",
        "submitted",
        "failed_internal",
    ]


def test_metrics_count_failures_and_leave_them_out_of_means():
    good = make_rollout("a/0", (make_turn((1,), (2,), (-0.5,)),))
    bad = make_rollout(
        "b/0", (make_turn((1,), (2,), (-0.5,)), make_turn((1, 2, 3), (4,), (-1.0,))), reward=0.0
    )
    metrics = to_generator_output([good, good, bad, FAILED], pad_token_id=PAD)["rollout_metrics"]
    assert metrics is not None
    assert metrics["environment/num_rollouts"] == 4
    assert metrics["environment/num_fail_sandbox"] == 1
    assert metrics["environment/num_fail_node"] == 0
    assert metrics["environment/infra_failure_rate_mean"] == 0.25
    assert metrics["environment/resolved_mean"] == pytest.approx(2 / 3)
    assert metrics["environment/turns_mean"] == pytest.approx(4 / 3)
    assert metrics["environment/num_end_submitted"] == 3
    assert metrics["environment/group_excluded_mean"] == 0.5  # b has one healthy rollout
    assert metrics["generate/trajectory_time_llm_mean"] == 1.0
    for name in metrics:
        kind = name.rsplit("/", 1)[1]
        assert name.startswith("generate/") or kind.startswith("num_") or kind.endswith("_mean"), name


def test_a_batch_that_failed_whole_is_still_a_batch():
    output = to_generator_output([FAILED, FAILED], pad_token_id=PAD)
    assert output["loss_masks"] == [[0], [0]]
    assert output["rollout_metrics"] is not None


def test_a_quarantined_rollout_is_left_out_and_is_no_failure():
    good = make_rollout("a/0", (make_turn((1, 2), (3, 4), (-0.5, -0.25)),))
    suspect = RewardResult(0.0, False, 0.0, 0, suspicions=("looks for pytest",))
    faults = {"runner_died": 2, "runner_died_counted_as_0": 1, "memory": 1, "control_failed": 1}
    output = to_generator_output(
        [good, replace(good, reward=suspect, quarantined=True), replace(good, grading_faults=faults)],
        pad_token_id=PAD,
    )
    assert output["loss_masks"] == [[1, 1], [0], [1, 1]]
    assert output["stop_reasons"] == ["submitted", "quarantined", "submitted"]
    metrics = output["rollout_metrics"]
    for name, value in {
        "num_quarantined": 1, "num_suspicious": 1, "infra_failure_rate_mean": 0, "reward_mean": 1,
        "num_grading_fault_runner_died": 2, "num_grading_fault_memory": 1, "num_grading_fault_disk": 0,
        "num_grading_fault_counted_as_0": 1, "num_grading_control_failed": 1,
    }.items():  # fmt: skip
        assert metrics[f"environment/{name}"] == value, name


def test_a_suspicious_rollout_that_is_not_quarantined_is_trained_on():
    suspect = RewardResult(0.0, False, 0.0, 0, suspicions=("looks for pytest",))
    rollout = replace(make_rollout("a/0", (make_turn((1, 2), (3,), (-0.5,)),)), reward=suspect)
    output = to_generator_output([rollout], pad_token_id=PAD)
    assert output["loss_masks"] == [[1]]
    assert output["rollout_metrics"]["environment/num_suspicious"] == 1
