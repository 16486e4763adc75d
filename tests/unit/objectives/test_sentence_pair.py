"""Whether two texts belong together, beside a masked language model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.base import Encoding, Loss, TaskInfo
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.sentence_pair import SentencePair
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing.objectives import check_objective

NOISE = ExampleNoise(0, "train", 3)


def info():
    main = tiny.bound(MaskedLM(0.4))
    return TaskInfo(tiny.VOCABULARY, name="pair", main=main, pairs="nsp")


def pairs(examples=6):
    """Return a batch of texts with random answers."""
    batch = tiny.Questions(causal=False).batch(np.arange(examples))
    del batch["label"]
    return {**batch, "pair": torch.arange(examples) % 2}


def at_work(**changes):
    """Return both objectives, and a lively model with the heads of both."""
    given = info()
    objective = SentencePair()
    objective.setup(given)
    trunk = tiny.backbone(direction="bidirectional", **changes)
    model = tiny.TransferModel(trunk, given.main.modules(trunk) | objective.modules(trunk))
    tiny.lively(model)
    return given.main, objective, model


def test_sentence_pair_keeps_the_contract_of_objectives():
    check_objective(SentencePair(), info(), pairs())


@pytest.mark.parametrize("micro_batch", [6, 2])
def test_both_losses_read_one_pass_over_the_text_with_its_hidden_tokens(micro_batch):
    main, objective, model = at_work(segments=2)
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    step = tiny.train_step(model, [Loss("main", main), Loss("pair", objective)], tiny.Recipe())
    whole = pairs()
    micros = [
        {"main": {key: value[at : at + micro_batch] for key, value in whole.items()}}
        for at in range(0, 6, micro_batch)
    ]

    report = step(micros, 0)

    assert len(seen) == 6 // micro_batch
    hidden = main.prepare(whole, ExampleNoise(0, "train", 0))["tokens"]
    real = torch.cat([tokens[tokens != tiny.VOCABULARY.pad] for tokens in map(torch.ravel, seen)])
    assert torch.equal(real, hidden[whole["mask"]])
    assert (hidden == tiny.VOCABULARY.mask).any()
    assert report.losses.keys() == {"main/loss", "pair/loss"}


def test_a_loss_of_another_stream_reads_its_own_batch():
    main, objective, model = at_work()
    losses = [Loss("main", main), Loss("pair", objective, stream="other")]
    step = tiny.train_step(model, losses, tiny.Recipe())
    batch = pairs(4)

    views = step._prepare({"main": pairs(6), "other": batch}, 0)

    assert len(views["pair"]["tokens"]) == 4
    expected = main.prepare(batch, ExampleNoise(0, "train", 0))["tokens"]
    assert torch.equal(views["pair"]["tokens"], expected)


def test_an_evaluation_reads_what_the_main_loss_reads():
    main, objective, _ = at_work()
    batch = pairs()

    prepared = objective.prepare(batch, NOISE)

    assert torch.equal(prepared["tokens"], main.prepare(batch, NOISE)["tokens"])
    assert "target" not in prepared


def test_measures_are_the_share_of_right_answers_and_the_mean_loss():
    _, objective, model = at_work()
    batch = pairs()
    with torch.no_grad():
        logits = objective.outputs(model, batch, Encoding(model, batch))
        sums = objective.metric_sums(model, batch, Encoding(model, batch))

    found = objective.compute_metrics(sums, objective.counts(batch), None)

    right = (logits.argmax(1) == batch["pair"]).float().mean()
    loss = torch.nn.functional.cross_entropy(logits, batch["pair"])
    assert found == {"accuracy": pytest.approx(float(right)), "loss": pytest.approx(float(loss))}


def test_the_state_of_the_first_token_passes_a_pooler_with_tanh_and_a_linear_layer():
    _, objective, model = at_work()
    batch = pairs()
    encoded = Encoding(model, batch)
    pooler, linear = model.heads["pooler"].linear, model.heads["pair"].linear

    expected = linear(torch.tanh(pooler(encoded.top[:, 0])))

    torch.testing.assert_close(objective.outputs(model, batch, encoded), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"main": None}, "objective: whether texts belong together is a further loss"),
        ({"pairs": None}, r"losses\.pair: it needs pairs of running text.* give data\.pairs=nsp"),
    ],
)
def test_it_is_refused_where_there_is_nothing_to_learn_it_beside_or_from(changes, message):
    with pytest.raises(ConfigError, match=message):
        SentencePair().setup(replace(info(), **changes))
