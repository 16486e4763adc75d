"""Layers that are alike, weights that moved, vectors, units and spans; what a finding is.

Legend: L layers, N things, D width, F units, P properties, K contexts of a unit or layers, W words,
R spans of a target, S words of a span, C labels, T positions.
"""

import copy
import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edit import apply_edit
from transfer_cli.adaptation.edits import Adapters, LoRA
from transfer_cli.analysis import cka as module
from transfer_cli.analysis.cka import cka
from transfer_cli.analysis.edges import (
    EdgeFile,
    EdgeTarget,
    Spans,
    _labels,
    expected_layer,
    micro_f1,
    read_edges,
    train_span_probe,
)
from transfer_cli.analysis.embeddings import principal_components
from transfer_cli.analysis.neurons import TokenProperties, UnitSums, contexts_of
from transfer_cli.analysis.pictures import draw_charts
from transfer_cli.analysis.similarity import ALL, moved_weights
from transfer_cli.batch import with_facts
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import DataError
from transfer_cli.model.added import merge
from transfer_cli.model.probes import watch_units
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.reports.finding import Finding, FindingTable, Lines, Matrix, Points


def noise(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def alike(first_ND, second_ND, *, debiased=False):
    return cka(first_ND[None], second_ND[None], debiased=debiased).item()


def by_definition(first_ND, second_ND):
    one, two = (vectors.double() - vectors.double().mean(0) for vectors in (first_ND, second_ND))
    both = (two.T @ one).norm() ** 2
    return float(both / ((one.T @ one).norm() * (two.T @ two).norm()))


@pytest.mark.parametrize("most", [1, 1000, 2**23])
def test_it_is_the_definition_however_many_rows_are_held(most, monkeypatch):
    monkeypatch.setattr(module, "_MOST_ELEMENTS", most)
    first_LND, second_MND = noise(2, 30, 5), noise(3, 30, 7, seed=1)
    second_MND[0, :, :5] += first_LND[1]

    matrix = cka(first_LND, second_MND, debiased=False)

    wanted = [[by_definition(one, two) for two in second_MND] for one in first_LND]
    assert np.allclose(matrix, wanted, atol=1e-12)


def test_the_debiased_estimate_is_that_of_kernels_without_diagonals():
    first_ND, second_ND = noise(12, 20), noise(12, 9, seed=1)
    count = 12

    def hsic(one_ND, two_ND):
        kernels = [vectors.double() @ vectors.double().T for vectors in (one_ND, two_ND)]
        one, two = (kernel - torch.diag(kernel.diag()) for kernel in kernels)
        sums = one.sum() * two.sum() / ((count - 1) * (count - 2))
        return (one @ two).trace() + sums - 2 / (count - 2) * (one @ two).sum()

    own, other = hsic(first_ND, first_ND), hsic(second_ND, second_ND)
    wanted = hsic(first_ND, second_ND) / (own * other).sqrt()
    assert alike(first_ND, second_ND, debiased=True) == pytest.approx(float(wanted), abs=1e-6)


@pytest.mark.parametrize("debiased", [False, True])
def test_of_vectors_that_do_not_vary_there_is_no_number(debiased):
    assert np.isnan(alike(torch.ones(8, 3), noise(8, 3), debiased=debiased))


def pair(**changes):
    start = tiny.model(CausalLM(), **changes)
    tiny.lively(start)
    return start, copy.deepcopy(start)


def moves(model, start):
    return {(weight.group, weight.kind): weight for weight in moved_weights(model, start)}


@torch.no_grad()
def test_a_group_moves_by_the_norm_of_its_change():
    start, model = pair()
    for name, weight in model.named_parameters():
        if ".blocks.1.attention." in name:
            weight *= 1.1

    moved = moves(model, start)
    assert moved["block.1", "attention"].relative == pytest.approx(0.1, rel=1e-5)
    assert 0 < moved["block.1", ALL].relative < 0.1
    assert 0 < moved[ALL, "attention"].relative < moved["block.1", "attention"].relative
    assert moved["block.1", "feed_forward"].relative == 0
    assert moved["block.0", ALL].relative == moved["embeddings", ALL].relative == 0


def test_groups_and_kinds_hold_every_parameter_once():
    start, model = pair(**tiny.MODERN)

    moved = moves(model, start)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert moved[ALL, ALL].parameters == moved[ALL, ALL].compared == total
    for place in (0, 1):
        parts = [move for key, move in moved.items() if key[1 - place] == ALL != key[place]]
        assert sum(part.parameters for part in parts) == total
    assert {kind for _, kind in moved} == {
        ALL, "embeddings", "attention", "feed_forward", "norms", "head",
    }  # fmt: skip


def test_low_rank_updates_are_in_what_they_change_and_stand_apart():
    start, model = pair()
    apply_edit(LoRA(rank=2, targets=["query"]), "lora", model, {})
    tiny.lively(model)
    merged, before = copy.deepcopy(model), tiny.weights_of(model)
    merge(merged)

    moved, wanted = moves(model, start), moves(merged, start)
    assert tiny.same(before, tiny.weights_of(model))
    assert moved["block.0", "attention"].relative == wanted["block.0", "attention"].relative > 0
    assert moved["added.0", "added"].relative is None
    assert moved["added.0", "added"].parameters > 0
    assert moved[ALL, ALL].parameters == wanted[ALL, ALL].parameters


def test_what_cannot_be_compared_is_counted_and_not_measured():
    start, _ = pair()
    other, _ = pair(feedforward=48)
    apply_edit(Adapters(2), "bottleneck", other, {})

    moved = moves(other, start)
    assert moved["block.0", "attention"].relative == 0
    assert moved["block.0", "feed_forward"].compared < moved["block.0", "feed_forward"].parameters
    assert moved["added.0", "added"].compared == 0


def test_components_lie_where_vectors_vary_and_point_to_the_positive():
    places = np.random.default_rng(0).normal(size=(50, 2)) * [5.0, 1.0]
    places -= places.mean(0)
    places = np.linalg.svd(places, full_matrices=False)[0] * [5.0, 1.0]  # at right angles
    directions = np.array([[0.6, 0, -0.8], [0.8, 0, 0.6]])
    vectors_ND = places @ directions + 7

    coordinates, shares = principal_components(vectors_ND, 2)

    # The largest entry of the first direction is negative, so it is turned round.
    assert np.allclose(coordinates, places * [-1, 1], atol=1e-9)
    assert shares == pytest.approx([25 / 26, 1 / 26])


def test_of_vectors_that_are_all_the_same_nothing_varies():
    places, shares = principal_components(np.ones((4, 3)), 2)

    assert not places.any()
    assert shares == [0, 0]


def summed(units_NF, properties_NP, contexts=4):
    """Return the sums of tokens that came in three parts; the context of a token is its number."""
    units = UnitSums(contexts)
    numbers_NW = torch.arange(len(units_NF))[:, None].int()
    parts = zip(*(tensor.tensor_split((5, 9)) for tensor in (units_NF, properties_NP, numbers_NW)),
                strict=True)  # fmt: skip
    for units_RF, properties_RP, numbers_RW in parts:
        units.add(units_RF, properties_RP, numbers_RW)
    return units


def units_and_properties():
    generator = torch.Generator().manual_seed(0)
    units_NF = torch.randn(20, 3, generator=generator)
    properties_NP = torch.randint(0, 2, (20, 2), generator=generator).double()
    properties_NP[:, 1] = torch.arange(20)
    return units_NF, properties_NP


def test_sums_of_parts_are_those_of_the_whole():
    units_NF, properties_NP = units_and_properties()

    units = summed(units_NF, properties_NP)

    assert_close(units.means(), units_NF.double().mean(0))
    assert_close(units.positive_shares(), (units_NF > 0).float().mean(0))
    wanted = np.corrcoef(properties_NP.T.numpy(), units_NF.T.numpy())[:2, 2:]
    assert_close(units.correlations().numpy(), wanted)


@pytest.mark.parametrize("contexts", [4, 50])
def test_the_top_contexts_are_where_a_unit_is_highest(contexts):
    units_NF, properties_NP = units_and_properties()

    units = summed(units_NF, properties_NP, contexts)

    top_KF, place_KF = units_NF.topk(min(contexts, len(units_NF)), dim=0)
    assert_close(units.top_KF, top_KF)
    assert torch.equal(units.context_KFW[..., 0], place_KF.int())


def test_what_does_not_vary_has_no_correlation():
    units_NF, properties_NP = units_and_properties()
    units_NF[:, 1], properties_NP[:, 0] = 0.1, 1

    found_PF = summed(units_NF, properties_NP).correlations()

    assert found_PF.isnan().tolist() == [[True] * 3, [False, True, False]]


@pytest.mark.parametrize("changes", [{}, tiny.MODERN, {"share": "all", "residual": "post"}])
@pytest.mark.parametrize("padded", [False, True])
def test_units_are_what_the_second_layer_reads_at_each_place(changes, padded):
    model = tiny.model(CausalLM(), **changes).eval()
    tiny.lively(model)
    lengths = [7, 1, 2] if padded else [5, 5]
    batch = with_facts(tiny.rows_to_batch([list(range(5, 5 + length)) for length in lengths]))
    assert ("real_rows" in batch) == padded
    units, outputs, feed_forward = {}, [], model.backbone.blocks[0].feed_forward
    hook = feed_forward.register_forward_hook(lambda module, given, out: outputs.append(out))

    with hook, watch_units(model.backbone, units.__setitem__):
        _ = Encoding(model, batch).states

    assert list(units) == [0, 1, 2]
    place = 2 if changes.get("share") == "all" else 0  # the latest one
    layer = feed_forward.output
    assert units[place].flatten(0, 1).shape == (sum(lengths), layer.in_features)
    assert_close(layer(units[place]), outputs[-1])
    assert not layer._forward_pre_hooks


TEXTS = ["The river , 7 rivers", "Rivers !"]


def test_properties_are_those_of_each_token_of_the_texts():
    tokenizer = WordPiece(200).make(lambda: iter(TEXTS))
    rows = [[tokenizer.cls, *row, tokenizer.sep] for row in tokenizer.encode_batch(TEXTS)]
    batch = {**tiny.rows_to_batch(rows), "label": torch.tensor([1, 0])}
    properties = TokenProperties(tokenizer, ["a", "b"])

    is_text_N = properties.is_text(batch)
    properties_NP = properties.property_values(batch)[is_text_N]

    pieces = tokenizer.pieces([token for row in rows for token in row[1:-1]])
    columns = dict(zip(properties.names, properties_NP.T.tolist(), strict=True))
    assert columns["position"] == [at for row in rows for at in range(1, len(row) - 1)]
    assert columns["capital"] == [piece.strip("#")[0].isupper() for piece in pieces]
    assert columns["starts a word"] == [not piece.startswith("##") for piece in pieces]
    assert [piece for piece, yes in zip(pieces, columns["punctuation"], strict=True) if yes] == [
        ",", "!",
    ]  # fmt: skip
    assert [piece for piece, yes in zip(pieces, columns["number"], strict=True) if yes] == ["7"]
    first = len(rows[0]) - 2
    assert columns["label b"] == [1] * first + [0] * (len(rows[1]) - 2)


def test_a_context_ends_where_its_row_does():
    batch = tiny.rows_to_batch([[5, 6, 7], [8]])

    assert contexts_of(batch, 1).tolist() == [[-1, 5, 6], [5, 6, 7], [6, 7, -1], [-1, 8, -1]]


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def target(**changes):
    return {"span1": [1, 2], "label": "A", **changes}


def test_targets_are_read_as_jiant_writes_them(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"text": "Who wrote  it ?", "targets": [target(span2=[0, 1])], "info": {"id": 1}},
        {"text": "none", "targets": []},
        {"text": "a b", "targets": [target(span2=[0, 2], label=["A", "B"])]},
    )

    file = read_edges(path)

    assert file.sentences == [["Who", "wrote", "it", "?"], ["none"], ["a", "b"]]
    assert file.targets == [
        EdgeTarget(((1, 2), (0, 1)), ("A",)),
        EdgeTarget(((6, 7), (5, 7)), ("A", "B")),
    ]


