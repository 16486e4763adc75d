import pytest
import torch
from torch import nn

from transfer_cli.adaptation.edit import Edit
from transfer_cli.adaptation.edits import Adapters, FreshTop, LoRA, MixLayers, NewRows
from transfer_cli.model.adapters import Adapter
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.testing.edits import check_edit


class Nothing(Edit):
    def __call__(self, model, special):
        return set()


class OnBothSites(Edit):
    """Adapters of this class's `make`, in every block."""

    def __call__(self, model: TransferModel, special):
        like = model.backbone.token_embedding.weight
        for block in model.backbone.blocks:
            block.sites["after_attention"] = self.make(like.shape[1]).to(like)
        return set()

    def make(self, width):
        return Adapter(width, 4, "relu")


class WrapsALayer(Edit):
    def __call__(self, model, special):
        for block in model.backbone.blocks:
            block.attention.output = nn.Sequential(block.attention.output)
        return set()


class StartsElsewhere(OnBothSites):
    def make(self, width):
        adapter = super().make(width)
        nn.init.normal_(adapter.up.weight, std=0.01)
        return adapter


class NeverMoves(OnBothSites):
    def make(self, width):
        adapter = super().make(width)
        nn.init.zeros_(adapter.down.weight)
        return adapter


class KeepsQuiet(FreshTop):
    def __call__(self, model, special):
        super().__call__(model, special)
        return set()


class SaysTooMuch(Nothing):
    def __call__(self, model, special):
        return {"backbone.token_embedding.weight"}


class MakesUpNames(Nothing):
    def __call__(self, model, special):
        return {"backbone.nothing"}


class HidesInABlock(Edit):
    def __call__(self, model, special):
        like = model.backbone.token_embedding.weight
        model.backbone.blocks[0].register_parameter("extra", nn.Parameter(torch.zeros_like(like)))
        return set()


class MixesAtOnce(MixLayers):
    """Says that heads read the same as before, and mixes."""

    def __call__(self, model, special):
        super().__call__(model, special)
        model.readout.keeps_outputs = True
        return set()


class MergesWrongly(LoRA):
    def __call__(self, model, special):
        super().__call__(model, special)
        for block in model.backbone.blocks:
            packed = block.attention.packed
            packed.merged = lambda: nn.Linear(16, 48)
        return set()


class DrawsFromItsOwn(OnBothSites):
    draws = 0

    def make(self, width):
        DrawsFromItsOwn.draws += 1
        adapter = super().make(width)
        generator = torch.Generator().manual_seed(self.draws)
        adapter.down.weight.data.normal_(std=0.02, generator=generator)
        return adapter


class ForgetsItsAdapters(Adapters):
    structural = False


class HoldsWhatNoWeightsHold(Edit):
    """Adds a constant that depends on the seed, and does not save it."""

    def __call__(self, model, special):
        NewRows()(model, special)
        table = model.backbone.token_embedding.weight
        rows = model.backbone.new_rows
        rows.register_buffer("scale", torch.rand(()).to(table), persistent=False)
        rows.register_forward_hook(lambda module, _, added: added * module.scale)
        return set()


class LooksAtValues(OnBothSites):
    def __call__(self, model, special):
        largest = float(model.backbone.token_embedding.weight.detach().max())
        return super().__call__(model, special) if largest < 1e9 else {"never"}


class StaysOnTheCPU(Edit):
    def __call__(self, model, special):
        width = model.backbone.token_embedding.weight.shape[1]
        with torch.device("cpu"):
            for block in model.backbone.blocks:
                block.sites["after_attention"] = Adapter(width, 4, "relu")
        return set()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (WrapsALayer(), "attention.output.weight has lost its name"),
        (StartsElsewhere(), "changes the states of layer 1 before the first step"),
        (NeverMoves(), "gets no gradient"),
        (KeepsQuiet(), "does not report it"),
        (SaysTooMuch(), "which is as it was loaded"),
        (MakesUpNames(), "not in the model"),
        (HidesInABlock(), "is taken for a part of block.0"),
        (MixesAtOnce(), "changes what the heads read before the first step"),
        (MergesWrongly(), "computes something else when it is merged"),
        (DrawsFromItsOwn(), "differs for the same seed"),
        (ForgetsItsAdapters(), "says that it is not structural"),
        (HoldsWhatNoWeightsHold(), "give other outputs in a model that is edited again"),
        (StaysOnTheCPU(), "is not on the model's device"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_contract_of_edits_catches(edit, message):
    with pytest.raises(AssertionError, match=message):
        check_edit(edit)


def test_an_edit_that_looks_at_values_fails_without_them():
    with pytest.raises(RuntimeError, match="meta tensors"):
        check_edit(LooksAtValues())


@pytest.mark.parametrize("edit", [Nothing(), OnBothSites()], ids=lambda value: type(value).__name__)
def test_an_edit_of_a_users_own_can_pass(edit):
    check_edit(edit)
