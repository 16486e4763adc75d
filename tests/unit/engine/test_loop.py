from functools import cache

import pytest
from ignite.engine import Events
from torch.testing import assert_close

from tests import tiny
from transfer_cli.batch import IdleBatch
from transfer_cli.data.loader import StepDataLoader, Stream
from transfer_cli.data.mixture import Mixture
from transfer_cli.data.sampler import StepSampler
from transfer_cli.engine.loop import Progress, run_trainer
from transfer_cli.model.weights import WEIGHTS, load_strictly, read_weights, save_tensors
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.optim.layer_scale import Geometric
from transfer_cli.optim.schedules import Cosine, Linear
from transfer_cli.runs import checkpoint

# The loader.


def loader_of(data, *, batch=8, micro_batch=3, first=0):
    streams = {"main": Stream(data, StepSampler(len(data), batch, seed=0))}
    return StepDataLoader(streams, micro_batch, lambda: first)


def drawn(loader, steps):
    iterator = iter(loader)
    return [[micro["main"]["index"].tolist() for micro in next(iterator)] for _ in range(steps)]


@pytest.mark.parametrize("first", [1, 7, 8, 13])
def test_a_loader_that_starts_anywhere_gives_what_follows(first):
    data = tiny.Questions(examples=60)

    straight = drawn(loader_of(data), 20)

    assert drawn(loader_of(data, first=first), 20 - first) == straight[first:]


def test_batches_say_how_many_epochs_of_their_stream_are_over():
    loader, mixture = mixed_loader()

    for step in range(40):
        name, visit = mixture.draw(step)
        over = visit // loader.streams[name].sampler.steps_per_epoch
        for micro in loader.load(step):
            assert micro[name]["epoch"].tolist() == [over] * len(micro[name]["index"])


def test_a_step_comes_in_micro_batches_of_at_most_the_size():
    steps = drawn(loader_of(tiny.Questions(examples=60), batch=8, micro_batch=3), 8)

    assert [[len(micro) for micro in step] for step in steps] == [[3, 3, 2]] * 7 + [[3, 1]]


# Several streams.


def mixed_loader(*, first=0, total=40):
    """Return a loader of 60 questions, 8 a step, and of a text, 4 blocks a step."""
    questions, text = tiny.Questions(examples=60), tiny.blocks()
    streams = {
        "main": Stream(questions, StepSampler(len(questions), 8, seed=0)),
        "text": Stream(text, StepSampler(len(text), 4, seed=0)),
    }
    sizes = {"main": len(questions), "text": len(text)}
    mixture = Mixture(sizes, total=total, steps_per_epoch=16, seed=3, target_only=5)
    return StepDataLoader(streams, 3, lambda: first, mixture), mixture


def test_a_step_of_a_mixture_comes_from_the_stream_it_draws_alone():
    loader, mixture = mixed_loader()

    for step in range(40):
        name = mixture.draw(step)[0]
        batches = loader.load(step)
        assert [list(micro) for micro in batches] == [[name]] * len(batches)
        assert ("label" in batches[0][name]) == (name == "main")


def test_each_stream_of_a_mixture_goes_through_its_own_epochs():
    loader, mixture = mixed_loader()
    seen = {"main": [], "text": []}

    for step in range(40):
        for micro in loader.load(step):
            for name, batch in micro.items():
                seen[name] += batch["index"].tolist()

    alone = loader_of(tiny.Questions(examples=60))
    visits = sum(mixture.draw(step)[0] == "main" for step in range(40))
    assert seen["main"] == [n for step in drawn(alone, visits) for micro in step for n in micro]
    assert len(set(seen["text"][:63])) == min(63, len(seen["text"]))


def joined_loader(*, rank=0, world_size=1, joins=True):
    """Return a loader of 20 questions, 8 a step, each with 18 blocks of a text."""
    questions, text = tiny.Questions(examples=20), tiny.blocks()
    streams = {
        "main": Stream(questions, StepSampler(len(questions), 8, seed=0)),
        "text": Stream(text, StepSampler(len(text), 18, seed=0), joins_main=joins),
    }
    return StepDataLoader(streams, 4, lambda: 0, rank=rank, world_size=world_size)


