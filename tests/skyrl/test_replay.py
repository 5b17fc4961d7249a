"""Recorded rollouts through SkyRL's own code give the loss that is worked out by hand from the records.

The reference knows no rows, masks or batches: it walks over the turns as they were recorded and uses GRPO and
PPO's formulas on each sampled token behind the prompt it was sampled from.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.utils import merge_stepwise_output

from launch.config_validate import load_config
from recipes.swe.advantages import LOGPROB_DIFF, Exclusions, SweTrainer
from recipes.swe.experiment import skyrl_config
from recipes.swe.output import to_generator_output
from recipes.swe.trainers import AsyncTrainer
from recipes.swe.types import Rollout, Turn, is_healthy
from tests.skyrl.replay import (
    PAD,
    failed,
    make_rollout,
    make_trainer,
    make_turn,
    new_logprob,
    old_logprob,
    replay,
    replay_async,
)

EPS_LOW, EPS_HIGH = 0.2, 0.28
Weight = Callable[[float, float], float]


def full_history(seed: int, turns: int) -> list[Turn]:
    """Each prompt extends what came before."""
    prompt, result = [seed, seed + 1, 7], []
    for number in range(turns):
        result.append(make_turn(prompt, [10 + seed + number, 11 + number, 12 * seed + 3][: 2 + number % 2]))
        prompt = [*prompt, *result[-1].response_ids, 90 + number, 91]
    return result


def elided(seed: int, turns: int, keep: int = 1) -> list[Turn]:
    """Observations older than `keep` are replaced by one token, so prompts do not extend each other."""
    first, responses, result = [seed, seed + 1, 7], [], []
    for number in range(turns):
        prompt = list(first)
        for before, response in enumerate(responses):
            prompt += [*response, *([5] if before < number - keep else [80 + before, 81, 82])]
        responses.append([20 + seed + number, 21, 22 * seed + 1][: 3 - number % 2])
        result.append(make_turn(prompt, responses[-1]))
    return result


def reference_advantages(rollouts: Sequence[Rollout]) -> list[float | None]:
    """Advantage of each rollout, None where it is not trained on."""
    groups: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if is_healthy(rollout):
            groups[rollout.instance_id].append(rollout.reward.reward)
    result: list[float | None] = []
    for rollout in rollouts:
        rewards = groups[rollout.instance_id]
        if not is_healthy(rollout) or len(rewards) < 2:
            result.append(None)
        else:
            result.append((rollout.reward.reward - mean(rewards)) / (stdev(rewards) + 1e-6))
    return result


def reference_loss(
    rollouts: Sequence[Rollout],
    *,
    masked: Sequence[str] = (),
    weight: Weight = lambda old, sampled: 1.0,
) -> float:
    """Mean over all trained tokens of PPO's clipped loss; `masked` ends carry no loss."""
    losses: list[float] = []
    for rollout, advantage in zip(rollouts, reference_advantages(rollouts), strict=True):
        if advantage is None or rollout.trajectory.end in masked:
            continue
        for turn in rollout.trajectory.turns:
            for i, token in enumerate(turn.response_ids):
                prefix = [*turn.prompt_ids, *turn.response_ids[:i]]
                old = old_logprob(prefix, token)
                ratio = math.exp(new_logprob(prefix, token) - old)
                clipped = min(max(ratio, 1 - EPS_LOW), 1 + EPS_HIGH)
                loss = -min(ratio * advantage, clipped * advantage)
                losses.append(loss * weight(old, turn.logprobs[i]))
    return sum(losses) / len(losses) if losses else 0.0


def trainer_for(
    rollouts: Sequence[Rollout], *, step_wise: bool, kind: type[Exclusions] = SweTrainer, **algorithm: Any
):
    names = [rollout.instance_id for rollout in rollouts]
    return make_trainer(
        kind,
        groups=len(set(names)),
        samples=len(names) // len(set(names)),
        step_wise=step_wise,
        eps_clip_low=EPS_LOW,
        eps_clip_high=EPS_HIGH,
        **algorithm,
    )


def check(rollouts: Sequence[Rollout], *, step_wise: bool):
    result = replay(trainer_for(rollouts, step_wise=step_wise), rollouts)
    assert result.losses == [pytest.approx(reference_loss(rollouts), rel=1e-4, abs=1e-7)]
    return result


FULL = [
    make_rollout("a", full_history(1, 3), 1.0),
    make_rollout("a", full_history(2, 1), 0.0),
    make_rollout("a", full_history(3, 4), 0.0),
    make_rollout("b", full_history(4, 2), 1.0),
    make_rollout("b", full_history(5, 2), 0.25),
    make_rollout("b", full_history(6, 3), 0.0),
]
ELIDED = [
    make_rollout("a", elided(1, 6), 1.0),
    make_rollout("a", elided(2, 1), 0.0),
    make_rollout("a", elided(3, 4), 0.0),
    make_rollout("b", elided(4, 2), 1.0),
    make_rollout("b", elided(5, 5), 0.25),
    make_rollout("b", full_history(6, 3), 0.0),
]


