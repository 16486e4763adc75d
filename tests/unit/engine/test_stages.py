import pytest
import torch
from torch import nn

from tests import tiny
from transfer_cli.adaptation.plans import Only
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Geometric

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


def test_every_weight_trains_in_full_fine_tuning():
    run = classify(tiny.Recipe(total=10))
    before = tiny.weights_of(run.step.model)

    run.go()

    after = run.step.model.state_dict()
    assert not [name for name in after if torch.equal(after[name], before[name])]


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

    assert run.step.stages.current == run.step.stages.at(step) == stage


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

    assert stages.trainable() == head
    assert stages.ever_trained() == head + 2 * block + 2 * 16  # the final norm is block 2's


# Dropout of frozen parts.


def test_frozen_parts_run_without_dropout_from_the_first_step_on():
    run = classify(tiny.Recipe(plan=Only(("head.*",)), frozen_eval=True), dropout=0.5)

    run.step.stages.enter(0)

    assert in_training(run.step.model) == {"heads.class.drop"}


def test_a_new_stage_switches_dropout_on_where_it_trains_and_off_where_it_ends():
    run = classify(tiny.Recipe(plan=THREE, frozen_eval=True), dropout=0.5)
    stages, model = run.step.stages, run.step.model

    stages.enter(2)
    assert "backbone.blocks.2.drop" not in in_training(model)
    stages.enter(3)
    assert "backbone.blocks.2.drop" in in_training(model)
    stages.enter(11)
    assert "backbone.blocks.2.drop" not in in_training(model)
    assert "backbone.blocks.0.drop" in in_training(model)


@pytest.mark.parametrize("frozen_eval", [True, False])
def test_an_evaluation_between_two_steps_changes_no_mode(frozen_eval):
    run = classify(tiny.Recipe(plan=Only(("head.*",)), frozen_eval=frozen_eval), dropout=0.5)
    run.step.stages.enter(0)
    before = in_training(run.step.model)

    run.step.model.eval()
    run.step.stages.enter(1)

    assert in_training(run.step.model) == before


def test_without_frozen_eval_everything_keeps_its_dropout():
    run = classify(tiny.Recipe(plan=Only(("head.*",))), dropout=0.5)

    run.step.stages.enter(0)

    assert len(in_training(run.step.model)) == 5  # embeddings, three blocks, the head


def test_a_frozen_backbone_gives_the_same_states_in_training_as_in_evaluation():
    run = classify(tiny.Recipe(plan=Only(("head.*",)), frozen_eval=True), dropout=0.5)
    batch = tiny.all_of(tiny.Questions(examples=4))
    model = run.step.model
    run.step.stages.enter(0)

    training = model.backbone(batch["tokens"], batch["mask"])[-1]
    model.eval()

    assert torch.equal(training, model.backbone(batch["tokens"], batch["mask"])[-1])


def test_a_language_model_may_train_only_its_blocks():
    inherited = frozenset(name for name, _ in tiny.model(CausalLM()).named_parameters())
    run = tiny.run(
        CausalLM(), tiny.blocks(), tiny.Recipe(plan=Only(("block.*",)), inherited=inherited)
    )
    table = run.step.model.backbone.token_embedding.weight.detach().clone()

    run.go()

    assert torch.equal(run.step.model.backbone.token_embedding.weight, table)
    assert run.losses[-1] < run.losses[0]
