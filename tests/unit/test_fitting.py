"""What fits into the memory of a GPU, and what happens where it does not."""

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.engine import evaluation
from transfer_cli.engine.evaluation import MOST, USUAL, batch_of, predictions
from transfer_cli.engine.precision import Precision
from transfer_cli.fitting import fitting, in_halves
from transfer_cli.objectives.classification import Classification

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("room", "rows"), [(64, 64), (63, 32), (31, 16), (0, 1)])
def test_a_batch_is_halved_until_there_is_room(room, rows):
    assert fitting(64, room, float) == rows


@pytest.mark.parametrize(("fits", "sizes"), [(9, [9]), (4, [3, 2, 4]), (1, [1] * 9)])
def test_where_memory_runs_out_halves_pass(fits, sizes):
    def work(rows):
        if len(rows) > fits:
            raise torch.OutOfMemoryError
        return len(rows)

    parts = list(in_halves(np.arange(9), work))

    assert [made for _, made in parts] == sizes
    assert np.concatenate([rows for rows, _ in parts]).tolist() == list(range(9))
    with pytest.raises(torch.OutOfMemoryError):
        list(in_halves(np.arange(9), lambda rows: work(np.arange(10))))


@pytest.mark.parametrize(
    ("asked", "device", "free", "rows"),
    [(7, GPU, 0, 7), ("auto", CPU, 0, USUAL), ("auto", GPU, 1e12, MOST), ("auto", GPU, 0, USUAL)],
)
def test_auto_takes_what_fits_into_a_gpu(asked, device, free, rows, monkeypatch):
    monkeypatch.setattr(evaluation, "free_bytes", lambda device: free)

    assert batch_of(asked, tiny.model(Classification()), device) == rows


def test_measures_and_predictions_without_memory_are_those_with_it(monkeypatch):
    objective, data = Classification(), tiny.Questions(examples=20)
    model = tiny.model(objective)

    def scored():
        rows = predictions(model, objective, data, batch=8, precision=Precision("fp32", CPU))
        parts = [found["probabilities"] for _, found in rows]
        return tiny.measures(model, objective, data), torch.cat(parts), len(parts)

    measures, probabilities, parts = scored()
    to_device = evaluation.to_device

    def hungry(batch, device):
        if len(batch["tokens"]) > 4:
            raise torch.OutOfMemoryError
        return to_device(batch, device)

    monkeypatch.setattr(evaluation, "to_device", hungry)
    found = scored()

    assert found[0] == pytest.approx(measures, rel=1e-6)
    torch.testing.assert_close(found[1], probabilities)
    assert found[2] > parts
