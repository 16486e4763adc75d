import numpy as np
import torch

from transfer_cli.model.unigram import unigram_model


def test_the_unigram_model_says_the_add_one_shares_everywhere():
    chunks = [np.array([0, 1, 1], np.uint16), np.array([3, 1], np.uint16)]
    model = unigram_model(chunks, vocabulary=5)
    tokens = torch.tensor([[4, 2, 0]])

    top = model.readout(model.backbone(tokens, tokens >= 0))
    shares = model.heads["lm"](top, model.backbone.token_embedding.weight).softmax(-1)

    expected = torch.tensor([2, 4, 1, 2, 1]) / 10
    assert torch.allclose(shares, expected.expand(1, 3, 5))
