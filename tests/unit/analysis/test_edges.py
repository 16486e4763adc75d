"""Legend: W words, N targets, R spans of a target, S words of a span, K layers, C labels."""

import json

import pytest
import torch

from transfer_cli.analysis.edges import EdgeTarget, expected_layer, read_edges
from transfer_cli.analysis.probes.span_probe import Spans, micro_f1, trained


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

    found = read_edges(path)

    assert found.sentences == [["Who", "wrote", "it", "?"], ["none"], ["a", "b"]]
    assert found.targets == [
        EdgeTarget(0, ((1, 2), (0, 1)), ("A",)),
        EdgeTarget(2, ((1, 2), (0, 2)), ("A", "B")),
    ]


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

    probe = trained(train, other, seed=0)

    assert micro_f1(probe.logits(other), other.label) > 0.9
    assert probe.raw.softmax(0)[1] > 0.55
    below = trained(train.up_to(0), other.up_to(0), seed=0)
    assert micro_f1(below.logits(other.up_to(0)), other.label) < 0.7


def test_training_a_probe_leaves_the_random_numbers_of_others_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    trained(agreeing(20, 0), agreeing(20, 1), seed=0)

    assert torch.equal(torch.rand(2), expected)
