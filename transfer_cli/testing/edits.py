"""What any edit must satisfy.

Legend: B batch, T positions, D width.
"""

from collections.abc import Sequence, Set

import torch
from torch import Tensor

from transfer_cli.adaptation.edit import Edit
from transfer_cli.errors import list_names
from transfer_cli.model.added import added_modules, added_parameters, merge
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.transfer_model import TransferModel, layer_groups
from transfer_cli.testing.claims import claim, randomize

VOCABULARY = 24
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
SHAPE = BackboneShape(
    width=16, heads=2, depth=3, feedforward=32, positions=12, dropout=0.0, direction="causal"
)
LEARNING_STEPS = 3
RATE = 0.1


def check_edit(edit: Edit) -> None:
    """Check every claim of this module about an edit that a model of three blocks has room for."""
    loaded_tensors_keep_their_names(edit)
    new_parameters_are_reported(edit)
    the_start_is_the_unedited_model(edit)
    added_parameters_are_marked(edit)
    added_parameters_learn(edit)
    drawing_repeats(edit)
    a_structural_edit_can_be_made_again(edit)
    merging_changes_no_output(edit)
    no_tensor_is_needed(edit)


def loaded_tensors_keep_their_names(edit: Edit) -> None:
    """Claim: what was loaded is still there, under its name and in its shape."""
    after = _edited_model(edit)[0].state_dict()
    for name, tensor in _loaded_model().state_dict().items():
        claim(name in after, f"{name} has lost its name")
        claim(after[name].shape == tensor.shape, f"{name} has another shape")


def new_parameters_are_reported(edit: Edit) -> None:
    """Claim: the names returned are those of the parameters that lost their loaded values."""
    before = dict(_loaded_model().named_parameters())
    model, reported = _edited_model(edit)
    after = dict(model.named_parameters())
    unknown = reported - before.keys()
    claim(not unknown, f"reports {_names(unknown)}, not in the model")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    claim(changed <= reported, f"changes {_names(changed - reported)} and does not report it")
    claim(reported <= changed, f"reports {_names(reported - changed)}, which is as it was loaded")


def the_start_is_the_unedited_model(edit: Edit) -> None:
    """Claim: before the first step, all hidden states are exactly those of the unedited model.

    An edit that reports parameters as new is meant to change them. What the heads read of the
    states is the same as well where all that is added says that it keeps the outputs.
    """
    model, reported = _edited_model(edit)
    if reported:
        return
    for layer, (old, new) in enumerate(zip(_states(_loaded_model()), _states(model), strict=True)):
        claim(torch.equal(old, new), f"changes the states of layer {layer} before the first step")
    if all(part.keeps_outputs for part in added_modules(model).values()):
        same = torch.equal(_head_inputs(_loaded_model()), _head_inputs(model))
        claim(same, "changes what the heads read before the first step")


def added_parameters_are_marked(edit: Edit) -> None:
    """Claim: every added parameter is inside an `Added`, by which plans and exports find it."""
    model, _ = _edited_model(edit)
    unmarked = _added_names(model) - added_parameters(model).keys()
    for group in layer_groups(model, set()):
        lost = unmarked & set(group.parameters)
        claim(not lost, f"{_names(lost)} is taken for a part of {group.name}: it is in no `Added`")


def added_parameters_learn(edit: Edit) -> None:
    """Claim: every added parameter gets a gradient, at the latest after a few steps.

    Not at once: of two matrices in a row one may start at zero, though not both.
    """
    model, _ = _edited_model(edit)
    idle = _added_names(model)
    added = {name: parameter for name, parameter in model.named_parameters() if name in idle}
    # A plain sum would be blind behind a norm.
    weight_BTD = torch.randn(_head_inputs(model).shape, generator=torch.Generator().manual_seed(2))
    for _ in range(LEARNING_STEPS):
        model.zero_grad()
        (_head_inputs(model) * weight_BTD).mean().backward()
        with torch.no_grad():
            for name, parameter in added.items():
                if parameter.grad is not None:
                    idle -= {name} if parameter.grad.any() else set()
                    parameter.sub_(RATE * parameter.grad)
    claim(not idle, f"{_names(idle)} gets no gradient")


