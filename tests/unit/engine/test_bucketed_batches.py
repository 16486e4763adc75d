import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import tiny
from transfer_cli.data.sampler import StepSampler
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.classification import Classification


def losses(model, data, order):
    """Return the loss of each example in an epoch of batches, by its number."""
    found = torch.full((len(data),), torch.nan)
    for step in range(order.steps_per_epoch):
        batch = data.batch(order.indices(step))
        encoded = Encoding(model, batch)
        head = model.heads["class"]
        logits = head(encoded.pooled(head.pooling))
        found[batch["index"]] = F.cross_entropy(logits, batch["label"], reduction="none")
    return found.detach()


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("pooling", ["cls_first", "cls_last", "mean", "max"])
def test_an_example_has_the_same_loss_in_a_batch_of_like_length_and_in_any_other(
    pooling, direction
):
    data = tiny.Questions(causal=direction == "causal", examples=70)
    lengths = np.array([len(row) for row in data.rows])
    model = tiny.model(Classification(pooling), direction=direction).eval()
    tiny.lively(model)

    bucketed = losses(model, data, StepSampler(70, 8, 0, lengths))

    torch.testing.assert_close(
        bucketed, losses(model, data, StepSampler(70, 8, 0)), rtol=1e-6, atol=1e-6
    )


def test_an_example_has_the_same_loss_with_its_states_kept_and_computed_anew():
    data = tiny.Questions(examples=70)
    lengths = np.array([len(row) for row in data.rows])
    model = tiny.model(Classification("mean")).eval()
    tiny.lively(model)
    order = StepSampler(70, 8, 0, lengths)

    kept = losses(model, CachedFeatures(data, model, tiny.FP32, batch=9, layers=(-1,)), order)

    torch.testing.assert_close(kept, losses(model, data, order), rtol=1e-6, atol=1e-6)
