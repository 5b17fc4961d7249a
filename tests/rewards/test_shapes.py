"""Shapes stay within 0-1, agree with the verdict at both ends, and never pay for what is suspected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.shapes import Effort, ShapeConfig, shape_config, shaped
from rewards.types import RewardResult

EFFORT = Effort(turns=5, max_turns=10, tokens=75, max_tokens=100, well_formed=4)
SOLVED = RewardResult(1.0, True, 1.0, 0)
HALF = RewardResult(0.0, False, 0.5, 1)
SUSPECTED = RewardResult(0.0, False, 0.0, 0, suspicions=("added code uses gc",))


@pytest.mark.parametrize(
    ("config", "result", "want"),
    [
        (ShapeConfig(), SOLVED, 1.0),
        (ShapeConfig(), HALF, 0.0),
        (ShapeConfig(shape="fraction"), HALF, 0.5 * 0.75),
        (ShapeConfig(shape="fraction"), SOLVED, 1.0),
        (ShapeConfig(turn_penalty=0.2), SOLVED, 0.9),
        (ShapeConfig(turn_penalty=0.2), HALF, 0.0),
        (ShapeConfig(length_penalty=0.2), SOLVED, 0.9),
        (ShapeConfig(format_bonus=0.1), HALF, 0.08),
        (ShapeConfig(format_bonus=0.1), SUSPECTED, 0.0),
        (ShapeConfig(suspicious="quarantine"), SUSPECTED, None),
        (ShapeConfig(suspicious="quarantine"), SOLVED, 1.0),
    ],
)
def test_formulas(config: ShapeConfig, result: RewardResult, want: float | None) -> None:
    assert shaped(result, config, EFFORT, pass_to_pass=4) == (want if want is None else pytest.approx(want))


SHARES = st.floats(0, 1)


@given(SHARES, SHARES, SHARES, st.sampled_from(["binary", "fraction"]), SHARES, st.integers(0, 4))
def test_between_0_and_1(
    turn: float, length: float, form: float, shape: str, f2p: float, broken: int
) -> None:
    config = shape_config(
        {"shape": shape, "turn_penalty": turn, "length_penalty": length, "format_bonus": form}
    )
    value = shaped(RewardResult(0.0, False, f2p, broken), config, EFFORT, pass_to_pass=4)
    assert value is not None and 0.0 <= value <= 1.0


@pytest.mark.parametrize(
    "values",
    [{"shape": "x"}, {"suspicious": "keep"}, {"turn_penalty": 2}, {"format_bonus": "a"}, {"bonus": 1}],
)
def test_bad_configuration(values: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        shape_config(values)
