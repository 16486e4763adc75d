from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import tiny
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.testing.objectives import check_objective


class MeanInsteadOfSum(Classification):
    def loss_sums(self, model, batch, encoded):
        return {"loss": F.cross_entropy(self.outputs(model, batch, encoded), batch["label"])}


class CountsPadding(CausalLM):
    def counts(self, batch):
        return {"loss": batch["target"].numel()}


class LearnsPadding(CausalLM):
    def prepare(self, batch, noise):
        prepared = super().prepare(batch, noise)
        return {**prepared, "target": prepared["target"].clamp(min=0)}


class DrawsFromTheGlobalGenerator(MaskedLM):
    def prepare(self, batch, noise):
        prepared = super().prepare(batch, noise)
        hidden = torch.rand(prepared["tokens"].shape) < 0.3
        return {**prepared, "tokens": torch.where(hidden, 4, prepared["tokens"])}


class ChangesItsInput(CausalLM):
    def prepare(self, batch, noise):
        batch["tokens"][0, 0] = 4
        return super().prepare(batch, noise)


class LooksAtItsCompany(Classification):
    def prepare(self, batch, noise):
        return {**batch, "tokens": batch["tokens"].flip(0)}


class NamesTermsDifferently(Classification):
    @property
    def weights(self):
        return {"class": 1.0}


class NotesHalfOfItsLoss(Classification):
    def example_results(self, model, batch, encoded):
        found = super().example_results(model, batch, encoded)
        return replace(found, loss=found.loss / 2)


class NotesTokensAsTargets(CausalLM):
    def example_results(self, model, batch, encoded):
        found = super().example_results(model, batch, encoded)
        return replace(found, targets=batch["mask"].sum(1) + 1)


class NotesOneForAll(Classification):
    def example_results(self, model, batch, encoded):
        found = super().example_results(model, batch, encoded)
        return replace(found, predicted={"probability": found.predicted["probability"].mean()})


class DeclaresAnIdleModule(Classification):
    def modules(self, backbone):
        return {**super().modules(backbone), "idle": torch.nn.Linear(16, 2)}


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (MeanInsteadOfSum(), "no sum over the examples"),
        (CountsPadding(), "targets, and counts are"),
        (LearnsPadding(), "changes the counts to"),
        (DrawsFromTheGlobalGenerator(), "does not come from its noise"),
        (ChangesItsInput(), "changes the batch that it is given"),
        (LooksAtItsCompany(), "differently when it is alone"),
        (NamesTermsDifferently(), "counts names"),
        (NotesHalfOfItsLoss(), "the losses of example_results and metric_sums differ"),
        (NotesTokensAsTargets(), "targets, and counts are"),
        (NotesOneForAll(), "no probability for each example"),
        (DeclaresAnIdleModule(), r"heads\.idle\.weight gets no gradient"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_contract_of_objectives_catches(objective, message):
    batch = tiny.Questions().batch(np.arange(6))

    with pytest.raises(AssertionError, match=message):
        check_objective(objective, TaskInfo(tiny.VOCABULARY, tiny.LABELS), batch)


def test_a_batch_without_padding_cannot_show_anything():
    batch = tiny.rows_to_batch([[5, 6], [7, 8]])

    with pytest.raises(AssertionError, match="examples of different lengths"):
        check_objective(CausalLM(), TaskInfo(tiny.VOCABULARY), batch)