@pytest.mark.parametrize("step_wise", [False, True])
def test_full_history(step_wise: bool):
    result = check(FULL, step_wise=step_wise)
    assert len(result.output["response_ids"]) == len(FULL), "one row a trajectory"
    assert abs(result.losses[0]) > 0.01


def test_elided_history():
    result = check(ELIDED, step_wise=True)
    assert len(result.output["response_ids"]) == 5 + 1 + 3 + 1 + 4 + 1
    assert result.batch.batch_size == 16, "padded for four workers"
    assert result.metrics["reward/avg_raw_reward"] == pytest.approx(2.25 / 6)
    assert result.metrics["loss/avg_final_rewards"] == pytest.approx(2.25 / 6)
    # A trajectory of many rows weighs once in its group: with rows counted, a's mean would be 5/9.
    assert reference_advantages(ELIDED)[0] == pytest.approx((2 / 3) / (stdev([1.0, 0, 0]) + 1e-6))


def test_uneven_mini_batches_are_not_mixed_up():
    """Two mini-batches of 10 and 5 rows for four workers: each has its own loss, no row another's."""
    result = replay(trainer_for(ELIDED, step_wise=True, mini_batches=2), ELIDED)
    expected = [reference_loss(ELIDED[:3]), reference_loss(ELIDED[3:])]
    assert result.losses == [pytest.approx(loss, rel=1e-4) for loss in expected]


def test_mismatch_of_server_and_trainer_is_logged():
    result = check(ELIDED, step_wise=True)
    turns = [turn for rollout in ELIDED for turn in rollout.trajectory.turns]
    off = [
        abs(turn.logprobs[i] - old_logprob([*turn.prompt_ids, *turn.response_ids[:i]], token))
        for turn in turns
        for i, token in enumerate(turn.response_ids)
    ]
    assert result.metrics[LOGPROB_DIFF] == pytest.approx(mean(off), rel=1e-4)


@pytest.mark.parametrize("step_wise", [False, True])
def test_failed_rollouts_leave_loss_and_statistics(step_wise: bool):
    base = ELIDED if step_wise else FULL
    rollouts = [base[0], failed("a"), base[1], failed("a", "node"), base[2], base[3]]
    rollouts = [replace(rollout, instance_id=name) for rollout, name in zip(rollouts, "aaaabb", strict=True)]
    rollouts = [*rollouts, replace(base[4], instance_id="b"), failed("b", "deadline")]
    result = check(rollouts, step_wise=step_wise)
    assert result.metrics["reward/avg_raw_reward"] == pytest.approx(2.25 / 5)
    healthy_only = [rollout for rollout in rollouts if is_healthy(rollout)]
    assert result.losses[0] == pytest.approx(reference_loss(healthy_only), rel=1e-4)


@pytest.mark.parametrize("step_wise", [False, True])
def test_a_group_with_one_healthy_rollout_is_dropped_whole(step_wise: bool):
    base = ELIDED if step_wise else FULL
    rollouts = [base[0], failed("a"), failed("a"), *base[3:]]
    result = check(rollouts, step_wise=step_wise)
    assert result.losses[0] == pytest.approx(reference_loss(base[3:]), rel=1e-4)
    rows = len([turn for turn in result.output["stop_reasons"] or [] if turn == "submitted"]) - 1
    assert result.batch["loss_mask"].sum(dim=-1).gt(0).sum().item() <= rows


def test_quarantined_rollouts_leave_too():
    rollouts = [*FULL[:5], replace(FULL[5], quarantined=True)]
    check(rollouts, step_wise=False)


@pytest.mark.parametrize("step_wise", [False, True])
def test_all_equal_groups_teach_nothing(step_wise: bool):
    base = ELIDED if step_wise else FULL
    rollouts = [
        replace(rollout, reward=replace(rollout.reward, reward=1.0 if rollout.instance_id == "a" else 0.0))
        for rollout in base
    ]
    result = check(rollouts, step_wise=step_wise)
    assert result.losses[0] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("step_wise", [False, True])
def test_truncated_trajectories_train_with_their_reward(step_wise: bool):
    base = ELIDED if step_wise else FULL
    ends = ("submitted", "context", "turn_limit", "time", "format", "submitted")
    rollouts = [
        replace(rollout, trajectory=replace(rollout.trajectory, end=end))
        for rollout, end in zip(base, ends, strict=True)
    ]
    check(rollouts, step_wise=step_wise)


