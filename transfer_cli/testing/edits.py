"""What any edit must satisfy, ours or a user's.

Call `check_edit` from a test of your own:

    def test_my_edit_keeps_the_contract():
        check_edit(MyEdit())

Legend: B batch, T positions, D width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transfer_cli.adaptation.edits import Edit
from transfer_cli.model.added import added_modules, added_parameters, merge
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.transfer_model import TransferModel, layer_groups

VOCABULARY = 24
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
SHAPE = BackboneShape(
    width=16, heads=2, depth=3, feedforward=32, positions=12, dropout=0.0, direction="causal"
)
LEARNING_STEPS = 3
RATE = 0.1


def check_edit(edit: Edit) -> None:
    """Check every claim of this module.

    Args:
        edit: Any edit that a model of three blocks has room for.

    Raises:
        AssertionError: A claim does not hold; the message says which.
    """
    loaded_tensors_keep_their_names(edit)
    new_parameters_are_reported(edit)
    the_start_is_the_unedited_model(edit)
    added_parameters_are_marked(edit)
    added_parameters_learn(edit)
    drawing_repeats(edit)
    a_structural_edit_can_be_made_again(edit)
    merging_changes_no_output(edit)
    no_tensor_is_needed(edit)


def make_model() -> TransferModel:
    """Return a small model of large random weights, as if they were loaded; no dropout."""
    model = TransferModel(Backbone(SHAPE, VOCABULARY), {}).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model


def loaded_tensors_keep_their_names(edit: Edit) -> None:
    """Claim: what was loaded is still there, under its name and in its shape."""
    before = make_model().state_dict()
    after = _edited(edit)[0].state_dict()
    for name, tensor in before.items():
        _claim(name in after, f"{name} has lost its name")
        _claim(after[name].shape == tensor.shape, f"{name} has another shape")


def new_parameters_are_reported(edit: Edit) -> None:
    """Claim: the names returned are those of the parameters that lost their loaded values."""
    before = dict(make_model().named_parameters())
    model, reported = _edited(edit)
    after = dict(model.named_parameters())
    _claim(
        reported <= before.keys(), f"reports {_some(reported - before.keys())}, not in the model"
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    _claim(changed <= reported, f"changes {_some(changed - reported)} and does not report it")
    _claim(reported <= changed, f"reports {_some(reported - changed)}, which is as it was loaded")


def the_start_is_the_unedited_model(edit: Edit) -> None:
    """Claim: before the first step, all hidden states are exactly those of the unedited model.

    An edit that reports parameters as new is meant to change them. What the heads read of the
    states is the same as well where all that is added says that it keeps the outputs.
    """
    model, reported = _edited(edit)
    if reported:
        return
    for layer, (old, new) in enumerate(zip(_states(make_model()), _states(model), strict=True)):
        _claim(torch.equal(old, new), f"changes the states of layer {layer} before the first step")
    if all(part.keeps_outputs for part in added_modules(model).values()):
        same = torch.equal(_top(make_model()), _top(model))
        _claim(same, "changes what the heads read before the first step")


def added_parameters_are_marked(edit: Edit) -> None:
    """Claim: what is added lies in modules that are `Added`, by which plans and exports find it."""
    model, _ = _edited(edit)
    unmarked = _added(model) - added_parameters(model).keys()
    for group in layer_groups(model, set()):
        lost = unmarked & set(group.parameters)
        _claim(not lost, f"{_some(lost)} is taken for a part of {group.name}: it is in no `Added`")


def added_parameters_learn(edit: Edit) -> None:
    """Claim: every added parameter gets a gradient, at the latest after a few steps.

    Not at once: of two matrices in a row one may start at zero, though not both.
    """
    model, _ = _edited(edit)
    names = _added(model)
    added = {name: parameter for name, parameter in model.named_parameters() if name in names}
    idle = set(added)
    for _ in range(LEARNING_STEPS):
        model.zero_grad()
        _loss(model).backward()
        with torch.no_grad():
            for name, parameter in added.items():
                if parameter.grad is not None:
                    idle -= {name} if bool((parameter.grad != 0).any()) else set()
                    parameter.sub_(RATE * parameter.grad)
    _claim(not idle, f"{_some(idle)} gets no gradient")


def drawing_repeats(edit: Edit) -> None:
    """Claim: whatever is random comes from torch's generator, so that a seed repeats it."""
    first, second = _edited(edit)[0].state_dict(), _edited(edit)[0].state_dict()
    for name, tensor in first.items():
        _claim(torch.equal(tensor, second[name]), f"{name} differs for the same seed")


