"""What a finished run says about itself beyond its measures."""

import pytest
import torch

from tests import tiny
from transfer_cli.engine.evaluate import Scores
from transfer_cli.model.readout import ScalarMix
from transfer_cli.objectives.classification import Classification
from transfer_cli.training.results import (
    layer_shares,
    majority_failure,
    peak_memory,
    weights_size,
)

LABELS = ("animal", "number")


def scores(accuracy, confusion):
    return Scores({"loss": 1.0, "accuracy": accuracy}, {"confusion": confusion})


# A row of the table is what was right: 60 animals and 40 numbers.
@pytest.mark.parametrize(("accuracy", "failed"), [(0.6, True), (0.61, True), (0.63, False)])
def test_a_classifier_must_beat_the_most_frequent_label_by_a_margin(accuracy, failed):
    said = majority_failure(scores(accuracy, [[60, 0], [40, 0]]), LABELS)

    assert (said is not None) is failed
    if said:
        assert f"{100 * accuracy:.1f} % is no better than always answering animal (60.0 %)" in said


def test_the_most_frequent_label_is_that_of_the_examples_and_not_of_the_answers():
    said = majority_failure(scores(0.3, [[10, 20], [0, 70]]), LABELS)

    assert "always answering number (70.0 %)" in said


def test_where_all_examples_are_of_one_label_nothing_can_be_said():
    assert majority_failure(scores(1.0, [[50, 0], [0, 0]]), LABELS) is None


def test_what_predicts_no_labels_cannot_fail_so():
    assert majority_failure(Scores({"loss": 3.0}, {}), ()) is None


def test_a_learnt_mix_tells_how_much_each_layer_counts():
    model = tiny.model(Classification())
    assert layer_shares(model) is None

    mix = ScalarMix(4, norm=False)
    model.readout = mix
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([0.0, 0.0, 0.0, 100.0]))

    assert layer_shares(model) == [0, 0, 0, 1]


def test_sizes_are_in_bytes(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"x" * 123)

    assert weights_size(tmp_path) == 123
    assert peak_memory(torch.device("cpu")) > 50 * 2**20
