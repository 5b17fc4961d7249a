"""The figures of an evaluation, against values worked out by hand."""

import math
from pathlib import Path

import polars as pl
import pytest

from recipes.report.evaluation import evaluate_rows, evaluation_text, interval, wilson
from recipes.report.rows import read_rows, write_part
from recipes.swe.checkpoint_model import NoModelError, servable_model
from tests.launch.fake_run import make_rollout


def rows(tmp_path: Path, *rollouts) -> pl.DataFrame:
    write_part(tmp_path, "eval", 0, 0, rollouts)
    frame = read_rows(tmp_path)
    assert frame is not None
    return frame


def test_wilson_is_the_textbook_interval():
    # 8 of 10 at 95 %: 0.4902 to 0.9433 (Agresti and Coull 1998 give the formula).
    assert wilson(8, 10, 0.95) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20, 0.95) == pytest.approx((0.0, 0.1611), abs=1e-4)
    low, high = wilson(50, 100, 0.95)
    assert math.isclose(low, 1 - high)


def test_one_rollout_a_task(tmp_path: Path):
    frame = rows(
        tmp_path,
        *[make_rollout(f"a__b.1.{i}", solved=i < 3) for i in range(5)],
        *[make_rollout(f"c__d-{i}", solved=False) for i in range(5)],
        make_rollout("c__d-9", solved=False, failed=True),
    )
    e = evaluate_rows(frame)
    assert (e.tasks, e.tasks_judged, e.rollouts, e.solved_tasks) == (11, 10, 11, 3)
    assert e.pass_at_1 == pytest.approx(0.3) and e.interval == wilson(3, 10, 0.95)
    assert e.pass_at_1_failures_unsolved == pytest.approx(3 / 11)
    assert e.failures == {"sandbox": 1} and e.ends == {"submitted": 10}
    assert e.by_repo == {"a__b": (5, pytest.approx(0.6)), "c__d": (5, 0.0)}
    assert e.pass_at_k == {1: pytest.approx(0.3)}
    text = evaluation_text(e, "Evaluation of x")
    for part in (
        "0.300",
        "[0.108, 0.603] (wilson)",
        "10 judged of 11",
        "1 failed (ours): sandbox 1",
        "0.273",
    ):
        assert part in text


def test_several_rollouts_a_task(tmp_path: Path):
    solved = {"t1": 4, "t2": 2, "t3": 0, "t4": 1}
    frame = rows(
        tmp_path,
        *[make_rollout(n, solved=i < k, repetition=i) for n, k in solved.items() for i in range(4)],
        make_rollout("t4", solved=False, failed=True, repetition=4),
    )
    e = evaluate_rows(frame)
    assert e.pass_at_1 == pytest.approx((1 + 0.5 + 0 + 0.25) / 4)
    # pass@2: 1 - C(n-c, 2) / C(n, 2) of each task
    assert e.pass_at_k[2] == pytest.approx((1 + (1 - 1 / 6) + 0 + (1 - 3 / 6)) / 4)
    assert list(e.pass_at_k) == [1, 2, 3, 4] and e.pass_at_k[4] == 0.75
    assert e.interval_method == "bootstrap over tasks" and e.interval is not None
    assert e.interval[0] < e.pass_at_1 < e.interval[1]
    assert evaluate_rows(frame).interval == e.interval  # the same when it is made again


def test_the_bootstrap_agrees_with_the_normal_interval_on_many_tasks():
    rates = [0.0, 0.25, 0.5, 0.75, 1.0] * 80
    low, high = interval(rates, 0.95, single=False)
    half = 1.96 * math.sqrt(0.125 / len(rates))
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=0.004)


def test_nothing_that_can_be_judged(tmp_path: Path):
    e = evaluate_rows(rows(tmp_path, make_rollout("a", solved=False, failed=True)))
    assert e.pass_at_1 is None and e.interval is None and e.tasks_judged == 0
    assert "no rollout of 1 could be judged" in evaluation_text(e, "x")


def test_what_can_be_served(tmp_path: Path):
    assert servable_model("Qwen/Qwen2.5-Coder-3B", tmp_path) == "Qwen/Qwen2.5-Coder-3B"
    run = tmp_path / "run"
    policy = run / "checkpoints" / "global_step_6" / "policy"
    policy.mkdir(parents=True)
    for bad in (tmp_path / "none", run):  # the second has no marker of a whole checkpoint
        with pytest.raises(NoModelError):
            servable_model(str(bad), tmp_path)
    (run / "checkpoints" / "latest_ckpt_global_step.txt").write_text("6")
    with pytest.raises(NoModelError, match="hf_save_interval"):
        servable_model(str(run), tmp_path)
    export = run / "exports" / "global_step_6" / "policy"
    export.mkdir(parents=True)
    (export / "config.json").write_text("{}")
    for name in (run, run / "checkpoints", policy.parent, export):
        assert Path(servable_model(str(name), tmp_path)).resolve() == export.resolve()
