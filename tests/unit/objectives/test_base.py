import torch

from tests import tiny
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.classification import Classification
from transfer_cli.seeds import ExampleNoise


def test_an_encoding_is_computed_once_and_only_when_asked():
    model = tiny.model(Classification())
    calls = []
    model.backbone.register_forward_hook(lambda *_: calls.append(1))
    encoding = Encoding(model, tiny.all_of(tiny.Questions(examples=4)))

    assert not calls
    states, top = encoding.states, encoding.top

    assert len(calls) == 1
    assert torch.equal(top, states[-1])


def test_an_objective_keeps_tokens_and_the_start_unless_it_says_otherwise():
    objective = tiny.bound(Classification())
    model = tiny.model(objective)
    before, raw = tiny.weights_of(model), tiny.all_of(tiny.Questions(examples=4))

    objective.on_train_start(model, {name for name, _ in model.named_parameters()})

    assert objective.keeps_tokens
    assert objective.prepare(raw, ExampleNoise(0))["tokens"] is raw["tokens"]
    assert tiny.same(tiny.weights_of(model), before)


def test_a_loss_is_the_main_one_unless_it_is_named():
    assert TaskInfo(tiny.VOCABULARY).name == "main"
