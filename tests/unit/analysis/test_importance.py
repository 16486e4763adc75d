"""Legend: N examples, L blocks, H heads."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests import subjects, tiny
from transfer_cli.analysis.importance import Importance, head_gradients, importance_of
from transfer_cli.data.split import Split
from transfer_cli.model.probes import all_heads, gated
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.tasks.choice.task import MultipleChoice

DATA = tiny.Questions(examples=12)


def lively(objective, **changes):
    made = tiny.model(objective, **changes).eval()
    tiny.lively(made)
    return made


def gradients(model, objective, data, batch=8, **facts):
    split = Split("validation", data, **facts)
    return head_gradients(model, objective, split, batch=batch, precision=tiny.FP32)


def loss(model, objective, data):
    measures = tiny.measures(model, objective, data)
    return measures["loss"] * len(data)


KINDS = [{}, {"residual": "post"}, {"residual": "parallel"}, {"share": "all"}, tiny.MODERN]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_gradient_says_how_the_loss_changes_when_a_head_counts_less(kind):
    objective = Classification()
    model = lively(objective, **kind).double()
    found = gradients(model, objective, DATA).sum(0)

    for layer, head in ((0, 1), (2, 0)):
        factors = all_heads(model.backbone).double()
        factors[layer, head] = 1 - 1e-4
        with gated(model.backbone, factors):
            change = loss(model, objective, DATA)
        change -= loss(model, objective, DATA)

        # What heads say is in float32, so the difference is known to some digits alone.
        assert change / 1e-4 == pytest.approx(-found[layer, head], rel=0.05, abs=0.05)


def test_gradients_of_an_example_do_not_depend_on_its_batch():
    objective = Classification()
    model = lively(objective)

    together = gradients(model, objective, DATA)
    alone = gradients(model, objective, DATA, batch=1)

    np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-5)


def test_the_choices_of_an_example_are_counted_together():
    objective, data = MultipleChoice(), tiny.groups(6)
    model = lively(objective)

    together = gradients(model, objective, data)
    alone = gradients(model, objective, data, batch=1)

    assert together.shape == (6, 3, 2)
    np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-5)


class AlsoGenerates(MultipleChoice):
    """As dialogs do: their measures take a further pass, over the right candidates alone."""

    def metric_sums(self, model, batch, encoded):
        sums = super().metric_sums(model, batch, encoded)
        with torch.no_grad():
            model.backbone(batch["tokens"][:, 0], batch["mask"][:, 0])
        return sums


def test_what_is_generated_beside_is_no_part_of_gradients():
    objective, data = AlsoGenerates(), tiny.groups(6)
    model = lively(objective)

    gradient = gradients(model, objective, data)

    np.testing.assert_array_equal(gradient, gradients(model, tiny.bound(MultipleChoice()), data))


def test_windows_of_an_example_are_added_up():
    objective = Classification()
    model = lively(objective)
    rows = gradients(model, objective, DATA)

    gradient = gradients(model, objective, DATA, example_of=np.arange(12) // 2)

    np.testing.assert_allclose(gradient, rows[0::2] + rows[1::2])


class FirstLogit(Classification):
    """Not a loss, but linear in the logits."""

    def metric_sums(self, model, batch, encoded):
        return {"loss": self.outputs(model, batch, encoded)[:, 0].sum()}


def test_gradients_of_a_linear_model_add_up_to_what_all_heads_do():
    objective = FirstLogit(pooling="mean", dropout=0.0)
    model = lively(objective, depth=1)
    model.backbone.final_norm = nn.Identity()
    nn.init.zeros_(model.backbone.blocks[0].feed_forward.output.weight)
    batch = DATA.batch(np.arange(12))

    def logits():
        with torch.no_grad():
            return objective.outputs(model, batch, Encoding(model, batch))[:, 0]

    with gated(model.backbone, torch.zeros(1, 2)):
        without = logits()

    found = torch.from_numpy(gradients(model, objective, DATA).sum((1, 2))).float()
    assert_close(found, logits() - without, rtol=1e-4, atol=1e-4)


def test_importance_does_not_cancel_out_between_examples():
    gradient = np.array([[[3.0, 4.0], [0.0, 0.0]], [[-3.0, 4.0], [0.0, 0.0]]])

    np.testing.assert_allclose(importance_of(gradient), [[0.6, 0.8], [0, 0]])


def test_what_is_left_out_is_scored_as_evaluate_scores_it():
    objective = Classification()
    model = lively(objective)

    result = Importance(most=None, random_orders=2)(subjects.subject(model, objective, DATA))

    content = result.as_json()
    whole = tiny.measures(model, objective, DATA)
    assert content["values"]["error_rate"] == whole["error_rate"]
    with gated(model.backbone, all_heads(model.backbone), without_feed_forward={2}):
        without = tiny.measures(model, objective, DATA)
    entry = content["left_out"]["feed_forward"][2]
    assert entry == {
        "layer": 2,
        "measure": whole["error_rate"] - without["error_rate"],
        "loss": whole["loss"] - without["loss"],
    }
    parts = [len(content["left_out"][kind]) for kind in ("heads", "blocks", "attention")]
    assert parts == [6, 3, 3]
    assert np.linalg.norm(content["heads"], axis=1) == pytest.approx(np.ones(3))
    shares = [each["heads"] for each in content["pruning"]]
    assert shares == [0, 1, 2, 3, 4, 5, 6]
    first, last = content["pruning"][0], content["pruning"][-1]
    assert first["measure"] == first["random"] == whole["error_rate"]
    with gated(model.backbone, torch.zeros(3, 2)):
        assert last["loss"] == tiny.measures(model, objective, DATA)["loss"]
    assert last["loss"] == last["random_loss"]


@pytest.mark.parametrize("kind", [{}, {"share": "all"}, {"embedding_width": 4}], ids=str)
def test_a_unit_that_is_left_out_is_0_in_every_state(kind):
    objective = Classification()
    model = lively(objective, **kind)
    given = Importance(left_out=["embeddings", "units"], prune=False)
    whole = tiny.measures(model, objective, DATA)

    found = given(subjects.subject(model, objective, DATA))

    units = found.data["left_out"]["units"]
    width, depth = model.backbone.shape.width, model.backbone.shape.depth
    assert [(e["layer"], e["unit"]) for e in units] == [
        (layer, unit) for layer in range(depth) for unit in range(width)
    ]
    embeddings = found.data["left_out"]["embeddings"]
    assert len(embeddings) == kind.get("embedding_width", width)
    assert "embeddings" in found.tables[-1].rows[0]
    # The same by weights: nobody writes a dimension of the table, nobody reads the last state's.
    table, head = model.backbone.token_embedding.weight, model.heads["class"].linear.weight
    for weight, entry in ((table, embeddings[2]), (head, units[(depth - 1) * width + 2])):
        kept = weight[:, 2].clone()
        with torch.no_grad():
            weight[:, 2] = 0
        without = tiny.measures(model, objective, DATA)
        with torch.no_grad():
            weight[:, 2] = kept
        assert entry["loss"] == pytest.approx(whole["loss"] - without["loss"], abs=1e-6)
        assert abs(entry["loss"]) > 1e-4
    assert not any(block._forward_hooks for block in model.backbone.blocks)


def test_a_language_model_is_judged_by_perplexity():
    objective = CausalLM()
    given = subjects.subject(lively(objective), objective, tiny.blocks(120), task=None)

    content = Importance(left_out=["blocks"], prune=False)(given).as_json()

    assert content["measure"] == "token_perplexity"
    assert len(content["left_out"]["blocks"]) == 3
    assert content["pruning"] == []


def test_two_analyses_find_the_same_and_leave_the_model_as_it_was():
    objective = Classification()
    model = lively(objective)
    before = tiny.weights_of(model)
    needs = [parameter.requires_grad for parameter in model.parameters()]
    given = subjects.subject(model, objective, DATA)

    first, second = (Importance(left_out=[])(given) for _ in range(2))

    assert first == second
    assert tiny.same(before, tiny.weights_of(model))
    assert [parameter.requires_grad for parameter in model.parameters()] == needs
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.backbone.probe is None
