"""Memory in training and in scoring."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests import several, tiny
from transfer_cli.data.loader import StepDataLoader, Stream
from transfer_cli.data.sampler import LaneSampler
from transfer_cli.data.split import Split, TextContext
from transfer_cli.engine import distributed, evaluation
from transfer_cli.engine.carried_memory import CarriedMemory
from transfer_cli.engine.evaluation import EachExample, evaluate
from transfer_cli.objectives.causal_lm import CausalLM

XL = {"position_kind": "relative", "residual": "post", "recurrence": 20}
BATCH, LENGTH = 5, 8


def trained(steps, *, micro_batch=5, first=0, state=None):
    """Return a step after these steps of lanes of a made text, and what it then remembers."""
    data = tiny.blocks(230, LENGTH)
    model = tiny.model(CausalLM(), **XL)
    recipe = tiny.Recipe(rate=0.1, total=40, optimizer=torch.optim.SGD)
    step = tiny.train_step(model, tiny.bound(CausalLM()), recipe)
    sampler = LaneSampler(len(data), BATCH, 0)
    device = torch.device("cpu")
    shape, epoch = model.backbone.shape, sampler.steps_per_epoch
    step._lanes = CarriedMemory(shape, BATCH, micro_batch, epoch, device)
    if state is not None:
        model.load_state_dict(state["model"])
        step.load_state_dict(state["step"])
    loader = StepDataLoader(
        {"main": Stream(data, sampler)}, micro_batch, lambda: first,
        rank=distributed.rank(), world_size=distributed.world_size(),
    )  # fmt: skip
    for number in range(first, steps):
        step(loader.at(number), number)
    return {"model": tiny.weights_of(model), "step": step.state_dict()}


def test_what_is_remembered_does_not_depend_on_micro_batches():
    whole, parts = trained(4), trained(4, micro_batch=2)

    assert whole["step"]["lanes"]["states"].shape == (BATCH, 3, 20, 16)
    assert_close(parts["model"], whole["model"], rtol=0, atol=1e-5)
    assert_close(parts["step"]["lanes"], whole["step"]["lanes"], rtol=0, atol=1e-5)


def test_what_is_remembered_matters():
    state = trained(4)
    remembering = trained(5, first=4, state=state)

    state["step"]["lanes"] = {}

    assert not tiny.same(trained(5, first=4, state=state)["model"], remembering["model"])


@pytest.mark.parametrize("stop", [4, 6])
def test_a_resumed_step_remembers_what_it_did(stop):
    steps = 8  # an epoch has 6
    whole = trained(steps)

    resumed = trained(steps, first=stop, state=trained(stop))

    assert tiny.same(resumed["model"], whole["model"])
    assert torch.equal(resumed["step"]["lanes"]["states"], whole["step"]["lanes"]["states"])


def test_nothing_is_remembered_where_an_epoch_begins():
    assert trained(6)["step"]["lanes"] == {}


def test_the_memory_of_other_lanes_is_refused():
    state = trained(3)
    lanes = state["step"]["lanes"]
    lanes["states"] = lanes["states"][:3]

    with pytest.raises(ValueError, match=r"the memory is \(3, 3, 20, 16\), expected \(5, 3, 20"):
        trained(4, first=3, state=state)


@pytest.fixture
def short_lanes(monkeypatch):
    monkeypatch.setattr(evaluation, "LEAST_BLOCKS", 8)


def scored(by, tokens, stride, batch=4, **changes):
    """Return the loss of a text, and the sum of those of its blocks."""
    objective = CausalLM()
    model = tiny.model(objective, **XL, **changes)
    tiny.lively(model, std=0.5)
    data = tiny.blocks(600, stride)
    data = data if by == "memory" else replace(data, history=tokens)
    split, each = Split("test", data, context=TextContext(by, tokens, stride)), EachExample()
    found = evaluate(model, objective, split, batch=batch, precision=tiny.FP32, each=each).measures[
        "loss"
    ]
    outcomes = each.gathered()
    assert sorted(outcome.index for outcome in outcomes) == list(range(len(data)))
    assert sum(outcome.targets for outcome in outcomes) == 600
    assert sum(outcome.loss for outcome in outcomes) / 600 == pytest.approx(found, rel=1e-5)
    return found


def test_one_block_scores_by_memory_as_by_a_window(short_lanes):
    by_memory, by_windows = (scored(by, 20, 12, depth=1) for by in ("memory", "windows"))

    assert by_memory == pytest.approx(by_windows, rel=1e-6)


def test_several_blocks_see_farther_by_memory(short_lanes):
    assert scored("memory", 20, 12) != pytest.approx(scored("windows", 20, 12), rel=1e-5)


@pytest.mark.parametrize("batch", [3, 64])
def test_a_score_by_memory_does_not_depend_on_the_batch(short_lanes, batch):
    assert scored("memory", 20, 12, batch) == pytest.approx(scored("memory", 20, 12), rel=1e-6)


def of_processes():
    """Return what two processes have after some steps, and what they score."""
    evaluation.LEAST_BLOCKS = 8
    return {**trained(4, micro_batch=2), "loss": scored("memory", 20, 12)}


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_do_what_one_does(tmp_path, short_lanes):
    alone = of_processes()

    for found in several.on_processes(2, of_processes, tmp_path):
        assert_close(found["model"], alone["model"], rtol=0, atol=1e-5)
        assert_close(found["step"]["lanes"], alone["step"]["lanes"], rtol=0, atol=1e-5)
        assert found["loss"] == pytest.approx(alone["loss"], rel=1e-5)
