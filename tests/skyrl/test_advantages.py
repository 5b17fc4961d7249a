"""Failed rollouts leave loss and group statistics, checked against numbers worked out by hand.

The trainer's own method runs on a real TrainingInputBatch, down to SkyRL's estimator; only the parts of
the trainer that need processes are left out.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.train.config import SkyRLTrainConfig

from recipes.swe.advantages import (
    LEFT_OUT,
    LOGPROB_DIFF,
    LogprobMismatchError,
    SweTrainer,
    check_logprobs,
    excluded_rows,
    separate_uids,
)
from recipes.swe.failure_report import TooManyFailuresError


def bare_trainer() -> SweTrainer:
    trainer = SweTrainer.__new__(SweTrainer)
    trainer.cfg = SkyRLTrainConfig()
    trainer.all_metrics = {}
    trainer.global_step = 3
    return trainer


def batch(rewards: list[float], masks: list[list[int]], uids: list[str]) -> TrainingInputBatch:
    mask = torch.tensor(masks)
    token_rewards = torch.zeros(mask.shape)
    token_rewards[:, -1] = torch.tensor(rewards)
    data = TrainingInputBatch(
        {
            "sequences": torch.ones(mask.shape, dtype=torch.long),
            "response_mask": torch.ones(mask.shape),
            "loss_mask": mask,
            "rewards": token_rewards,
            "values": None,
        }
    )
    left_out = [not any(row) for row in masks]
    data.metadata = {"uids": uids, "avg_response_length": 2.0, LEFT_OUT: left_out}
    return data


def test_failed_rows_do_not_shift_their_siblings():
    # Group a: healthy rewards 1, 0, 0 and a failed row. Mean 1/3, sample standard deviation 1/sqrt(3).
    data = batch([1, 0, 0, 0, 1, 0], [[1, 1], [1, 1], [0, 1], [0, 0], [1, 1], [1, 1]], list("aaaabb"))
    result = bare_trainer().compute_advantages_and_returns(data)
    std = 1 / math.sqrt(3)
    expected_a = [(1 - 1 / 3) / (std + 1e-6), (-1 / 3) / (std + 1e-6), (-1 / 3) / (std + 1e-6), 0.0]
    half = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert result["advantages"][:, 0].tolist() == pytest.approx([*expected_a, half, -half], rel=1e-5)
    assert result["loss_mask"].tolist() == [[1, 1], [1, 1], [0, 1], [0, 0], [1, 1], [1, 1]]
    assert result.metadata["uids"] == list("aaaabb")
    # With the failed row counted as reward 0, as SkyRL alone does it, the numbers would differ.
    assert result["advantages"][0, 0].item() != pytest.approx(0.75 / (0.5 + 1e-6), rel=1e-3)


def test_a_group_with_one_healthy_row_is_dropped_whole():
    data = batch([1, 0, 1, 0], [[1, 1], [0, 0], [1, 1], [1, 1]], list("aabb"))
    result = bare_trainer().compute_advantages_and_returns(data)
    assert result["advantages"][:2].abs().sum().item() == 0
    assert result["loss_mask"][:2].sum().item() == 0
    half = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert result["advantages"][2:, 0].tolist() == pytest.approx([half, -half], rel=1e-5)


def test_without_failures_nothing_changes():
    data = batch([1, 0, 1, 1], [[1, 1]] * 4, list("aabb"))
    result = bare_trainer().compute_advantages_and_returns(data)
    assert result["advantages"][2:].abs().sum().item() == pytest.approx(0, abs=1e-5)  # all equal
    assert result["loss_mask"].sum().item() == 8


def test_a_masked_row_that_did_not_fail_stays_in_the_statistics():
    data = batch([1, 0, 0], [[1, 1], [0, 0], [1, 1]], list("aaa"))
    data.metadata[LEFT_OUT] = [False] * 3
    result = bare_trainer().compute_advantages_and_returns(data)
    assert result["advantages"][0, 0].item() == pytest.approx((2 / 3) / (1 / math.sqrt(3) + 1e-6))


def test_excluded_rows_and_names():
    left_out = [False, True, False, False, True]
    assert excluded_rows(left_out, list("abbbb"), [True] * 5) == [True, True, False, False, True]
    # One trajectory of three rows is one trajectory, and no group.
    assert excluded_rows([False] * 3, list("aaa"), [False, False, True]) == [True] * 3
    assert excluded_rows([False] * 3, list("aaa"), [False, True, True]) == [False] * 3
    assert separate_uids(list("ab"), [True, False]) == ["a#excluded0", "b"]


def output(masks: list[list[int]], rewards: list[float]) -> dict[str, Any]:
    return {
        "prompt_token_ids": [[1]] * len(masks),
        "response_ids": [[2] * len(mask) for mask in masks],
        "loss_masks": masks,
        "rewards": rewards,
        "stop_reasons": ["submitted" if any(mask) else "failed_node" for mask in masks],
        "rollout_logprobs": None,
    }


@pytest.mark.parametrize("kind", ["filter", "replace"])
def test_dynamic_sampling_judges_a_group_by_its_healthy_rollouts(kind: str):
    """Group a: all solved but one failed, no signal. Group b: has one. Group c: all failed."""
    trainer = bare_trainer()
    trainer.cfg.trainer.algorithm.dynamic_sampling.type = kind
    trainer.cfg.trainer.train_batch_size = 1 if kind == "filter" else 3
    trainer.cfg.trainer.algorithm.dynamic_sampling.min_replace_ratio = 0.1
    trainer.cfg.generator.n_samples_per_prompt = 3
    trainer.dynamic_sampling_state = None
    rows = output(
        [[1], [1], [0], [1], [1], [0], [0], [0], [0]], [1.0, 1.0, 0.0, 1.0, 0.25, 0.0, 0.0, 0.0, 0.0]
    )
    trainer.max_failed_share = 0.9
    kept, uids, more = trainer.handle_dynamic_sampling(rows, list("aaabbbccc"))
    assert not more
    assert {uid.split("#")[0] for uid in uids} == {"b"}
    assert kept["rewards"][:3] == [1.0, 0.25, 0.0]
    assert kept["stop_reasons"][:3] == ["submitted", "submitted", "failed_node"]


def test_reward_metrics_are_over_healthy_rollouts():
    trainer = bare_trainer()
    trainer.cfg.generator.n_samples_per_prompt = 4
    result, uids = trainer.postprocess_generator_output(
        output([[1], [1], [1], [0]], [1.0, 1.0, 0.0, 0.0]), list("aaaa")
    )
    assert trainer.all_metrics["reward/avg_raw_reward"] == pytest.approx(2 / 3)
    assert len(result["rewards"]) == len(uids) == 4


def test_a_step_of_failures_stops_the_run_and_leaves_a_report(tmp_path: Path):
    trainer = bare_trainer()
    trainer.run_dir = tmp_path / "run"
    failed = output([[1], [0], [0], [0]], [1.0, 0, 0, 0])
    failed["failure_messages"] = ["", "worker died", "worker died", "disk full"]
    with pytest.raises(TooManyFailuresError, match=r"3 of 4.*node 3; see .*failures_step_0003.txt"):
        trainer.postprocess_generator_output(failed, list("aaaa"))
    report = (tmp_path / "run" / "failures_step_0003.txt").read_text()
    assert "node: 3\n    2 x worker died\n    1 x disk full\n" in report


def test_a_report_that_cannot_be_written_hides_nothing(tmp_path: Path):
    (tmp_path / "run").write_text("a file where the folder should be")
    trainer = bare_trainer()
    trainer.run_dir = tmp_path / "run"
    with pytest.raises(TooManyFailuresError, match=r"node 3; no report: .*exists"):
        trainer.postprocess_generator_output(output([[1], [0], [0], [0]], [1.0, 0, 0, 0]), list("aaaa"))


def test_rows_of_one_trajectory_count_once():
    """Three failed of five trajectories, though four of seven rows are fine."""
    trainer = bare_trainer()
    trainer.cfg.generator.step_wise_trajectories = True
    rows = output([[1], [1], [1], [0], [1], [0], [0]], [1.0, 1.0, 1.0, 0, 1.0, 0, 0])
    rows["is_last_step"] = [False, False, True, True, True, True, True]
    with pytest.raises(TooManyFailuresError, match="3 of 5"):
        trainer.postprocess_generator_output(rows, list("aaaaaaa"))
    trainer.max_failed_share = 0.7
    trainer.postprocess_generator_output(rows, list("aaaaaaa"))


def test_a_step_without_any_healthy_rollout_stops_whatever_the_share():
    trainer = bare_trainer()
    trainer.max_failed_share = 1.0
    with pytest.raises(TooManyFailuresError, match="1 of 2"):
        trainer.postprocess_generator_output(
            output([[0], [0]], [0.0, 0.0]) | {"stop_reasons": ["failed_cache", "quarantined"]}, list("aa")
        )


def test_the_logprob_check():
    check_logprobs({LOGPROB_DIFF: 9e-4}, 1e-3)
    check_logprobs({LOGPROB_DIFF: 0.2}, None)
    check_logprobs({}, 1e-3)
    with pytest.raises(LogprobMismatchError, match=r"1\.00e-03"):
        check_logprobs({LOGPROB_DIFF: 1e-3}, 1e-3)


def test_quarantined_rollouts_do_not_count_as_failures_but_cannot_be_all_there_is():
    trainer = bare_trainer()
    trainer.max_failed_share = 0.3
    rows = output([[1], [0], [0], [0]], [1.0, 0, 0, 0])
    rows["stop_reasons"] = ["submitted", "quarantined", "quarantined", "failed_node"]
    trainer.postprocess_generator_output(rows, list("aaaa"))
    rows = output([[0], [0], [0], [0]], [0.0, 0, 0, 0])
    rows["stop_reasons"] = ["quarantined", "quarantined", "quarantined", "failed_node"]
    with pytest.raises(TooManyFailuresError, match=r"1 of 4 .*failed, 3 are"):
        trainer.postprocess_generator_output(rows, list("aaaa"))
    rows = output([[1], [0], [0], [0]], [1.0, 0, 0, 0])
    rows["stop_reasons"] = ["submitted", "quarantined", "failed_node", "failed_node"]
    with pytest.raises(TooManyFailuresError, match=r"2 of 4 .*failed, 1 are"):
        trainer.postprocess_generator_output(rows, list("aaaa"))