def a_structural_edit_can_be_made_again(edit: Edit) -> None:
    """Claim: a finished run's weights fill a model that had its structural edits made again."""
    finished, _ = _edited(edit)
    _lively(finished)
    if not edit.structural:
        added = _added(finished)
        _claim(not added, f"adds {_some(added)}, and says that it is not structural")
        return
    again, _ = _edited(edit, seed=1)
    again.load_state_dict(finished.state_dict())
    same = torch.equal(_top(finished), _top(again))
    _claim(same, "a finished run's weights give other outputs in a model that is edited again")


def merging_changes_no_output(edit: Edit) -> None:
    """Claim: what says that it can be merged computes the same when it is, under loaded names."""
    model, _ = _edited(edit)
    _lively(model)
    before = _top(model)
    if not merge(model):
        return
    same = torch.allclose(before, _top(model), rtol=1e-4, atol=1e-4)
    _claim(same, "computes something else when it is merged")
    plain, merged = make_model().state_dict().keys(), model.state_dict().keys()
    _claim(plain == merged, f"{_some({*(plain ^ merged)})} is lost or left over when it is merged")


def no_tensor_is_needed(edit: Edit) -> None:
    """Claim: it works on the meta device, where nothing has a value, and adds the same there."""
    real, reported = _edited(edit)
    with torch.device("meta"):
        model = TransferModel(Backbone(SHAPE, VOCABULARY), {}).eval()
    _claim(edit(model, SPECIAL) == reported, "reports other names on the meta device")
    shapes = {name: tensor.shape for name, tensor in real.state_dict().items()}
    found = model.state_dict()
    same = shapes == {name: tensor.shape for name, tensor in found.items()}
    _claim(same, "adds other tensors on the meta device")
    strays = {name for name, tensor in found.items() if tensor.device.type != "meta"}
    _claim(not strays, f"{_some(strays)} is not on the model's device")


def _edited(edit: Edit, seed: int = 0) -> tuple[TransferModel, set[str]]:
    model = make_model()
    torch.manual_seed(seed)
    reported = edit(model, SPECIAL)
    return model.eval(), reported


def _added(model: TransferModel) -> set[str]:
    loaded = {name for name, _ in make_model().named_parameters()}
    return {name for name, _ in model.named_parameters()} - loaded


def _lively(model: TransferModel) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)


def _states(model: TransferModel) -> Sequence[Tensor]:
    """Return the states of two rows that hold every token, one of them padded on the right."""
    tokens_BT = torch.arange(VOCABULARY).view(2, -1)
    mask_BT = torch.arange(tokens_BT.shape[1]) < torch.tensor([[tokens_BT.shape[1]], [9]])
    states: Sequence[Tensor] = model.backbone(tokens_BT, mask_BT)
    return states


def _top(model: TransferModel) -> Tensor:
    top: Tensor = model.readout(_states(model))
    return top


def _loss(model: TransferModel) -> Tensor:
    """Return a loss that depends on every state; a plain sum would be blind behind a norm."""
    top_BTD = _top(model)
    direction_BTD = torch.randn(top_BTD.shape, generator=torch.Generator().manual_seed(2))
    return (top_BTD * direction_BTD).mean()


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3])


def _claim(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - a condition, as of `assert`
    if not holds:
        raise AssertionError(otherwise)
