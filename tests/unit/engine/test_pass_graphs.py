"""Passes that are captured, against the same passes as they come."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests import recorded_graph, tiny
from transfer_cli.adaptation.edits import IA3, Adapters, GatedPrefix, LoRA, MixLayers, PALs
from transfer_cli.adaptation.penalties import L2SP, Start
from transfer_cli.adaptation.plans import GradualUnfreezing
from transfer_cli.batch import to_device, with_facts, with_padded_facts
from transfer_cli.engine import pass_graphs
from transfer_cli.engine.pass_graphs import PassGraphs
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.classification import Classification

CPU = torch.device("cpu")
EDITS = {
    "plain": lambda model, heads: None, "lora": LoRA(rank=2, dropout=0), "adapters": Adapters(4),
    "ia3": IA3(), "prefix": GatedPrefix(3), "pals": PALs(3), "mixed": MixLayers(),
}  # fmt: skip


@pytest.fixture
def graphs(monkeypatch):
    return recorded_graph.replace_graphs(monkeypatch)


def trained(*, captured, edit="plain", objective=None, **changes):
    """Return what steps report, the passes that were noted, and the weights."""
    objective = objective or Classification(dropout=0)
    model = tiny.model(objective, depth=2, residual="post", positions=16)
    EDITS[edit](model, {})
    tiny.lively(model, std=0.1)
    # Adam would divide rounding by rounding where a gradient is 0 in theory (key biases).
    recipe = tiny.Recipe(rate=0.1, total=24, clip=1.0, optimizer=torch.optim.SGD)
    recipe = replace(recipe, **changes)
    if recipe.penalty is not None:
        recipe.penalty.start(Start(model, frozenset(dict(model.named_parameters())), None))
    step = tiny.train_step(model, objective, recipe)
    if captured:
        step._graphs = PassGraphs(model, CPU)
    passes = []
    model.on_pass = passes.append
    run = tiny.Run(step, tiny.Questions(examples=60), recipe, batch=16, micro_batch=16).go()
    lengths = [made.lengths for made in passes]
    return run.losses, lengths, {n: p.detach().clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("edit", EDITS)
def test_captured_passes_train_the_same_weights(edit, graphs):
    expected, lengths, weights = trained(captured=False, edit=edit)
    assert not graphs

    measured, captured_lengths, captured_weights = trained(captured=True, edit=edit)

    assert 0 < len(graphs) < 6  # by length and rows; the second batch of each
    assert_close(measured, expected, rtol=1e-4, atol=1e-5)
    assert captured_lengths == lengths
    assert_close(captured_weights, weights, rtol=1e-3, atol=1e-4)


def test_a_captured_pass_is_given_its_batch_once(graphs, monkeypatch):
    copies = []
    monkeypatch.setattr(
        pass_graphs, "to_device", lambda batch, device: copies.append(1) or to_device(batch, device)
    )

    _, passes, _ = trained(captured=True)

    assert len(graphs) < len(copies) <= 2 * len(graphs) + 1 < len(passes)


@pytest.mark.parametrize(
    "changes",
    [{"plan": GradualUnfreezing(every="6 steps")}, {"penalty": L2SP(0.5)}, {"clip": None}],
    ids=["stages", "penalty", "unclipped"],
)
def test_captured_passes_are_parts_of_any_step(changes, graphs):
    expected, _, weights = trained(captured=False, **changes)
    measured, _, captured_weights = trained(captured=True, **changes)

    assert graphs
    assert_close(measured, expected, rtol=1e-4, atol=1e-5)
    assert_close(captured_weights, weights, rtol=1e-3, atol=1e-4)


def test_what_depends_on_the_step_would_be_seen(graphs):
    annealed = Classification(dropout=0, annealing="linear")
    expected, *_ = trained(captured=False, objective=annealed)
    measured, *_ = trained(captured=True, objective=annealed)

    assert not annealed.is_steady
    with pytest.raises(AssertionError):
        assert_close(measured, expected, rtol=1e-4, atol=1e-5)


def test_long_texts_and_several_passes_have_no_graphs(graphs, monkeypatch):
    data, objective = tiny.Questions(examples=48), Classification(dropout=0)
    recipe = tiny.Recipe(total=8)
    step = tiny.train_step(tiny.model(objective), objective, recipe)
    for micro_batch, most in ((8, 1e12), (16, 1e3)):
        monkeypatch.setattr(pass_graphs, "MOST_FLOPS", most)
        step._graphs = PassGraphs(step.model, CPU)
        tiny.Run(step, data, recipe, batch=16, micro_batch=micro_batch).go()

    assert not graphs


@pytest.mark.usefixtures("graphs")
def test_a_pass_that_cannot_be_captured_ends_the_run_in_one_line():
    model = tiny.model(Classification(dropout=0))
    graphs, view = PassGraphs(model, CPU), tiny.Questions(examples=4).batch(range(4))
    ready, calls = graphs.prepare(view), []

    def compute(batch, factors):
        calls.append(batch)
        if len(calls) == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        tokens = model.backbone.token_embedding.weight
        tokens.grad = torch.zeros_like(tokens)
        return {}

    graphs(0, ready, {}, compute)
    with pytest.raises(ConfigError, match=r"^loop\.cuda_graphs: .*not permitted"):
        graphs(0, ready, {}, compute)


def test_a_batch_is_padded_to_lengths_that_come_again():
    view = tiny.Questions(examples=9).batch(range(9))
    length, longest = view["tokens"].shape[1], int(view["mask"].sum(1).max())
    padded = with_padded_facts(view, 8, 64)

    assert padded["tokens"].shape == padded["mask"].shape == (9, 16)
    assert padded["tokens"][:, :length].equal(view["tokens"])
    assert padded["mask"].sum() == view["mask"].sum()
    assert padded["lengths"].equal(with_facts(view)["lengths"])
    assert with_padded_facts(view, 8, 10)["tokens"].shape[1] == max(10, longest)


def test_what_else_a_batch_holds_is_not_captured():
    model = tiny.model(Classification(dropout=0))
    graphs, view = PassGraphs(model, CPU), tiny.Questions(examples=4).batch(range(4))

    assert graphs.prepare(view) is not None
    assert graphs.prepare({**view, "prefix": torch.ones(4)}) is None
    assert graphs.prepare({**view, "states": torch.ones(4)}) is None
