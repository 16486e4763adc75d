import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.beside_main_head import SliceHeads
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.runs.slices import Slice
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.testing.objectives import check_objective

PARTS = {"some": Slice(length=(0, 6)), "all": Slice(length=(0, None)), "none": Slice(word="zebra")}
MEMBERS = torch.tensor([[n % 2 == 0, True, False] for n in range(6)])


def at_work():
    """Return the main objective, slices, a lively model, and a batch with members of slices."""
    main, objective = Classification(dropout=0), SliceHeads(PARTS)
    model = tiny.model(main, objective).eval()
    tiny.lively(model)
    batch = {**tiny.Questions().batch(np.arange(6)), "slices_further": MEMBERS}
    return main, objective, model, batch


def test_each_slice_has_a_head_of_its_own_like_the_main_one():
    _, objective, model, _ = at_work()

    assert set(model.heads) == {"class", *(f"class_further_{name}" for name in PARTS)}
    assert objective.training_heads == set(model.heads) - {"class"}
    assert objective.weights == dict.fromkeys(PARTS, 1 / 3)


def test_a_slice_learns_its_own_examples_alone():
    _, objective, model, batch = at_work()
    own = objective.beside_main["some"]
    even = {key: value[::2] for key, value in batch.items()}

    found = objective.loss_sums(model, batch, Encoding(model, batch))

    assert_close(found["some"], own.loss_sums(model, even, Encoding(model, even))["loss"])
    assert objective.counts(batch) == {"some": 3, "all": 6, "none": 0}


def test_a_slice_without_examples_is_0_and_gives_no_gradient():
    _, objective, model, batch = at_work()

    found = objective.loss_sums(model, batch, Encoding(model, batch))
    found["none"].backward()

    assert found["none"] == 0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_a_slice_of_all_examples_is_the_main_loss_where_heads_are_equal():
    main, objective, model, batch = at_work()
    model.heads["class_further_all"].load_state_dict(model.heads["class"].state_dict())
    encoded = Encoding(model, batch)

    found = objective.loss_sums(model, batch, encoded)["all"]

    assert_close(found, main.loss_sums(model, batch, encoded)["loss"])


def test_what_does_not_occur_is_left_out_of_the_mean():
    _, objective, _, _ = at_work()
    totals = {"some": torch.tensor(6.0), "all": torch.tensor(6.0), "none": torch.tensor(0.0)}

    found = objective.compute_metrics(totals, {"some": 3, "all": 6, "none": 0}, None)

    assert found == {"loss": 1.5, "loss/some": 2.0, "loss/all": 1.0}


@pytest.mark.parametrize("main", [Classification, MultipleChoice])
def test_it_keeps_the_contract_of_an_objective(main):
    class Alone(SliceHeads):
        def setup(self, info):
            own = tiny.bound(main(dropout=0))
            super().setup(TaskInfo(info.vocabulary, info.labels, "further", main=own))

    data = tiny.Questions() if main is Classification else tiny.groups()
    parts = {name: PARTS[name] for name in ("some", "all")}
    batch = {**data.batch(np.arange(6)), "slices_further": MEMBERS[:, :2]}

    check_objective(Alone(parts), TaskInfo(tiny.VOCABULARY, tiny.LABELS), batch)


def test_a_main_loss_without_a_head_of_its_own_is_refused():
    with pytest.raises(ConfigError, match=r"losses.further: .* has none of its own \(CausalLM\)"):
        tiny.model(CausalLM(), SliceHeads(PARTS))


def test_slices_are_no_main_loss():
    with pytest.raises(ConfigError, match="slices are a further loss"):
        SliceHeads(PARTS).setup(TaskInfo(tiny.VOCABULARY, tiny.LABELS))


def test_slices_are_no_empty_mapping():
    with pytest.raises(ValueError, match="parts is empty"):
        SliceHeads({})


def test_a_batch_of_other_data_has_no_slices():
    _, objective, model, batch = at_work()
    del batch["slices_further"]

    with pytest.raises(RunError, match="slices come with a run's own data"):
        objective.loss_sums(model, batch, Encoding(model, batch))
