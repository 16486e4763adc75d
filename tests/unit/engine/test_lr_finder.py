import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ignite.engine import Events

from tests import tiny
from transfer_cli.data.loader import Stream
from transfer_cli.engine.lr_finder import (
    FEWEST_STEPS,
    ExponentialGrowth,
    RangeTest,
    run_range_test,
    smooth_losses,
    steepest_step,
)
from transfer_cli.errors import RunError
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Geometric
from transfer_cli.optim.muon import MuonWithAdamW

GROWTH = ExponentialGrowth(1e-6, 1.0)


def seen_by(run, growth=GROWTH, steps=40, **options):
    """Return a range test of a tiny run."""
    streams = {"main": Stream(run.data, run.sampler)}
    return run_range_test(
        run.step, streams, growth, steps, frozen_eval=False, micro_batch=run.micro_batch, **options
    )


def questions_run(recipe=None, **options):
    return tiny.run(Classification(), tiny.Questions(), recipe or tiny.Recipe(), **options)


def curve(losses, growth=GROWTH, *, exploded=False):
    rates = [growth(step, len(losses)) for step in range(len(losses))]
    return RangeTest(rates, losses, smooth_losses(losses), exploded)


# --- the rate ----------------------------------------------------------------------------------


@given(
    start=st.floats(1e-9, 1e-2), factor=st.floats(1.1, 1e8), steps=st.integers(FEWEST_STEPS, 500)
)
def test_the_rate_grows_by_one_factor_and_ends_where_it_should(start, factor, steps):
    growth = ExponentialGrowth(start, start * factor)

    rates = [growth(step, steps) for step in range(steps)]

    assert rates[0] > start
    assert rates[-1] == pytest.approx(start * factor)
    assert np.allclose(np.diff(np.log(rates)), math.log(factor) / steps)


def test_every_step_has_the_rate_that_the_test_says_at_each_groups_scale():
    run = questions_run(tiny.Recipe(layer_scale=Geometric(2.0)))
    rates = []

    def attach(trainer):
        optimizer = run.step.optimizer
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED,
            # Before the finder, which then counts one up.
            lambda: rates.append(
                [group["lr"] / group["scale"] for group in optimizer.param_groups]
            ),
        )

    seen = seen_by(run, ExponentialGrowth(1e-6, 1e-2), attach=attach)

    assert len({group["scale"] for group in run.step.optimizer.param_groups}) > 1
    assert np.allclose(rates, np.array(seen.rates)[:, None])


# --- the run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, MuonWithAdamW])
def test_weights_and_optimizer_are_as_they_were(optimizer):
    run = questions_run(tiny.Recipe(optimizer=optimizer))
    before = tiny.weights_of(run.step.model)

    seen = seen_by(run)

    assert len(seen.losses) >= FEWEST_STEPS
    assert seen.losses[0] != seen.losses[-1]
    assert tiny.same(tiny.weights_of(run.step.model), before)
    assert not run.step.optimizer.state


def test_all_that_the_run_ever_trains_trains_from_the_first_step():
    plan = tiny.Given((("head.*",), "50%"), (("block.*",), "rest"))
    run = questions_run(tiny.Recipe(plan=plan))
    moved = []

    def attach(trainer):
        before = tiny.weights_of(run.step.model)

        @trainer.on(Events.ITERATION_COMPLETED(once=1))
        def note():
            after = tiny.weights_of(run.step.model)
            moved.extend(name for name in before if not torch.equal(before[name], after[name]))

    seen_by(run, attach=attach)

    assert any(name.startswith("heads.") for name in moved)
    assert any(".blocks.0." in name for name in moved)
    assert not any("embedding" in name for name in moved)


def test_the_test_ends_where_the_loss_explodes():
    run = questions_run(tiny.Recipe(optimizer=torch.optim.SGD))

    seen = seen_by(run, ExponentialGrowth(1e-4, 1e6), steps=60)

    assert seen.exploded
    assert len(seen.losses) == len(seen.rates) == len(seen.smoothed) < 60
    assert all(map(math.isfinite, seen.losses))


def test_a_loss_that_explodes_at_once_is_an_error_with_a_cure():
    run = questions_run(tiny.Recipe(optimizer=torch.optim.SGD))

    with pytest.raises(RunError, match=r"lr_find\.start: the loss exploded at step \d already"):
        seen_by(run, ExponentialGrowth(1e6, 1e30), steps=60)


@pytest.mark.slow
def test_the_suggestion_for_a_tiny_task_lies_inside_of_the_range():
    run = questions_run(batch=64, dropout=0.0)

    seen = seen_by(run, ExponentialGrowth(1e-6, 1.0), steps=100)

    assert 1e-4 < seen.rates[steepest_step(seen)] < 0.6


# --- the suggestion ----------------------------------------------------------------------------


@given(
    middle=st.integers(20, 80),
    width=st.floats(2, 8),
    depth=st.floats(0.5, 5),
    seed=st.integers(0, 99),
)
def test_the_steepest_fall_is_found_in_spite_of_noise(middle, width, depth, seed):
    steps = np.arange(120)
    noise = np.random.default_rng(seed).normal(size=120)
    falls = depth / (1 + np.exp((steps - middle) / width))
    rises = depth * np.exp((steps - 110) / 3)

    seen = curve([float(x) for x in 1 + falls + rises + 0.01 * depth * noise])

    assert abs(steepest_step(seen) - middle) <= 2 + width


def test_a_quadratic_is_given_a_rate_at_which_it_is_stable():
    # Gradient descent on c w^2 / 2 diverges from the rate 2 / c on.
    curvature, weight, losses, growth = 10.0, 1.0, [], ExponentialGrowth(1e-5, 10.0)
    for step in range(100):
        losses.append(0.5 * curvature * weight**2)
        weight -= growth(step, 100) * curvature * weight
        if losses[-1] > 4 * min(losses):
            break

    seen = curve(losses, ExponentialGrowth(1e-5, growth(len(losses) - 1, 100)), exploded=True)

    assert 0.001 < seen.rates[steepest_step(seen)] < 2 / curvature


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slope", [0.0, 0.01])
def test_where_the_loss_does_not_fall_nothing_is_suggested(seed, slope):
    noise = np.random.default_rng(seed).normal(size=100)

    with pytest.raises(RunError, match="no rate can be suggested: between") as caught:
        steepest_step(curve([float(x) for x in 2 + slope * np.arange(100) + 0.1 * noise]))

    assert "lr_find.steps" in str(caught.value)


def test_smoothing_does_not_lag():
    losses = [1.0] * 50 + [0.0] * 50

    smoothed = smooth_losses(losses)

    assert smoothed[49] + smoothed[50] == pytest.approx(1.0)
    assert np.all(np.diff(smoothed) <= 1e-12)
