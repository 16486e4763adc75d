"""Losses with heads like the main one: views of a text, slices."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from tests.earlier_torch import EarlierAutocast
from tests.tiny import sums
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.beside_main_head import VIEWS, CrossView, SliceHeads
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.consistency import Consistency
from transfer_cli.runs.slices import Slice
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.testing import objectives as contract
from transfer_cli.testing.objectives import check_objective

NOISE = ExampleNoise(0, "train", 3)


def at_work(data=None, main=Classification, **options):
    """Return the main objective, that of views, a lively model, and a prepared batch."""
    main, objective = main(dropout=0), CrossView(**options)
    model = tiny.model(main, objective).eval()
    tiny.lively(model)
    batch = (data or tiny.Questions()).batch(np.arange(6))
    return main, objective, model, objective.prepare(batch, NOISE)


def seen(tokens, mask):
    return [row[kept].tolist() for row, kept in zip(tokens, mask, strict=True)]


@pytest.mark.parametrize("causal", [True, False])
def test_the_halves_hold_all_words_and_share_the_one_in_the_middle(causal):
    data = tiny.Questions(causal)
    _, _, _, batch = at_work(data)
    special = tiny.VOCABULARY.special

    left, right = (seen(batch["tokens"], batch[f"mask_{side}"]) for side in ("left", "right"))

    for one, other, whole in zip(left, right, data.rows, strict=False):
        words, first, last = ([t for t in row if t not in special] for row in (whole, one, other))
        half = (len(words) + 1) // 2
        assert (first, last) == (words[:half], words[len(words) - half :])
        assert [t for t in one if t in special] == [t for t in whole if t in special]


def test_some_words_are_hidden_in_the_third_view_and_none_is_lost():
    _, _, _, batch = at_work(rate=0.5)

    changed = batch["tokens_masked"] != batch["tokens"]

    assert changed.any()
    assert (batch["tokens_masked"][changed] == tiny.VOCABULARY.mask).all()


def test_a_head_learns_the_divergence_of_its_view_from_the_whole():
    main, objective, model, batch = at_work()
    whole = main.scores(model, batch, Encoding(model, batch)).detach()
    left = {"tokens": batch["tokens"], "mask": batch["mask_left"], "index": batch["index"]}
    left_scores = objective.objectives["left"].scores(model, left, Encoding(model, left))
    wanted = (whole.softmax(1) * (whole.log_softmax(1) - left_scores.log_softmax(1))).sum()

    assert_close(sums(objective, model, batch)["left"], wanted)
    assert objective.counts(batch) == dict.fromkeys(VIEWS, 6)


@pytest.mark.parametrize("make", [CrossView, lambda: Consistency("delete", rate=0.5)])
def test_a_pass_trains_though_torch_keeps_what_one_without_gradients_has_cast(make, monkeypatch):
    objective = make()
    model = tiny.model(Classification(dropout=0), objective).eval()
    tiny.lively(model)
    batch = objective.prepare(tiny.Questions().batch(np.arange(6)), NOISE)

    with EarlierAutocast(monkeypatch):
        torch.stack([*sums(objective, model, batch).values()]).sum().backward()

    for name, weight in model.backbone.blocks.named_parameters():
        assert weight.grad is not None, name


def test_no_gradient_flows_through_what_the_main_head_says():
    _, objective, model, batch = at_work()

    torch.stack([*sums(objective, model, batch).values()]).sum().backward()

    assert model.heads["class"].linear.weight.grad is None
    for view in VIEWS:
        assert model.heads[f"class_further_{view}"].linear.weight.grad.any()
    assert objective.training_heads == {f"class_further_{view}" for view in VIEWS}


@pytest.mark.parametrize("main", [Classification, MultipleChoice])
def test_views_keep_the_contract_of_an_objective(main):
    class Alone(CrossView):
        def setup(self, info):
            main_objective = tiny.bound(main(dropout=0))
            super().setup(TaskInfo(info.vocabulary, info.labels, "further", main=main_objective))

        def modules(self, backbone):
            return {**self.main.modules(backbone), **super().modules(backbone)}

    data = tiny.Questions() if main is Classification else tiny.groups()

    info, batch = TaskInfo(tiny.VOCABULARY, tiny.LABELS), data.batch(np.arange(6))
    case = contract.make_case(Alone(rate=0.4), info, batch)

    # Its passes are its own, so what reaches the states of the batch is not asked; nor does the
    # main head learn by it.
    contract.preparing_repeats(case)
    contract.sums_add_up_over_halves(case)
    contract.padding_never_contributes(case)
    contract.declared_metrics_are_measured(case)


def test_a_tokenizer_that_hides_nothing_is_told_of_the_halves():
    class NoMask(CrossView):
        def setup(self, info):
            super().setup(TaskInfo(tiny.Vocabulary(has_mask=False), info.labels, main=info.main))

    with pytest.raises(ConfigError, match=r"no mask token .* take views=\[left,right\]"):
        tiny.model(Classification(), NoMask())
    assert tiny.model(Classification(), CrossView(("left", "right"))).heads


PARTS = {"some": Slice(length=(0, 6)), "all": Slice(length=(0, None)), "none": Slice(word="zebra")}
MEMBERS = torch.tensor([[n % 2 == 0, True, False] for n in range(6)])


def in_slices():
    """Return the main objective, slices, a lively model, and a batch with members of slices."""
    main, objective = Classification(dropout=0), SliceHeads(PARTS)
    model = tiny.model(main, objective).eval()
    tiny.lively(model)
    batch = {**tiny.Questions().batch(np.arange(6)), "slices_further": MEMBERS}
    return main, objective, model, batch


def test_each_slice_has_a_head_of_its_own_like_the_main_one():
    _, objective, model, _ = in_slices()

    assert set(model.heads) == {"class", *(f"class_further_{name}" for name in PARTS)}
    assert objective.training_heads == set(model.heads) - {"class"}
    assert objective.weights == dict.fromkeys(PARTS, 1 / 3)


def test_a_slice_learns_its_own_examples_alone():
    _, objective, model, batch = in_slices()
    slice_head = objective.objectives["some"]
    even = {key: value[::2] for key, value in batch.items()}

    losses = objective.loss_sums(model, batch, Encoding(model, batch))

    assert_close(losses["some"], slice_head.loss_sums(model, even, Encoding(model, even))["loss"])
    assert objective.counts(batch) == {"some": 3, "all": 6, "none": 0}


def test_a_slice_without_examples_is_0_and_gives_no_gradient():
    _, objective, model, batch = in_slices()

    losses = objective.loss_sums(model, batch, Encoding(model, batch))
    losses["none"].backward()

    assert losses["none"] == 0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_what_does_not_occur_is_left_out_of_the_mean():
    _, objective, _, _ = in_slices()
    totals = {"some": torch.tensor(6.0), "all": torch.tensor(6.0), "none": torch.tensor(0.0)}

    measures = objective.compute_metrics(totals, {"some": 3, "all": 6, "none": 0}, None)

    assert measures == {"loss": 1.5, "loss/some": 2.0, "loss/all": 1.0}


@pytest.mark.parametrize("main", [Classification, MultipleChoice])
def test_slices_keep_the_contract_of_an_objective(main):
    class Alone(SliceHeads):
        def setup(self, info):
            main_objective = tiny.bound(main(dropout=0))
            super().setup(TaskInfo(info.vocabulary, info.labels, "further", main=main_objective))

    data = tiny.Questions() if main is Classification else tiny.groups()
    parts = {name: PARTS[name] for name in ("some", "all")}
    batch = {**data.batch(np.arange(6)), "slices_further": MEMBERS[:, :2]}

    check_objective(Alone(parts), TaskInfo(tiny.VOCABULARY, tiny.LABELS), batch)


def test_a_main_loss_without_a_head_of_its_own_is_refused():
    with pytest.raises(ConfigError, match=r"losses.further: .* has none of its own \(CausalLM\)"):
        tiny.model(CausalLM(), SliceHeads(PARTS))


def test_a_batch_of_other_data_has_no_slices():
    _, objective, model, batch = in_slices()
    del batch["slices_further"]

    with pytest.raises(RunError, match="slices come with a run's own data"):
        objective.loss_sums(model, batch, Encoding(model, batch))