def test_all_targets_have_as_many_spans(tmp_path):
    targets = [target(), target(span2=[0, 1]), target()]

    with pytest.raises(DataError, match=r"line 1: some targets have a span2 and some none"):
        read_edges(write(tmp_path / "a.jsonl", {"text": "a b", "targets": targets}))


def test_spans_of_which_none_has_a_label_cannot_be_learnt():
    files = {"train": EdgeFile([["a", "b"]], [EdgeTarget(((0, 1),), ())])}

    with pytest.raises(DataError, match=r"^a\.jsonl: no target has a label"):
        _labels(files, {"train": "a.jsonl"})


def test_f1_counts_each_label_of_each_target():
    label = torch.tensor([[1.0, 0, 0], [0, 1, 1]])
    logits = torch.tensor([[2.0, 1, -1], [-1, 1, -1]])

    assert micro_f1(logits, label) == pytest.approx(2 * 2 / (3 + 3))
    assert micro_f1(-logits.abs(), label) == 0


def test_the_expected_layer_is_where_layers_add():
    assert expected_layer([0.5, 0.7, 0.8]) == pytest.approx((0.2 * 1 + 0.1 * 2) / 0.3)
    assert expected_layer([0.5, 0.5, 0.9]) == pytest.approx(2)
    assert expected_layer([0.5, 0.5]) is None


