"""Legend: B sequences, T positions, E size of an embedding."""

import pytest
import torch

from tests import tiny
from transfer_cli.model.new_rows import AddedRows
from transfer_cli.model.replaced_embeddings import replaced_embeddings

BATCH = tiny.Questions(examples=4).batch(range(4))
KINDS = [
    {}, {"residual": "post", "segments": 2}, {"position_kind": "sinusoidal"}, tiny.MODERN,
    {"embedding_width": 6, "output_transform": True, "direction": "bidirectional"},
]  # fmt: skip


def lively(**changes):
    made = tiny.backbone(**changes).eval()
    made.new_rows = AddedRows([5, 6], made.shape.embedding_size)
    tiny.lively(made)
    return made


def top(backbone):
    return backbone(BATCH["tokens"], BATCH["mask"])[-1]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_pass_with_its_own_embeddings_is_the_same_bit_for_bit(kind):
    backbone = lively(**kind)
    own = backbone.embeddings_of(BATCH["tokens"])

    with replaced_embeddings(backbone, own):
        found = top(backbone)

    assert torch.equal(found, top(backbone))


def test_embeddings_of_other_tokens_say_what_these_tokens_say():
    backbone, other = lively(), BATCH["tokens"].flip(0)
    given = backbone.embeddings_of(other).detach().requires_grad_()

    with replaced_embeddings(backbone, given):
        found = top(backbone)

    assert torch.equal(found, backbone(other, BATCH["mask"])[-1])
    (gradient,) = torch.autograd.grad(found.sum(), given)
    assert gradient.abs().sum() > 0


def test_a_model_is_left_as_it_was_also_after_an_error():
    backbone = lively()
    before = top(backbone)

    with (
        pytest.raises(ValueError, match="those given in their place"),
        replaced_embeddings(backbone, torch.zeros(1, 2, 16)),
    ):
        top(backbone)

    assert torch.equal(top(backbone), before)
