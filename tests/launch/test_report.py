"""What people read of a run."""

import math
from pathlib import Path

import pytest

from recipes.report.figure import moving_mean
from recipes.report.make import make_report
from recipes.report.metrics import MetricsFile, read_metrics
from recipes.report.progress import progress_line
from recipes.report.recorder import RolloutRecorder
from recipes.report.series import load_series
from recipes.report.summary import first_and_last
from recipes.report.trajectories import read_index, read_rollouts, rollout_text, write_rollouts
from tests.launch.fake_run import make_rollout, make_run


def test_report_of_a_run(tmp_path: Path):
    report = make_report(make_run(tmp_path / "run"))
    assert report.picture.stat().st_size > 20_000
    assert report.text.count("\n") <= 40
    for part in ("first 3 steps", "last 3 steps", "best step", "llm", "sandbox", "logprob difference"):
        assert part in report.text
    assert str(tmp_path) in report.text


def test_report_of_a_short_run_without_rollouts_or_times(tmp_path: Path):
    MetricsFile(tmp_path / "metrics.jsonl").append(1, {"reward/avg_raw_reward": 0.5})
    assert "0.500" in make_report(tmp_path).text


def test_report_shows_failures_held_out_tasks_cache_and_gate(tmp_path: Path):
    folder = make_run(tmp_path / "run", steps=6)
    plain = make_report(folder)
    size = plain.picture.stat().st_size
    assert "held-out" not in plain.text and "gate" not in plain.text
    file = MetricsFile(folder / "metrics.jsonl")
    file.append(0, {"eval/all/environment/resolved_mean": 0.125})
    for step in range(1, 7):
        file.append(
            step,
            {
                "environment/num_fail_node": step % 2,
                "environment/num_fail_cache": 1,
                "environment/cache_hit_mean": 0.95,
                "environment/gate_wait_mean": 0.004,
                "environment/memory_peak_mib_max": 100 + step,
                "environment/group_flat_mean": 0.25,
                "environment/group_excluded_mean": 0.0,
                **({"eval/all/environment/resolved_mean": 0.5} if step == 6 else {}),
            },
        )
    RolloutRecorder(folder).write("train", 6, [make_rollout("a", solved=True)])
    report = make_report(folder)
    for part in (
        "held-out tasks", "0.125 at step 0, 0.500 at step 6", "95.0% ready on the node", "s at the gate (4",
        "25% of one reward, 0.0% left out whole", "106 MiB", "every rollout as a row",
    ):  # fmt: skip
        assert part in report.text, part
    assert report.text.count("\n") <= 40
    assert report.picture.stat().st_size != size
    series = load_series(folder)
    assert series.failures_by_step["node"] == (1, 0, 1, 0, 1, 0) and "grader" not in series.failures_by_step
    assert series.held_out == ((0, 0.125), (6, 0.5))


def test_report_without_steps_is_refused(tmp_path: Path):
    MetricsFile(tmp_path / "metrics.jsonl").append(0, {"eval/all/avg_score": 0.5})
    with pytest.raises(ValueError, match="no finished step"):
        make_report(tmp_path)


def test_series(tmp_path: Path):
    series = load_series(make_run(tmp_path, steps=6))
    assert series.steps == (1, 2, 3, 4, 5, 6)
    assert all(low <= high for low, high in zip(series.group_low, series.group_high, strict=True))
    assert series.rollouts == 6 * 64
    first, last = first_and_last(series)
    assert 0 <= first <= 1
    assert 0 <= last <= 1
    whole = sum(values[0] for values in series.step_s.values())
    assert 21 <= whole <= 25


def test_metrics_file_keeps_numbers_and_survives_a_torn_line(tmp_path: Path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(1, {"a": 1, "b": "text", "c": math.nan, "d": True, "e": None})
    file.append(2, {"a": 2})
    with (tmp_path / "metrics.jsonl").open("a") as raw:
        raw.write('{"step": 3, "wal')
    assert [line.step for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
    assert read_metrics(tmp_path / "metrics.jsonl")[0].metrics == {"a": 1.0}
    file.keep_until(1)
    file.append(2, {"a": 5})
    file.append(2, {"b": 6})
    assert [(line.step, dict(line.metrics)) for line in read_metrics(tmp_path / "metrics.jsonl")] == [
        (1, {"a": 1.0}),
        (2, {"a": 5.0, "b": 6.0}),
    ]


def test_a_record_after_a_torn_line_is_not_lost(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.append(1, {"a": 1})
    with path.open("a") as raw:
        raw.write('{"step": 2, "wal')
    file.append(2, {"a": 2})
    assert [line.step for line in read_metrics(path)] == [1, 2]


def test_rollouts_come_back_exactly(tmp_path: Path):
    rollouts = [
        make_rollout("a", solved=True),
        make_rollout("b", solved=False),
        make_rollout("c", solved=False, failed=True),
    ]
    folder = write_rollouts(tmp_path, 3, rollouts)
    assert read_rollouts(folder.with_suffix(".jsonl")) == rollouts
    assert [line.verdict for line in read_index(tmp_path)[3]] == ["solved", "unsolved", "failed"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "000_solved_a.txt",
        "001_unsolved_b.txt",
        "002_failed_c.txt",
    ]
    write_rollouts(tmp_path, 3, rollouts[:1])
    assert len(list(folder.iterdir())) == 1


def test_rollout_text_says_what_happened():
    text = rollout_text(make_rollout("a", solved=False))
    for part in ("unsolved", "TURN 2", "test_a failed", "diff --git", "a.py"):
        assert part in text
    assert "mount refused" in rollout_text(make_rollout("a", solved=False, failed=True))


def test_progress_line():
    line = progress_line(
        3, 20,
        {"reward/avg_raw_reward": 0.25, "environment/resolved_mean": 0.25, "timing/step": 18.2,
         "generate/trajectory_time_llm_mean": 4.0, "environment/num_fail_grader": 2},
    )  # fmt: skip
    assert line.startswith("step  3/20  reward 0.250  resolved 0.250 [#####...............]")
    assert "llm 4.00" in line
    assert "failed 2" in line
    assert "nan" not in progress_line(1, 2, {})


def test_moving_mean():
    assert moving_mean([1, 2, 3, 4], 3) == [1.5, 2, 3, 3.5]
    assert moving_mean([math.nan, 2], 3) == [2, 2]
