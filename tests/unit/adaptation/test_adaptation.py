import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.adaptation.plans import AllAtOnce, Only
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Uniform

MODEL = tiny.model(Classification())
GROUPS = layer_groups(MODEL, set())
ALL = {name for name, _ in MODEL.named_parameters()}
HEAD = {name for name in ALL if name.startswith("heads.")}


def spans(*stages, total=20, epoch=8):
    return Adaptation(tiny.Given(*stages), Uniform()).plan_stages(GROUPS, total, epoch)


def test_one_stage_lasts_the_whole_run():
    (span,) = Adaptation(AllAtOnce(), Uniform()).plan_stages(GROUPS, 20, 8)

    assert (span.begin, span.end, span.trains) == (0, 20, ALL)


def test_stages_in_steps_and_epochs_follow_each_other_without_a_gap():
    found = spans(
        (("head.*",), "3 steps"),
        (("block.2", "head.*"), "1 epoch"),
        (("*",), "rest"),
    )

    assert [(span.begin, span.end) for span in found] == [(0, 3), (3, 11), (11, 20)]
    assert found[0].trains == HEAD
    assert found[0].trains < found[1].trains < found[2].trains == ALL


def test_the_last_stage_takes_what_is_left():
    found = spans((("head.*",), "3 steps"), (("*",), "2 steps"))

    assert [(span.begin, span.end) for span in found] == [(0, 3), (3, 20)]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("20 steps", "stage 2 of 2 would last from step 20 to 20, but the run has 20"),
        ("25 steps", "stage 1 of 2 would last from step 0 to 25, but the run has 20"),
        ("rest", "stage 2 of 2 would last from step 20 to 20, but the run has 20"),
    ],
)
def test_stages_that_are_longer_than_the_run_are_refused(first, said):
    with pytest.raises(ConfigError, match=said):
        spans((("head.*",), first), (("*",), "rest"))


def test_stages_of_equal_shares_and_of_percentages():
    equal = spans((("head.*",), "auto"), (("block.2", "head.*"), "auto"), (("*",), "auto"))
    shares = spans((("head.*",), "20%"), (("*",), "rest"))

    assert [(span.begin, span.end) for span in equal] == [(0, 6), (6, 12), (12, 20)]
    assert [(span.begin, span.end) for span in shares] == [(0, 4), (4, 20)]


def test_a_head_that_trains_in_any_stage_is_enough():
    assert spans((("block.*",), "3 steps"), (("head.*",), "rest"))


def test_an_inherited_head_may_stay_as_it_is():
    groups = layer_groups(MODEL, ALL)

    (span,) = Adaptation(Only(("block.2",)), Uniform()).plan_stages(groups, 20, 8)

    assert not span.trains & HEAD


@given(st.lists(st.integers(1, 10), min_size=1, max_size=5), st.integers(1, 60))
def test_stages_cover_every_step_once_or_the_plan_is_refused(lengths, total):
    stages = [(("*",), f"{length} steps") for length in lengths]

    if sum(lengths[:-1]) >= total or sum(lengths) > total:
        with pytest.raises(ConfigError, match="would last from step"):
            spans(*stages, total=total)
    else:
        covered = [
            step for span in spans(*stages, total=total) for step in range(span.begin, span.end)
        ]
        assert covered == list(range(total))
