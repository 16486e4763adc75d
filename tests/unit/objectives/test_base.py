import torch

from tests import tiny
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.classification import Classification


def test_an_encoding_is_computed_once_and_only_when_asked():
    model = tiny.model(Classification())
    calls = []
    model.backbone.register_forward_hook(lambda *_: calls.append(1))
    encoding = Encoding(model, tiny.all_of(tiny.Questions(examples=4)))

    assert not calls
    states, top = encoding.states, encoding.top

    assert len(calls) == 1
    assert torch.equal(top, states[-1])