@pytest.mark.parametrize("step_wise", [False, True])
def test_overlong_filtering_takes_the_loss_and_leaves_the_statistics(step_wise: bool):
    base = ELIDED if step_wise else FULL
    ends = ("submitted", "context", "turn_limit", "time", "format", "submitted")
    rollouts = [
        replace(rollout, trajectory=replace(rollout.trajectory, end=end))
        for rollout, end in zip(base, ends, strict=True)
    ]
    result = replay(trainer_for(rollouts, step_wise=step_wise), rollouts, overlong_filtering=True)
    expected = reference_loss(rollouts, masked=("context", "turn_limit", "time"))
    assert result.losses == [pytest.approx(expected, rel=1e-4)]
    assert result.losses[0] != pytest.approx(reference_loss(rollouts), rel=1e-2)


def test_off_policy_correction_can_be_switched_on():
    correction = {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 1.01}
    trainer = trainer_for(ELIDED, step_wise=True, off_policy_correction=correction)
    result = replay(trainer, ELIDED)

    def weight(old: float, sampled: float) -> float:
        return min(math.exp(old - sampled), 1.01)

    assert result.losses == [pytest.approx(reference_loss(ELIDED, weight=weight), rel=1e-4)]
    assert result.losses[0] != pytest.approx(reference_loss(ELIDED), rel=1e-5)
    assert "policy/is_ratio_mean" in result.metrics


def test_correction_is_configured_as_any_key_of_skyrl():
    key = "skyrl.trainer.algorithm.off_policy_correction.tis_ratio_type"
    settings = load_config(["+recipe=swe_smith_1600", "dry_run=true", f"{key}=token"])
    config = skyrl_config(settings)
    assert config.trainer.algorithm.off_policy_correction.tis_ratio_type == "token"
    assert config.generator.step_wise_trajectories, "the published run keeps five observations"


@pytest.mark.parametrize("step_wise", [False, True])
def test_the_asynchronous_trainer_learns_the_same(step_wise: bool):
    base = ELIDED if step_wise else FULL
    groups = [[base[0], failed("a"), base[1], base[2]], [base[3], failed("b"), base[4], base[5]]]
    rollouts = [rollout for group in groups for rollout in group]
    trainer = trainer_for(rollouts, step_wise=step_wise, kind=AsyncTrainer)
    result = replay_async(trainer, groups)
    assert result.losses == [pytest.approx(reference_loss(rollouts), rel=1e-4)]
    assert result.metrics["reward/avg_raw_reward"] == pytest.approx(2.25 / 6)


def test_our_merging_is_skyrls():
    """Turn by turn rows, merged by SkyRL, are the rows that we make; merging them again changes nothing."""
    ids = [TrajectoryID(rollout.instance_id, number) for number, rollout in enumerate(ELIDED)]
    ours = to_generator_output(ELIDED, pad_token_id=PAD, trajectory_ids=ids, step_wise=True)
    turns = [
        (rollout, number, turn, turn is rollout.trajectory.turns[-1])
        for number, rollout in enumerate(ELIDED)
        for turn in rollout.trajectory.turns
    ]
    by_turn = {
        "prompt_token_ids": [list(turn.prompt_ids) for _, _, turn, _ in turns],
        "response_ids": [list(turn.response_ids) for _, _, turn, _ in turns],
        "loss_masks": [[1] * len(turn.response_ids) for _, _, turn, _ in turns],
        "rollout_logprobs": [list(turn.logprobs) for _, _, turn, _ in turns],
        "rewards": [rollout.reward.reward for rollout, _, _, _ in turns],
        "stop_reasons": [rollout.trajectory.end for rollout, _, _, _ in turns],
        "trajectory_ids": [ids[number] for _, number, _, _ in turns],
        "is_last_step": [last for _, _, _, last in turns],
    }
    for merged in (merge_stepwise_output(by_turn), merge_stepwise_output(ours)):  # type: ignore[arg-type]
        for key in by_turn:
            assert merged[key] == ours[key], key  # type: ignore[literal-required]


def test_each_trained_token_stands_behind_its_own_prompt():
    """The rows hold every sampled id once, and its log-probability beside it."""
    result = check(ELIDED, step_wise=True)
    batch, found = result.batch, []
    for row in range(batch.batch_size):
        real = batch["sequences"][row][batch["attention_mask"][row].bool()].tolist()
        width = batch["loss_mask"].shape[1]
        for column in torch.nonzero(batch["loss_mask"][row]).flatten().tolist():
            at = len(real) - (width - column)
            found.append(
                (tuple(real[:at]), real[at], round(batch["rollout_logprobs"][row, column].item(), 5))
            )
    expected = [
        ((*turn.prompt_ids, *turn.response_ids[:i]), token, round(turn.logprobs[i], 5))
        for rollout in ELIDED
        for turn in rollout.trajectory.turns
        for i, token in enumerate(turn.response_ids)
    ]
    assert sorted(found) == sorted(expected)