def agreeing(units, seed):
    """Return pairs of spans whose label is whether two words, hidden in layer 1, are of a kind."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(2, (2 * units,), generator=generator)
    states = torch.randn(2 * units, 2, 4, generator=generator)
    states[:, 1, 0] += 6.0 * kinds - 3
    words = torch.arange(2 * units).view(units, 2, 1)
    words = torch.cat([words, torch.full_like(words, -1)], 2)
    same = kinds[words[:, 0, 0]] == kinds[words[:, 1, 0]]
    return Spans(states, words, torch.stack([same, ~same], 1).float())


def test_a_probe_of_two_spans_finds_how_they_belong_together_and_in_which_layer():
    train, other = agreeing(200, 0), agreeing(100, 1)

    probe = train_span_probe(train, other, seed=0)

    assert micro_f1(probe.logits(other), other.label) > 0.9
    assert probe.raw.softmax(0)[1] > 0.55
    below = train_span_probe(train.up_to_layer(0), other.up_to_layer(0), seed=0)
    assert micro_f1(below.logits(other.up_to_layer(0)), other.label) < 0.7


def test_training_a_probe_leaves_the_random_numbers_of_others_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    train_span_probe(agreeing(20, 0), agreeing(20, 1), seed=0)

    assert torch.equal(torch.rand(2), expected)


FOUND = Finding(
    "Lengths", "Long texts are harder.", {"longest": 37},
    [
        FindingTable(["tokens", "error"], [["1 to 8", 12.5], ["9 to 16", None]]),
        FindingTable(["x"], [[1]], "More"),
    ],
    notes=["of one run"], data={"bounds": [8, 16]},
)  # fmt: skip


@pytest.mark.parametrize(
    "chart",
    [
        Lines({"a": [1.0, None], "b": [2.0, 3.0]}, ["x", "y"], "place", "height", ["b"]),
        Matrix([[0.1, None], [-2.0, 3.0]], "row", "column"),
        Matrix([[0.1] * 50] * 30, "row", "column", (0.0, 1.0)),
        Points([[0.0, 1.0], [2.0, 3.0]], ["x", "y"], ["a", "b"], {1: "a $ and _"}),
        Points([[0.0, 1.0], [2.0, 3.0]], ["x", "y"]),
    ],
)
def test_every_chart_is_drawn_also_where_values_are_missing(chart):
    pytest.importorskip("matplotlib")

    assert draw_charts({"it": chart})["it"].startswith(b"\x89PNG")


def test_a_missing_value_leaves_the_colours_of_the_others_alone():
    pytest.importorskip("matplotlib")
    charts = {ends: Matrix([[0.1, 0.9, None]], "x", "y", ends) for ends in (None, (0.1, 0.9))}

    assert len({*draw_charts(charts).values()}) == 1


def test_without_matplotlib_there_are_no_pictures(monkeypatch):
    monkeypatch.setattr("transfer_cli.analysis.pictures.find_spec", lambda name: None)

    assert draw_charts({"it": Matrix([[1.0]], "row", "column")}) == {}


def test_a_file_holds_the_first_table_and_is_read_again():
    content = FOUND.as_json()

    assert list(content) == ["title", "summary", "values", "table", "notes", "bounds"]
    again = Finding.from_json(json.loads(json.dumps(content)))
    assert again.as_json() == content
    assert len(again.tables) == 1


def test_what_is_no_finding_is_an_empty_one():
    content = {"title": 3, "summary": [], "values": "x", "table": {"columns": 1}, "notes": {}}

    assert Finding.from_json(content) == Finding("", "", tables=[FindingTable([], [])], notes=[])
