"""What a time is spent on: without a clock, of made-up steps."""

import pytest

from transfer_cli.training.budgeted_adaptation import (
    FEWEST_STEPS,
    FEWEST_TEXTS,
    USUAL_EPOCHS,
    USUAL_STEPS,
    Work,
    choose_scheme,
)

FEW = Work(step=0.5, batch=16, scoring=1 / 96, texts={"train": 160, "validation": 32})
MANY = Work(
    step=0.5, batch=16, scoring=1 / 96, texts={"train": 32_000, "validation": 160, "test": 320}
)


@pytest.mark.parametrize("work", [FEW, MANY])
@pytest.mark.parametrize("seconds", [60, 300, 2000, 50_000])
def test_the_steps_that_a_time_pays_for_end_in_it(work, seconds):
    steps, usual = work.steps(seconds), max(USUAL_STEPS, USUAL_EPOCHS * work.epoch)

    assert work.seconds(steps) <= seconds
    assert steps == usual or work.seconds(steps + 1) > seconds


@pytest.mark.parametrize(
    ("work", "seconds", "scheme"),
    [(FEW, 1000, "full"), (FEW, 20, "quick"), (MANY, 1000, "full"), (MANY, 400, "full"),
     (MANY, 30, "quick"), (FEW, 0.1, "quick"), (MANY, -5, "quick")],
)  # fmt: skip
def test_weights_train_where_there_is_time_for_steps_enough(work, seconds, scheme):
    choice = choose_scheme(seconds, {"full": work, "quick": work})

    assert choice.scheme == scheme
    if scheme == "full":
        assert choice.steps >= FEWEST_STEPS
        assert choice.seconds <= seconds


def test_a_classifier_learns_from_as_many_texts_as_there_is_time_for():
    none, some = (choose_scheme(time, {"full": MANY, "quick": MANY}).texts for time in (0, 40))

    assert none == FEWEST_TEXTS < some < 32_000
    assert choose_scheme(400, {"quick": MANY}).texts is None


def test_a_model_without_room_or_a_task_that_cannot_be_solved_has_an_answer_too():
    assert choose_scheme(1000, {"lora": FEW, "quick": FEW}).scheme == "lora"
    choice = choose_scheme(3, {"full": FEW})
    assert (choice.scheme, choice.steps) == ("full", 4)
    typed = choose_scheme(-5, {"lora": FEW}).overrides
    assert typed == ["adaptation=lora", "loop.steps=1", "loop.epochs=null"]