def test_a_stream_that_joins_has_a_batch_in_each_step_of_the_main_one():
    loader = joined_loader()
    texts = StepSampler(len(tiny.blocks()), 18, seed=0)

    for step in range(3):
        batches = loader.load(step)

        together = 1 if step % 3 == 2 else 2  # 20 questions
        expected = [["main", "text"]] * together + [["text"]] * (5 - together)
        assert [list(micro) for micro in batches] == expected
        seen = [n for micro in batches for n in micro["text"]["index"].tolist()]
        assert seen == texts.indices(step).tolist()
        assert max(len(b["tokens"]) for micro in batches for b in micro.values()) == 4


def test_without_a_mixture_a_stream_that_does_not_join_is_never_drawn():
    assert {name for micro in joined_loader(joins=False).load(0) for name in micro} == {"main"}


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_what_joins_and_end_with_a_batch_of_every_stream(world_size):
    for step in range(3):
        shares = [
            joined_loader(rank=r, world_size=world_size).load(step) for r in range(world_size)
        ]

        assert len({len(share) for share in shares}) == 1
        for share in shares:
            assert all(micro.keys() == {"main", "text"} for micro in share)
        for name in ("main", "text"):
            real = [micro[name] for share in shares for micro in share
                    if not isinstance(micro[name], IdleBatch)]  # fmt: skip
            alone = [micro[name] for micro in joined_loader().load(step) if name in micro]
            first, second = (
                sorted(n for batch in batches for n in batch["index"].tolist())
                for batches in (real, alone)
            )
            assert first == second


@pytest.mark.parametrize("first", [1, 17, 39])
def test_a_mixture_that_starts_anywhere_gives_what_follows(first):
    straight, _ = mixed_loader()
    resumed, _ = mixed_loader(first=first)

    step = next(iter(resumed))

    expected = straight.load(first)
    assert [list(micro) for micro in step] == [list(micro) for micro in expected]
    for micro, wanted in zip(step, expected, strict=True):
        for name, batch in micro.items():
            assert tiny.same(batch, wanted[name])


@pytest.mark.parametrize("start", [0, 12])
def test_an_epoch_is_as_long_as_it_is_said_to_be(start):
    run = tiny.run(Classification(), tiny.Questions(examples=60), tiny.Recipe(total=20))
    ends = []
    run.trainer.add_event_handler(
        Events.EPOCH_COMPLETED, lambda: ends.append(run.trainer.state.iteration)
    )

    run_trainer(
        run.trainer, {"main": Stream(run.data, run.sampler)},
        micro_batch=8, total_steps=20, start_step=start, epoch_length=5,
    )  # fmt: skip

    assert ends == [n for n in (5, 10, 15, 20) if n > start]


# The clock.


def test_a_run_takes_its_steps_and_counts_what_it_saw():
    data = tiny.Questions(examples=60)

    run = tiny.run(Classification(), data, tiny.Recipe(total=20), micro_batch=3).go()

    epochs_tokens = 2 * sum(map(len, data.rows))
    third = sum(len(data.rows[n]) for step in range(16, 20) for n in run.sampler.indices(step))
    assert (run.progress.step, run.progress.examples) == (20, 2 * 60 + 4 * 8)
    assert run.progress.tokens == epochs_tokens + third


# Stopping and going on.

CASES = {
    "clm": (CausalLM, tiny.blocks, {}),
    "mlm": (MaskedLM, tiny.blocks, {"direction": "bidirectional"}),
    "classification": (Classification, tiny.Questions, {"residual": "tutorial"}),
    "staged": (Classification, tiny.Questions, {}),
}
STAGED = tiny.Given((("head.*",), "5 steps"), (("*",), "rest"))


@cache
def straight_run(case):
    """Return a run that nothing stopped; it is only looked at, so the tests can share it."""
    return a_run(case).go()


class CrashError(Exception):
    """What ends a run in a test."""


def a_run(case, seed=0):
    objective, data, changes = CASES[case]
    recipe = tiny.Recipe(
        total=20, schedule=Cosine(4), clip=1.0, layer_scale=Geometric(1.2),
        **({"plan": STAGED, "frozen_eval": True} if case == "staged" else {}),
    )  # fmt: skip
    return tiny.run(
        objective(), data(), recipe, micro_batch=5, seed=seed, depth=2, dropout=0.2,
        attention_dropout=0.1, **changes,
    )  # fmt: skip


