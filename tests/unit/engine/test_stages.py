import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.plans import Only, Stage
from transfer_cli.engine.averaging import EMA, LastK
from transfer_cli.engine.stages import Stages
from transfer_cli.errors import ConfigError
from transfer_cli.lengths import Length
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Geometric
from transfer_cli.optim.schedules import StagePlan

THREE = tiny.Given(
    (("head.*",), "3 steps"), (("head.*", "block.2"), "1 epoch"), (("head.*", "block.0"), "rest")
)
"""Steps 0 to 2, 3 to 10 (an epoch is 8 steps), 11 and on: block 2 trains, then is frozen again."""


def classify(recipe, **changes):
    return tiny.run(Classification(), tiny.Questions(), recipe, **changes)


def in_training(model):
    """Return the names of the parts that run with dropout."""
    return {
        name for name, module in model.named_modules()
        if isinstance(module, nn.Dropout) and module.training
    }  # fmt: skip


def watched(run):
    """Return what trains and which weights moved in every step."""
    from ignite.engine import Events

    seen = []
    before = {"weights": tiny.weights_of(run.step.model)}

    @run.trainer.on(Events.ITERATION_COMPLETED)
    def look():
        now = tiny.weights_of(run.step.model)
        moved = {n for n in now if not torch.equal(now[n], before["weights"][n])}
        trains = {n for n, p in run.step.model.named_parameters() if p.requires_grad}
        seen.append((trains, moved))
        before["weights"] = now

    return seen


# Frozen means frozen.


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_frozen_weights_do_not_change_and_have_no_gradient(optimizer):
    run = classify(tiny.Recipe(plan=Only(("head.*",)), total=30, optimizer=optimizer, clip=0.1))
    before = tiny.weights_of(run.step.model)

    run.go()

    for name, parameter in run.step.model.named_parameters():
        trains = name.startswith("heads.")
        assert torch.equal(parameter, before[name]) != trains, name
        assert parameter.requires_grad == trains
        assert trains or parameter.grad is None


def test_stages_switch_exactly_at_their_steps_and_stale_momentum_moves_nothing():
    run = classify(tiny.Recipe(plan=THREE, total=20, layer_scale=Geometric(1.2)))
    seen = watched(run)

    run.go()

    for step, (trains, moved) in enumerate(seen):
        block = None if step < 3 else "blocks.2" if step < 11 else "blocks.0"
        expected = {
            name for name in run.step.model.state_dict()
            if name.startswith("heads.") or (block is not None and f".{block}." in name)
            or (block == "blocks.2" and "final_norm" in name)
        }  # fmt: skip
        assert trains == expected, step
        assert moved == expected, step


@pytest.mark.parametrize(("step", "stage"), [(0, 0), (2, 0), (3, 1), (10, 1), (11, 2), (999, 2)])
def test_any_step_has_a_stage_whatever_came_before(step, stage):
    run = classify(tiny.Recipe(plan=THREE))

    run.step.stages.enter(step)

    assert run.step.stages.current == run.step.stages.stage_at(step) == stage


