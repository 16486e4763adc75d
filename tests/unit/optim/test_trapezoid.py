"""Warm-up, full rate, straight fall."""

import pytest

from transfer_cli.optim.schedules import Trapezoid


def test_it_rises_stays_and_falls():
    schedule = Trapezoid(warmup=10, fall=0.2)

    found = [schedule(step, 100) for step in (0, 4, 9, 10, 50, 80, 81, 90, 99, 100)]

    assert found == pytest.approx([0.1, 0.5, 1, 1, 1, 1, 0.95, 0.5, 0.05, 0])


def test_a_fall_over_all_of_the_run_is_straight():
    schedule = Trapezoid(fall=1.0)

    assert [schedule(step, 4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_a_warmup_may_reach_into_the_fall():
    schedule = Trapezoid(warmup=9, fall=0.5)

    found = [schedule(step, 10) for step in range(11)]
    assert max(found) == 1.0
    assert found[9:] == pytest.approx([0.2, 0.0])


@pytest.mark.parametrize("fall", [0.0, -0.1, 1.5])
def test_the_fall_is_a_share_of_the_run(fall):
    with pytest.raises(ValueError, match="fall must be in"):
        Trapezoid(fall=fall)
