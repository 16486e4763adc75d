import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.lengths import Length


@pytest.mark.parametrize(
    ("text", "steps"),
    [("1 step", 1), ("500 steps", 500), ("1 epoch", 40), ("2 epochs", 80), ("0.5 epochs", 20),
     (" 3 steps ", 3), ("0.01 epochs", 1), ("1.01 epochs", 41), ("rest", None)],
)  # fmt: skip
def test_lengths_are_read_as_people_write_them(text, steps):
    assert Length.parse(text).steps(40) == steps


@pytest.mark.parametrize(
    "text",
    ["", "5", "steps", "-1 steps", "0 steps", "1.5 steps", "0 epochs", "3 weeks", "1 epoch x",
     "0%", "101%", "-5%", "% 5", "20 percent", "automatic"],
)  # fmt: skip
def test_what_is_no_length_is_refused_by_name(text):
    with pytest.raises(ValueError, match="is no length") as refused:
        Length.parse(text)

    assert repr(text) in str(refused.value)


@given(st.integers(1, 1000), st.integers(1, 10_000))
def test_whole_epochs_are_exactly_so_many_steps(epochs, steps_per_epoch):
    assert Length(epochs, "epochs").steps(steps_per_epoch) == epochs * steps_per_epoch


@given(st.floats(0.001, 100), st.integers(1, 1000))
def test_a_length_is_never_empty_and_never_a_step_too_long(epochs, steps_per_epoch):
    steps = Length(epochs, "epochs").steps(steps_per_epoch)

    assert 1 <= steps < epochs * steps_per_epoch + 1


@pytest.mark.parametrize(
    ("text", "steps"),
    [("500 steps", 500), ("2 epochs", 80), ("rest", None), ("auto", 54), ("20%", 184),
     (" 12.5 % ", 115), ("100%", 921), ("0.01%", 1)],
)  # fmt: skip
def test_a_stage_has_its_length_in_a_run_of_921_steps_and_17_stages(text, steps):
    assert Length.parse(text).resolve(40, total=921, stages=17) == steps


@given(st.integers(1, 100))
def test_percents_of_a_hundred_steps_are_exactly_so_many(percent):
    assert Length.parse(f"{percent}%").resolve(1, total=100, stages=1) == percent


@given(st.integers(1, 5000), st.integers(1, 40))
def test_equal_shares_fill_a_run_and_never_exceed_it(total, stages):
    share = Length.parse("auto").resolve(40, total, stages)

    assert share >= 1
    if total >= stages:
        assert total - stages < share * stages <= total


@pytest.mark.parametrize("text", ["20%", "auto"])
def test_a_share_has_no_length_without_a_run(text):
    with pytest.raises(ValueError, match="use resolve"):
        Length.parse(text).steps(40)


@pytest.mark.parametrize(("text", "steps"), [("3 steps", 3), ("2 epochs", 80)])
def test_a_rhythm_is_so_many_steps_or_epochs(text, steps):
    assert Length.parse_rhythm(text).steps(40) == steps


@pytest.mark.parametrize("text", ["20%", "auto", "rest", "0 steps", "soon"])
def test_no_other_length_is_a_rhythm(text):
    with pytest.raises(ValueError, match=f"'{text}' is no length"):
        Length.parse_rhythm(text)