def drawing_repeats(edit: Edit) -> None:
    """Claim: whatever is random comes from torch's generator, so that a seed repeats it."""
    first, second = _edited_model(edit)[0].state_dict(), _edited_model(edit)[0].state_dict()
    for name, tensor in first.items():
        claim(torch.equal(tensor, second[name]), f"{name} differs for the same seed")


def a_structural_edit_can_be_made_again(edit: Edit) -> None:
    """Claim: a finished run's weights fill a model that had its structural edits made again."""
    finished, _ = _edited_model(edit)
    randomize(finished, seed=1)
    if not edit.structural:
        added = _added_names(finished)
        claim(not added, f"adds {_names(added)}, and says that it is not structural")
        return
    again, _ = _edited_model(edit, seed=1)
    again.load_state_dict(finished.state_dict())
    same = torch.equal(_head_inputs(finished), _head_inputs(again))
    claim(same, "a finished run's weights give other outputs in a model that is edited again")


def merging_changes_no_output(edit: Edit) -> None:
    """Claim: what says that it can be merged computes the same when it is, under loaded names."""
    model, _ = _edited_model(edit)
    randomize(model, seed=1)
    before = _head_inputs(model)
    if not merge(model):
        return
    same = torch.allclose(before, _head_inputs(model), rtol=1e-4, atol=1e-4)
    claim(same, "computes something else when it is merged")
    plain, merged = _loaded_model().state_dict().keys(), model.state_dict().keys()
    claim(plain == merged, f"{_names({*(plain ^ merged)})} is lost or left over when it is merged")


def no_tensor_is_needed(edit: Edit) -> None:
    """Claim: it works on the meta device, where nothing has a value, and adds the same there."""
    real, reported = _edited_model(edit)
    with torch.device("meta"):
        model = TransferModel(Backbone(SHAPE, VOCABULARY), {}).eval()
    claim(edit(model, SPECIAL) == reported, "reports other names on the meta device")
    shapes = {name: tensor.shape for name, tensor in real.state_dict().items()}
    state = model.state_dict()
    same = shapes == {name: tensor.shape for name, tensor in state.items()}
    claim(same, "adds other tensors on the meta device")
    strays = {name for name, tensor in state.items() if tensor.device.type != "meta"}
    claim(not strays, f"{_names(strays)} is not on the model's device")


def _loaded_model() -> TransferModel:
    """Return a small model without dropout, its weights as if they were loaded."""
    model = TransferModel(Backbone(SHAPE, VOCABULARY), {}).eval()
    randomize(model)
    return model


def _edited_model(edit: Edit, seed: int = 0) -> tuple[TransferModel, set[str]]:
    model = _loaded_model()
    torch.manual_seed(seed)
    reported = edit(model, SPECIAL)
    return model.eval(), reported


def _added_names(model: TransferModel) -> set[str]:
    return dict(model.named_parameters()).keys() - dict(_loaded_model().named_parameters()).keys()


def _states(model: TransferModel) -> Sequence[Tensor]:
    """Return the hidden states of two rows that hold every token, one of them padded."""
    tokens_BT = torch.arange(VOCABULARY).view(2, -1)
    mask_BT = torch.arange(tokens_BT.shape[1]) < torch.tensor([[tokens_BT.shape[1]], [9]])
    states: Sequence[Tensor] = model.backbone(tokens_BT, mask_BT)
    return states


def _head_inputs(model: TransferModel) -> Tensor:
    top: Tensor = model.readout(_states(model))
    return top


def _names(names: Set[str]) -> str:
    return list_names(sorted(names))