def test_a_stage_that_ends_drops_the_gradients_of_what_it_freezes():
    stages = classify(tiny.Recipe(plan=THREE)).step.stages
    model = stages._model
    stages.enter(3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    stages.enter(11)

    kept = {name for name, p in model.named_parameters() if p.grad is not None}
    assert kept == {name for name, p in model.named_parameters() if p.requires_grad}


def test_parameters_are_counted_now_and_over_all_stages():
    stages = classify(tiny.Recipe(plan=THREE)).step.stages
    model = stages._model
    head, block = 3 * 16 + 3, sum(p.numel() for p in model.backbone.blocks[0].parameters())

    stages.enter(0)

    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == head
    assert stages.num_ever_trained() == head + 2 * block + 2 * 16  # the final norm is block 2's


# Dropout of frozen parts.


@pytest.mark.parametrize(("frozen_eval", "count"), [(True, 1), (False, 5)])
def test_frozen_parts_run_without_dropout_from_the_first_step_on_if_asked(frozen_eval, count):
    run = classify(tiny.Recipe(plan=Only(("head.*",)), frozen_eval=frozen_eval), dropout=0.5)

    run.step.stages.enter(0)

    with_dropout = in_training(run.step.model)  # of the head, the embeddings and three blocks
    assert "heads.class.drop" in with_dropout
    assert len(with_dropout) == count


def test_a_new_stage_switches_dropout_on_where_it_trains_and_off_where_it_ends():
    run = classify(tiny.Recipe(plan=THREE, frozen_eval=True), dropout=0.5)
    drops = {f"backbone.blocks.{number}.drop" for number in range(3)}

    for step, block in ((2, None), (3, 2), (11, 0)):
        run.step.stages.enter(step)
        assert drops & in_training(run.step.model) == drops & {f"backbone.blocks.{block}.drop"}


@pytest.mark.parametrize("frozen_eval", [True, False])
def test_an_evaluation_between_two_steps_changes_no_mode(frozen_eval):
    run = classify(tiny.Recipe(plan=Only(("head.*",)), frozen_eval=frozen_eval), dropout=0.5)
    run.step.stages.enter(0)
    before = in_training(run.step.model)

    run.step.model.eval()
    run.step.stages.enter(1)

    assert in_training(run.step.model) == before


def test_a_language_model_may_train_only_its_blocks():
    inherited = frozenset(name for name, _ in tiny.model(CausalLM()).named_parameters())
    run = tiny.run(
        CausalLM(), tiny.blocks(), tiny.Recipe(plan=Only(("block.*",)), inherited=inherited)
    )
    table = run.step.model.backbone.token_embedding.weight.detach().clone()

    run.go()

    assert torch.equal(run.step.model.backbone.token_embedding.weight, table)
    assert run.losses[-1] < run.losses[0]


# Stages that end when nothing gets better.


class Patient:
    """A head alone, then block 2, then everything; the first two wait for two validations."""

    def __call__(self, groups):
        return [
            Stage(("head.*",), Length.parse("6 steps"), patience=2),
            Stage(("head.*", "block.2"), Length.parse("6 steps"), rate=0.1, patience=2),
            Stage(("*",), Length(None)),
        ]


def patient(values, total=20):
    """Run with a value to observe after each step; return the run and its weights after each."""
    from ignite.engine import Events

    run = classify(tiny.Recipe(plan=Patient(), total=total))
    weights = [tiny.weights_of(run.step.model)]

    @run.trainer.on(Events.ITERATION_COMPLETED)
    def look(engine):
        step = engine.state.iteration
        weights.append(tiny.weights_of(run.step.model))
        if step in values:
            run.step.stages.observe_validation(step, (values[step],))

    return run, weights


def test_a_stage_ends_when_two_validations_bring_nothing_better_and_the_next_ones_begin_earlier():
    run, _ = patient({1: 3.0, 2: 2.0, 3: 2.0, 4: 2.5})

    run.go()

    assert [(span.begin, span.end) for span in run.step.stages.spans] == [(0, 4), (4, 10), (10, 20)]


@pytest.mark.parametrize(
    "values",
    [{1: 3.0, 2: 2.0, 3: 2.0, 4: 2.5}, {2: 1.0, 4: 2.0, 6: 2.0, 5: 3.0}],
    ids=["ends early", "runs its length"],
)
def test_the_best_weights_of_a_stage_are_back_when_the_next_one_begins(values):
    run, weights = patient(values)
    stages, entered = run.step.stages, {}

    def after_entering(step):
        forgotten = original(step)
        entered.setdefault(step, (tiny.weights_of(run.step.model), forgotten))
        return forgotten

    original, stages.enter = stages.enter, after_entering
    run.go()

    begin = stages.spans[1].begin
    restored, forgotten = entered[begin]
    head = [name for name in weights[0] if name.startswith("heads.")]
    assert any(not torch.equal(weights[2][name], weights[begin][name]) for name in head)
    assert all(torch.equal(restored[name], weights[2][name]) for name in head)
    assert set(head) <= forgotten


def test_a_stage_without_patience_observes_nothing():
    run = classify(tiny.Recipe(plan=THREE))
    run.step.stages.enter(0)

    for step in range(1, 9):
        run.step.stages.observe_validation(step, (float(step),))

    assert run.step.stages.spans[0].end == 3
    assert run.step.stages.state_dict()["kept"] == {}


def test_the_last_stage_may_run_out_of_patience():
    run = classify(tiny.Recipe(plan=Patient()))
    stages = Stages(
        run.step.model, [StagePlan(0, 20, frozenset(tiny.weights_of(run.step.model)), patience=1)],
        frozen_eval=False,
    )  # fmt: skip
    stages.enter(0)
    stages.observe_validation(2, (1.0,))
    assert not stages.is_exhausted

    stages.observe_validation(4, (1.0,))

    assert stages.is_exhausted


def test_the_rate_of_a_stage_multiplies_every_rate():
    run, _ = patient({})

    run.go()

    assert run.rates[5][0] == pytest.approx(run.recipe.rate)
    assert run.rates[6][0] == pytest.approx(0.1 * run.recipe.rate)


def test_what_begins_to_train_again_does_so_with_fresh_averages():
    again = tiny.Given(
        (("head.*", "block.0"), "3 steps"), (("head.*",), "3 steps"), (("*",), "rest")
    )
    run = classify(tiny.Recipe(plan=again, total=8))
    run.go()

    for name, parameter in run.step.model.named_parameters():
        taken = float(run.step.optimizer.state[parameter]["step"])
        assert taken == (8 if name.startswith("heads.") else 2), name


@pytest.mark.parametrize("kind", [tuple, list])  # shards store lists
def test_the_memory_of_a_stage_can_be_taken_up_in_its_middle(kind):
    values = {1: 3.0, 2: 2.0, 3: 2.0, 4: 2.5}
    straight, _ = patient(values)
    straight.go()
    stages = patient(values)[0].step.stages
    stages.enter(0)
    for step in (1, 2, 3):
        stages.observe_validation(step, (values[step],))

    other = patient(values)[0].step.stages
    other.load_state_dict({**stages.state_dict(), "best": kind(stages.state_dict()["best"])})
    other.observe_validation(4, (2.5,))

    assert other.spans == straight.step.stages.spans
    assert other.current == 0


def test_a_stage_that_has_ended_early_is_over_after_a_resume():
    run, _ = patient({1: 3.0, 2: 2.0, 3: 2.0, 4: 2.5})
    run.go()
    stages = run.step.stages

    other = patient({})[0].step.stages
    other.load_state_dict(stages.state_dict())

    assert other.spans == stages.spans
    assert other.current == stages.current
    assert other.stage_at(4) == 1


# --- averaged weights ----------------------------------------------------------------------------


LATER = 6
"""The step after which the first layer trains, too."""
TRAINS = {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight"}


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def trained(model, average, steps, *, first=0):
    """Yield the number of steps after each of them; the bias at the top never trains."""
    for step in range(first, steps):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in TRAINS and (step >= LATER or name[0] != "0"))
        generator = torch.Generator().manual_seed(step)
        model.zero_grad()
        model(torch.randn(5, 3, generator=generator)).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.02 * parameter.grad
        average.on_step()
        yield step + 1


def floats(module):
    return {n: t for n, t in tiny.weights_of(module).items() if t.is_floating_point()}


def averaged(model, average):
    with average.swapped_in():
        return floats(model)


def warmed(mine, current, count):
    decay = min(0.8, (1 + int(count)) / (10 + int(count)))
    get_ema_multi_avg_fn(decay)(mine, current, count)


@pytest.mark.parametrize("steps", [1, 2, LATER, 60])
def test_the_moving_average_is_that_of_torch(steps):
    model = a_model()
    average = EMA(model, TRAINS, 0.8)
    theirs = AveragedModel(model, multi_avg_fn=warmed, use_buffers=True)
    start = floats(model)

    for _ in trained(model, average, steps):
        theirs.update_parameters(model)
    plain, mean = floats(model), averaged(model, average)

    assert tiny.same(mean, floats(theirs.module))
    assert tiny.same(floats(model), plain)
    changes = {name for name in mean if not torch.equal(mean[name], start[name])}
    statistics = {"1.running_mean", "1.running_var"}
    assert changes == statistics | {n for n in TRAINS if steps > LATER or n[0] != "0"}


@pytest.mark.parametrize("last", [2, 3, 5])
def test_the_mean_of_the_last_weights_is_that_of_torch(last):
    model = a_model()
    average, snapshots = LastK(model, TRAINS, last), []

    for done in trained(model, average, 28):
        if done % 4 == 0:
            average.on_validation()
            snapshots.append(copy.deepcopy(model))
            theirs = AveragedModel(model, use_buffers=True)
            for snapshot in snapshots[-last:]:
                theirs.update_parameters(snapshot)
            assert_close(averaged(model, average), floats(theirs.module), rtol=1e-6, atol=1e-7)
            assert tiny.same(floats(model), floats(snapshots[-1]))


def test_what_never_trains_costs_no_memory():
    model = a_model()
    average = EMA(model, {"2.weight"}, 0.8)
    average.on_step()

    [kept] = average.state_dict()["copies"]

    assert kept.keys() == {"2.weight", "1.running_mean", "1.running_var"}


@pytest.mark.parametrize("make", [lambda m: EMA(m, TRAINS, 0.8), lambda m: LastK(m, TRAINS, 2)])
def test_an_average_goes_on_from_its_state_bit_for_bit(make, tmp_path):
    def go_on(model, average, first, last):
        for done in trained(model, average, last, first=first):
            if done % 3 == 0:
                average.on_validation()

    whole, model = a_model(), a_model()
    average, again = make(whole), make(model)
    go_on(whole, average, 0, 8)
    torch.save({"model": whole.state_dict(), "average": average.state_dict()}, tmp_path / "s")
    state = torch.load(tmp_path / "s", weights_only=True)
    model.load_state_dict(state["model"])
    again.load_state_dict(state["average"])

    go_on(whole, average, 8, 16)
    go_on(model, again, 8, 16)

    assert tiny.same(averaged(whole, average), averaged(model, again))


def test_an_error_while_the_average_is_in_place_brings_the_plain_weights_back():
    model = a_model()
    average = EMA(model, TRAINS, 0.8)
    for _ in trained(model, average, 3):
        pass
    plain = floats(model)

    with pytest.raises(ConfigError), average.swapped_in():
        raise ConfigError("stop")

    assert tiny.same(floats(model), plain)