def crash_after(run, step, folder):
    """Let the run write a checkpoint after a step, and crash two steps later."""

    @run.trainer.on(Events.ITERATION_COMPLETED(once=step))
    def save():
        state = {"step": run.step.state_dict(), "progress": run.progress.state_dict()}
        checkpoint.write(
            folder / checkpoint.folder_name(step), step,
            lambda to: save_tensors(run.step.model.state_dict(), to / WEIGHTS), state,
        )  # fmt: skip

    @run.trainer.on(Events.ITERATION_COMPLETED(once=step + 2))
    def crash():
        raise CrashError

    with pytest.raises(CrashError):
        run.go()


def restore(run, folder):
    (path,) = checkpoint.find_all(folder)
    state = checkpoint.read_state(path)
    load_strictly(run.step.model, read_weights(path), path)
    run.step.load_state_dict(state["step"])
    run.progress.load_state_dict(state["progress"])
    return run


@pytest.mark.parametrize(
    ("case", "stop"), [("clm", 8), ("mlm", 7), ("classification", 8), ("staged", 7)]
)
def test_a_stopped_run_that_goes_on_equals_the_straight_run_bit_for_bit(tmp_path, case, stop):
    straight = straight_run(case)
    crash_after(a_run(case), stop, tmp_path)

    resumed = restore(a_run(case, seed=99), tmp_path).go()

    assert tiny.same(straight.step.model.state_dict(), resumed.step.model.state_dict())
    states = [run.step.optimizer.state_dict()["state"] for run in (straight, resumed)]
    assert_close(*states, rtol=0, atol=0)
    assert straight.losses[stop:] == resumed.losses
    assert straight.rates[stop:] == resumed.rates
    assert straight.progress == resumed.progress


def test_evaluations_change_nothing_of_what_training_does_next():
    plain, evaluated = straight_run("mlm"), a_run("mlm")
    objective = evaluated.step.losses[0].objective

    @evaluated.trainer.on(Events.ITERATION_COMPLETED(every=3))
    def look():
        tiny.measures(evaluated.step.model, objective, tiny.blocks(seed=1))

    assert plain.losses == evaluated.go().losses
    assert tiny.same(plain.step.model.state_dict(), evaluated.step.model.state_dict())


# Learning.


def test_one_batch_of_text_is_learnt_by_heart_within_three_hundred_steps():
    data = tiny.blocks(tokens=4 * 32, length=32)
    recipe = tiny.Recipe(rate=1e-2, total=100)

    run = tiny.run(CausalLM(), data, recipe, batch=4, width=64, heads=4, feedforward=128, depth=2)

    assert run.go().losses[-1] < 0.1


def test_a_run_that_has_taken_all_its_steps_takes_no_more_but_still_ends():
    run = a_run("classification")
    run.progress.step = 20
    ended = []
    run.trainer.add_event_handler(Events.COMPLETED, lambda: ended.append(1))

    run.go()

    assert (run.reports, ended) == ([], [1])


def test_a_run_whose_time_is_used_has_ended():
    run = tiny.run(Classification(), tiny.Questions(examples=16), tiny.Recipe(total=8))
    progress = Progress(step=3, seconds=61.0)

    assert progress.has_ended(8, run.step.stages, None, 1.0)
    assert not progress.has_ended(8, run.step.stages, None, 2.0)
    assert not progress.has_ended(8, run.step.stages, None, None)


def test_the_rate_of_a_step_is_that_of_the_time_that_is_used(monkeypatch):
    recipe, told = tiny.Recipe(total=8, schedule=Linear()), []
    run = tiny.run(Classification(), tiny.Questions(examples=64), recipe)
    monkeypatch.setattr(Classification, "on_step", lambda _, progress: told.append(progress))

    @run.trainer.on(Events.ITERATION_STARTED)
    def use():
        run.step.time_used = 0.9

    run.go()

    rates = [rates[0] / recipe.rate for rates in run.rates]
    assert rates == pytest.approx([0.1] * 8)
    assert told == pytest.approx([0.9] * 8)
