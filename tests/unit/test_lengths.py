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
    ["", "5", "steps", "-1 steps", "0 steps", "1.5 steps", "0 epochs", "3 weeks", "1 epoch x"],
)
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
