"""The code that an export brings along computes what the model does, adapters included."""

import importlib

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import Adapters, ParallelAdapters
from transfer_cli.interop import own_code
from transfer_cli.model.added import lasting_parameters
from transfer_cli.model.block import RESIDUALS

pytest.importorskip("transformers")

TOKENS = torch.arange(5, 25).view(2, 10)
MASK = torch.arange(10) < torch.tensor([[10], [6]])


@pytest.mark.parametrize("residual", RESIDUALS)
def test_adapters_behind_and_beside_layers_are_those_of_the_code(residual):
    model = tiny.model(residual=residual).eval()
    for edit in (Adapters(4), ParallelAdapters(4, scale=3.0)):
        edit(model, {})
    tiny.lively(model)
    kind = own_code.kind_of(None, model.backbone.shape, ())
    config = own_code.config(model.backbone.shape, lasting_parameters(model), kind)
    code = importlib.import_module("transfer_cli.interop.modeling_transfer")
    theirs = code.TransferModel(code.TransferConfig(vocab_size=tiny.VOCABULARY.size, **config))
    ours = model.state_dict()

    theirs.load_state_dict({rule.theirs[0]: ours[rule.ours] for rule in own_code.rules(ours, kind)})

    found = theirs.eval()(TOKENS, MASK.long()).last_hidden_state
    assert_close(found[MASK], model.backbone(TOKENS, MASK)[-1][MASK])
