"""Learning curves as they are read from `metrics.jsonl`, whatever is in it."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.report.html.learning_curves import mean_curve, read_curves, thin


def write(path, records, end=""):
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records) + end)
    return path


def test_a_half_written_last_line_is_passed_over(tmp_path):
    records = [{"kind": "train", "step": step, "loss": 1.0 / step} for step in (1, 2)]
    path = write(tmp_path / "metrics.jsonl", records, '{"kind": "train", "step": 3, "lo')

    assert read_curves(path, 100)["train/loss"] == ((1, 1.0), (2, 0.5))


def test_a_missing_file_has_no_curves(tmp_path):
    assert read_curves(tmp_path / "metrics.jsonl", 100) == {}


def test_measures_of_single_classes_and_what_is_no_finite_number_are_left_out(tmp_path):
    path = write(
        tmp_path / "metrics.jsonl",
        [
            {"kind": "validation", "step": 5, "loss": 2.0, "accuracy/city": 0.5, "note": "x"},
            {"kind": "validation", "step": 6, "loss": math.nan, "accuracy": True},
            {"kind": "validation", "step": "7", "loss": 1.0},
            {"kind": "test", "step": 8, "loss": 1.0},
            ["kind"],
        ],
        f'{{"kind": "validation", "step": 9, "loss": {"9" * 400}}}\n'
        f'{{"kind": "validation", "step": {"9" * 40}, "loss": 1}}\n{"[" * 5000}\n',
    )

    assert read_curves(path, 100) == {"validation/loss": ((5, 2.0),)}


def test_a_long_curve_is_thinned_and_keeps_its_ends(tmp_path):
    records = [{"kind": "train", "step": step, "loss": 0.5} for step in range(1, 10_001)]
    path = write(tmp_path / "metrics.jsonl", records)

    found = read_curves(path, 300)["train/loss"]

    assert 100 < len(found) <= 300
    assert (found[0][0], found[-1][0]) == (1, 10_000)


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(5, 400))
def test_thinned_curves_of_different_lengths_keep_steps_in_common(one, other, most):
    curves = [thin(tuple((step, 1.0) for step in range(n)), most) for n in (one, other)]

    for curve, whole in zip(curves, (one, other), strict=True):
        assert len(curve) <= most
        assert (whole == 0) == (curve == ())
    shorter, longer = sorted(curves, key=len)
    if min(one, other) > most:
        common = {step for step, _ in shorter} & {step for step, _ in longer}
        assert len(common) >= min(one, other) * most // (8 * max(one, other))


def test_the_mean_is_over_the_steps_that_all_curves_have():
    assert mean_curve([((1, 2.0), (2, 4.0)), ((2, 8.0), (3, 1.0)), ()]) == ((2, 6.0),)
