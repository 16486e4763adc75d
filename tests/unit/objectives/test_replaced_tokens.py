"""Legend: B batch, T positions, N positions with a loss, V vocabulary."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests import tiny
from tests.tiny import sums
from transfer_cli.batch import IGNORE, with_facts
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.borrowing import (
    BORROWED_TENSORS,
    borrowing_model,
    head_as_model,
    narrowed_shape,
)
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.language_model import CHUNK, draw_tokens, token_logits
from transfer_cli.objectives.replaced_tokens import ReplacedTokens, binary_entropy
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing import objectives as contract

MODES = ("detect", "all_tokens", "detect_selected", "replace")
EACH_MODE = pytest.mark.parametrize("mode", MODES)
HALF = {"width": 0.5}
"""Of two heads."""


def prepared(objective, step=0, examples=6, **changes):
    raw = tiny.all_of(tiny.Questions(causal=False, examples=examples))
    return with_facts(objective.prepare({**raw, **changes}, ExampleNoise(0, "train", step)))


def at_work(mode="detect", *, shape=None, **options):
    """Return the objective with a lively model, and a batch that is prepared."""
    objective = ReplacedTokens(mode, **{**HALF, "rate": 0.4, **options})
    model = tiny.model(objective, direction="bidirectional", **(shape or {})).eval()
    tiny.lively(model)
    return objective, model, prepared(objective)


def measured(objective, model, batch):
    with torch.no_grad():
        totals = objective.metric_sums(model, batch, Encoding(model, batch))
    return totals, objective.compute_metrics(totals, objective.counts(batch), TextStats())


def always_says(model, token):
    """Let the generator fill every gap with one token."""
    with torch.no_grad():
        model.heads["generator"].heads["lm"].bias[token] = 1e4


# --- what learns from what ------------------------------------------------------------------------


@EACH_MODE
def test_it_keeps_the_contract_of_objectives(mode):
    raw = tiny.all_of(tiny.Questions(causal=False, examples=6))
    case = contract.make_case(
        ReplacedTokens(mode, **HALF), TaskInfo(tiny.VOCABULARY, tiny.LABELS), raw
    )

    contract.preparing_repeats(case)
    contract.sums_add_up_over_halves(case)
    contract.padding_never_contributes(case)
    contract.declared_modules_learn(case)
    contract.declared_metrics_are_measured(case)


@EACH_MODE
def test_the_models_loss_reaches_the_shared_table_and_nothing_of_the_generator(mode):
    objective, model, batch = at_work(mode)

    sums(objective, model, batch)[objective.term].backward()

    inside = dict(model.heads["generator"].named_parameters())
    assert len(inside) > 10
    assert not [name for name, p in inside.items() if p.grad is not None and p.grad.any()]
    assert model.backbone.token_embedding.weight.grad.any()
    assert model.backbone.blocks[0].attention.packed.weight.grad.any()


def test_the_generators_loss_reaches_the_shared_tables_and_no_block_of_the_model():
    objective, model, batch = at_work(shape={"segments": 2, "residual": "post"})

    sums(objective, model, batch)["generator"].backward()

    moved = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert {name for name in moved if name.startswith("backbone.")} == {
        "backbone.token_embedding.weight", "backbone.position_embedding.weight",
        "backbone.segment_embedding.weight", "backbone.embedding_norm.weight",
        "backbone.embedding_norm.bias",
    }  # fmt: skip
    assert all(name.startswith(("backbone.", "heads.generator.")) for name in moved)


def test_detection_at_the_selected_is_detection_restricted_to_them():
    everywhere, model, batch = at_work("detect")
    there = tiny.bound(ReplacedTokens("detect_selected", rate=0.4, **HALF))
    restricted = {**batch, "compared": batch["target"] != IGNORE}
    del restricted["compared_rows"]

    losses = sums(there, model, prepared(there))

    assert torch.equal(losses["detect"], sums(everywhere, model, restricted)["detect"])
    assert not torch.equal(losses["detect"], sums(everywhere, model, batch)["detect"])


@pytest.mark.parametrize("mode", ["detect", "detect_selected"])
def test_a_draw_that_is_the_original_counts_as_original(mode):
    objective, model, _ = at_work(mode)
    batch = prepared(objective, tokens=torch.full((6, 13), 9))
    always_says(model, 9)

    totals, measures = measured(objective, model, batch)

    read_as_it_is = {**batch, "tokens": torch.full((6, 13), 9)}
    top = Encoding(model, read_as_it_is).top[batch["compared"]]
    softplus = F.softplus(model.heads["discriminator"](top)).sum()
    assert int((batch["target"] == 9).sum()) > 6
    assert int(totals["replaced"]) == 0
    assert float(totals["detect"]) == pytest.approx(float(softplus.detach()), rel=1e-5)
    assert (measures["replaced"], measures["auc"]) == (0, 0.5)


def test_each_token_that_is_drawn_and_is_not_the_original_counts_as_replaced():
    objective, model, batch = at_work("detect")
    always_says(model, 9)

    totals, _ = measured(objective, model, batch)

    others = (batch["target"] != IGNORE) & (batch["target"] != 9)
    assert int(totals["replaced"]) == int(others.sum())


def test_restoring_scores_the_original_tokens_of_the_text_with_draws():
    objective, model, batch = at_work("replace")
    always_says(model, 9)
    selected_BT = batch["target"] != IGNORE

    loss = sums(objective, model, batch)["restore"]

    top = Encoding(model, {**batch, "tokens": batch["tokens"].masked_fill(selected_BT, 9)}).top
    logits = token_logits(model, top[selected_BT])
    expected = F.cross_entropy(logits, batch["target"][selected_BT], reduction="sum")
    torch.testing.assert_close(loss, expected)


def test_a_model_that_copies_all_restores_all_but_what_is_replaced():
    objective, model, batch = at_work("all_tokens")
    always_says(model, 9)
    with torch.no_grad():
        model.heads["copy"].weight.zero_()
        model.heads["copy"].bias.fill_(20.0)

    loss = float(sums(objective, model, batch)["restore"].detach())

    replaced = int(((batch["target"] != IGNORE) & (batch["target"] != 9)).sum())
    # Of each of them, a share of e^-20 remains, and what the softmax says of it.
    assert 20 * replaced < loss < 40 * replaced


# --- which tokens, and what is drawn --------------------------------------------------------------


def test_all_selected_tokens_are_masked_but_for_those_that_are_kept():
    seen = {}
    for keep in (0.0, 0.5):
        objective = tiny.bound(ReplacedTokens(rate=0.4, keep=keep, **HALF))
        batch = prepared(objective, examples=400)
        selected = batch["target"] != IGNORE
        is_mask = batch["tokens"][selected] == tiny.VOCABULARY.mask
        assert torch.equal(batch["tokens"][selected][~is_mask], batch["target"][selected][~is_mask])
        seen[keep] = float(is_mask.float().mean())

    assert seen[0.0] == 1
    assert seen[0.5] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("vocabulary", [5, CHUNK - 1, CHUNK, 3 * CHUNK + 1])
def test_draws_invert_the_cumulative_sum(vocabulary):
    logits_V = 2 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(3))
    count = 20_000
    draws_N = (torch.arange(count) + 0.5) / count

    drawn_N = draw_tokens(logits_V.expand(count, -1), draws_N)

    shares_V = torch.bincount(drawn_N, minlength=vocabulary) / count
    assert torch.equal(drawn_N, drawn_N.sort().values)
    torch.testing.assert_close(shares_V, logits_V.softmax(-1), atol=2 / count, rtol=0)


def test_a_draw_at_either_end_is_a_token_that_there_is():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])

    ends = [int(draw_tokens(logits, torch.tensor([end]))) for end in (0.0, 1 - 2**-24)]

    assert ends == [1, 1]


def test_draws_are_a_function_of_the_step():
    objective, model, batch = at_work()

    totals, again = (measured(objective, model, batch)[0] for _ in range(2))
    later = prepared(objective, step=1)

    assert all(torch.equal(totals[name], again[name]) for name in totals)
    assert not torch.equal(later["draw"], batch["draw"])


def test_a_low_temperature_draws_the_likeliest_token():
    objective, model, batch = at_work(temperature=1e-6)
    generator = model.heads["generator"]
    with torch.no_grad():
        top = Encoding(generator, batch).top[batch["target"] != IGNORE]
        logits = generator.heads["lm"](top, model.backbone.token_embedding.weight)
    likeliest = logits.argmax(-1)

    totals, _ = measured(objective, model, batch)

    wrong = likeliest != batch["target"][batch["target"] != IGNORE]
    assert int(totals["replaced"]) == int(wrong.sum())


# --- measures -------------------------------------------------------------------------------------


def test_measures_are_what_they_are_called():
    objective, model, batch = at_work("detect")

    totals, measures = measured(objective, model, batch)

    real, selected = int(batch["mask"].sum()), int((batch["target"] != IGNORE).sum())
    detect, generator = float(totals["detect"]), float(totals["generator"])
    share = float(totals["replaced"]) / real
    assert measures["detect_loss"] == pytest.approx(detect / real)
    assert measures["detect_excess"] == pytest.approx(detect / real - binary_entropy(share))
    assert measures["generator_perplexity"] == pytest.approx(math.exp(generator / selected))
    assert measures["loss"] == pytest.approx((detect + generator) / real)
    assert int(totals["answers"].sum()) == real


# --- the generator --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "embeddings", "width", "parameters"),
    [
        ((256, 4, 12, 1024), 128, 0.25, (13_549_057, 4_620_026)),
        ((768, 12, 12, 3072), None, 0.3333, (109_483_009, 33_740_602)),
    ],
)
def test_models_are_as_large_as_the_published_ones(sizes, embeddings, width, parameters):
    names = ("width", "heads", "depth", "feedforward")
    shape = BackboneShape(
        **dict(zip(names, sizes, strict=True)), positions=512, residual="post", segments=2,
        direction="bidirectional", embedding_width=embeddings, output_transform=True,
    )  # fmt: skip
    objective = tiny.bound(ReplacedTokens(width=width))
    with without_weights():
        backbone = Backbone(shape, 30_522)
        model = TransferModel(backbone, objective.modules(backbone))

    tensors = dict(model.named_parameters())
    main = [tensor.numel() for name, tensor in tensors.items() if not name.startswith("heads.gen")]
    generator = [tensor.numel() for tensor in head_as_model("generator", tensors).values()]

    assert (sum(main), sum(generator)) == parameters


@pytest.mark.parametrize(
    "changes",
    [{}, {"residual": "post", "segments": 2}, tiny.MODERN, {"position_kind": "relative_bias"},
     {"embedding_width": 12, "output_transform": True}],
)  # fmt: skip
def test_a_generator_is_the_same_model_by_itself(changes):
    shape = tiny.backbone(direction="bidirectional", **changes).shape
    narrow = narrowed_shape(shape, 0.5, 0.67)
    owner = Backbone(shape, 48)
    whole = TransferModel(owner, {"generator": borrowing_model(narrow, owner)})
    tiny.lively(whole)
    head = borrowing_model(narrow, owner).heads["lm"]
    alone = TransferModel(Backbone(narrow, 48), {"lm": head}).eval()
    alone.load_state_dict(head_as_model("generator", whole.state_dict()))
    batch = tiny.all_of(tiny.Questions(causal=False, examples=4))

    inside = Encoding(whole.eval().heads["generator"], batch).top

    assert (narrow.depth, narrow.heads) == (2, 1)
    torch.testing.assert_close(inside, Encoding(alone, batch).top)
    assert not [n for n in whole.heads["generator"].state_dict() if n.startswith(BORROWED_TENSORS)]


def test_a_share_of_the_heads_that_is_none_is_refused_with_a_cure():
    with pytest.raises(
        ConfigError, match=r"^objective\.width=0\.25 of 2 heads are 0\.5; give .*0\.5"
    ):
        tiny.model(ReplacedTokens(), direction="bidirectional")


def test_a_model_without_its_generator_says_so():
    objective, model, batch = at_work(width=None)

    with pytest.raises(RunError, match=r"^objective: there is no generator"):
        sums(objective, model, batch)
    with pytest.raises(ConfigError, match=r"^objective\.width: null is no generator"):
        objective.check_start(model, frozenset())
