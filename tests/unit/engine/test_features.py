import numpy as np
import pytest
import torch
from torch import nn

from tests import tiny
from transfer_cli.adaptation.plans import Only
from transfer_cli.batch import micro_batches
from transfer_cli.engine.features.cached import CachedFeatures, memory_needed
from transfer_cli.engine.precision import Precision
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.classification import Classification
from transfer_cli.tasks.choice.task import MultipleChoice

POOLINGS = ("cls_first", "cls_last", "mean", "max", "concat")
ORDER = np.random.default_rng(0).permutation(60)


class Mixed(nn.Module):
    """A readout that reads all states, each with a weight of its own."""

    def forward(self, states):
        weights = torch.linspace(0.2, 1.0, 4)
        return sum(weight * state for weight, state in zip(weights, states, strict=True))


def trained(pooling="mean", readout=None, **changes):
    model = tiny.lively(tiny.model(Classification(pooling), dropout=0.3, **changes))
    if readout is not None:
        model.readout = readout
    return model.eval()


def cached(data, model, layers=(-1,), **settings):
    return CachedFeatures(data, model, tiny.FP32, batch=7, layers=layers, **settings)


def logits(model, data):
    """Return the logits of the examples in `ORDER`, batch by batch."""
    head = model.heads["class"]
    encoded = (Encoding(model, data.batch(indices)) for indices in micro_batches(ORDER, 8))
    return torch.cat([head(batch.pooled(head.pooling)).detach() for batch in encoded])


def calls_of(model):
    """Return a list that grows by the number of sequences whenever the backbone is called."""
    calls = []
    model.backbone.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
    return calls


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_cached_features_give_the_logits_of_the_whole_model(pooling, direction):
    data = tiny.Questions(causal=direction == "causal", examples=60)
    model = trained(pooling, direction=direction)
    expected = logits(model, data)

    features = cached(data, model.train())  # which are those of evaluation mode

    assert torch.allclose(logits(model, features), expected, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_one_pooled_vector_a_text_gives_the_same_logits(pooling):
    data = tiny.Questions(examples=60)
    model = trained(pooling)
    expected, calls = logits(model, data), calls_of(model)

    features = cached(data, model, pooling=pooling)
    cached_logits = logits(model, features)

    assert torch.allclose(cached_logits, expected, atol=1e-5)
    assert sum(calls) == 60
    batch = features.batch(ORDER[:9])
    assert batch.pop("pooled").shape == (9, 48 if pooling == "concat" else 16)
    assert tiny.same(batch, data.batch(ORDER[:9]))


@pytest.mark.parametrize("residual", ["pre", "post", "tutorial"])
def test_a_readout_of_all_layers_finds_them_all(residual):
    data = tiny.Questions(examples=60)
    model = trained(readout=Mixed(), residual=residual)

    cached_logits = logits(model, cached(data, model, layers=None))

    assert torch.allclose(cached_logits, logits(model, data), atol=1e-5)


def test_the_backbone_sees_every_example_once_and_never_again():
    data = tiny.Questions(examples=60)
    model = trained()
    calls = calls_of(model)

    features = cached(data, model)
    assert (sum(calls), max(calls)) == (60, 7)

    logits(model, features)
    logits(model, features)
    assert sum(calls) == 60


def test_a_batch_is_the_data_own_with_states_that_are_zero_at_padding():
    data = tiny.Questions(examples=60)
    features = cached(data, trained(), layers=None)

    batch = features.batch(ORDER[:9])

    states = batch.pop("states")
    assert tiny.same(batch, data.batch(ORDER[:9]))
    assert states.shape == (*batch["mask"].shape, 4, 16)
    assert states.dtype == torch.float32
    assert not states[~batch["mask"]].any()
    assert states[batch["mask"]].any(-1).all()
    assert len(features) == 60


def test_nothing_flows_back_and_what_is_kept_does_not_change():
    data = tiny.Questions(examples=60)
    model = trained()
    features = cached(data, model)
    before = features.batch(ORDER)["states"]

    view = features.batch(ORDER)
    model.heads["class"](Encoding(model, view).pooled("mean")).sum().backward()

    assert model.heads["class"].linear.weight.grad is not None
    assert all(p.grad is None for p in model.backbone.parameters())
    assert torch.equal(features.batch(ORDER)["states"], before)


def test_a_frozen_run_on_features_goes_as_without_them():
    data = tiny.Questions(examples=60)
    recipe = tiny.Recipe(plan=Only(("head.*",)), frozen_eval=True)
    plain, fast = (tiny.run(Classification("mean", dropout=0.0), data, recipe) for _ in range(2))
    fast.data = cached(data, fast.step.model)
    calls = calls_of(fast.step.model)

    plain.go()
    fast.go()

    assert fast.losses == pytest.approx(plain.losses, abs=1e-5)
    assert calls == []


def test_lower_precision_is_kept_in_float32():
    data = tiny.Questions(examples=60)
    model = trained()
    half = Precision("bf16", torch.device("cpu"))

    features = CachedFeatures(data, model, half, batch=8, layers=None)

    assert features.batch(ORDER)["states"].dtype == torch.float32
    assert torch.allclose(logits(model, features), logits(model, data), atol=0.2)


@pytest.mark.parametrize(("layers", "kept"), [((-1,), 1), (None, 4), ((0, -1), 2)])
def test_the_memory_is_that_of_the_real_tokens(layers, kept):
    data = tiny.Questions(examples=60)

    needed = memory_needed(data, tiny.shape(), layers)

    assert needed == 4 * sum(map(len, data.rows)) * kept * 16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_features_of_a_gpu_can_stay_there():
    device = torch.device("cuda")
    data = tiny.Questions(examples=60)
    model = trained().to(device)
    fast = CachedFeatures(
        data, model, Precision("fp32", device), batch=8, layers=(-1,), device=device
    )

    states = fast.batch(ORDER)["states"]

    view = {key: value.to(device) for key, value in data.batch(ORDER).items()}
    expected = Encoding(model, view).states[-1]
    assert states.device.type == "cuda"
    assert torch.allclose(states[view["mask"]][:, 0], expected[view["mask"]], atol=1e-5)


@pytest.mark.parametrize("kept", [None, "cls_last", "concat"])
def test_examples_of_several_texts_have_features_as_well(kept):
    pooling = kept or "mean"
    objective, data = MultipleChoice(pooling), tiny.groups(20)
    model = tiny.lively(tiny.model(objective).eval())
    features = cached(data, model, pooling=kept)
    calls = calls_of(model)

    for indices in micro_batches(np.random.default_rng(0).permutation(20), 6):
        outputs, expected = (
            objective.outputs(model, view, Encoding(model, view))
            for view in (features.batch(indices), data.batch(indices))
        )
        torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)

    assert len(calls) == 4  # of what is expected alone
    mask = data.batch(np.arange(20))["mask"]
    rows = int((mask.any(-1) if kept else mask).sum())
    width = 16 * (3 if kept == "concat" else 1)
    assert memory_needed(data, model.backbone.shape, (-1,), kept) == rows * width * 4
