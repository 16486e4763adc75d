"""Heads that are gone, beside heads that give nothing."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.errors import ConfigError
from transfer_cli.model.probes import head_ones, set_gates
from transfer_cli.model.pruned_heads import prune_heads

TOKENS = torch.randint(5, 48, (3, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(7) < torch.tensor([[7], [4], [1]])
GONE = {0: {1}, 2: {0, 1}}


@pytest.mark.parametrize(
    "kind",
    [{}, {"direction": "bidirectional", "residual": "post"}, {"position_kind": "rotary"},
     {"biases": "none", "query_key_norm": True}, {"attention": "window", "window": 4}],
    ids=str,
)  # fmt: skip
def test_states_are_those_with_heads_that_give_nothing(kind):
    backbone = tiny.lively(tiny.backbone(**kind).eval())
    factors = head_ones(backbone)
    for number, heads in GONE.items():
        factors[number, list(heads)] = 0
    before = sum(parameter.numel() for parameter in backbone.parameters())

    with torch.no_grad():
        with set_gates(backbone, factors):
            expected = backbone(TOKENS, MASK)[-1]
        prune_heads(backbone, GONE)
        states = backbone(TOKENS, MASK)[-1]

    assert_close(states[MASK], expected[MASK])
    assert sum(parameter.numel() for parameter in backbone.parameters()) < before


@pytest.mark.parametrize(
    "kind",
    [{"share": "all"}, {"key_value_heads": 1}, {"position_kind": "relative_bias"},
     {"position_kind": "bias"}],
    ids=str,
)  # fmt: skip
def test_heads_that_others_need_are_refused(kind):
    with pytest.raises(ConfigError, match=r"^prune: "):
        prune_heads(tiny.backbone(**kind), GONE)
