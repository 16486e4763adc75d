"""What an edit is: a change of a model before training; `adaptation.edits` has ours."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from transfer_cli.model.added import added_modules, added_parameters
from transfer_cli.model.transfer_model import TransferModel

SPECIAL_TOKENS = ("cls", "sep", "mask", "unk", "pad")


class Edit(ABC):
    """A change of the network."""

    structural: ClassVar[bool] = True
    """Whether it changes the network's modules. If so, it is applied again before the weights of a
    finished run are loaded. An edit that only changes values is not structural."""

    @abstractmethod
    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        """Change the model in place, on its device.

        Args:
            model: With its pretrained weights, if any.
            special: Token ids by `SPECIAL_TOKENS`.

        Returns:
            Names of the pretrained parameters that the edit has reinitialised.

        Raises:
            ValueError: The edit does not fit the model.
        """


def apply_edit(edit: Edit, name: str, model: TransferModel, special: Mapping[str, int]) -> set[str]:
    """Apply an edit, and check the parameters that it adds; see `Edit.__call__`.

    Its name in `adaptation.edits` is stored in every module that it adds.

    Raises:
        ValueError: The edit does not fit the model, or breaks the contract of an edit.
    """
    before, earlier = _parameters(model), set(added_modules(model).values())
    fresh = edit(model, special)
    after, added = _parameters(model), added_parameters(model).keys()
    _refuse(before - after, "removes {}, which must keep its name")
    _refuse(fresh - before, "reports {} as drawn anew, which was not there")
    _refuse(
        after - before - added,
        "adds {} outside of any Added (transfer_cli.model.added), so it would count as a part of "
        "what was there before; let the module that holds it be an Added",
    )
    for module in set(added_modules(model).values()) - earlier:
        module.edit = name
    if not edit.structural:
        _refuse(after - before, "adds {}, and says that it is not structural")
    return fresh


def _parameters(model: TransferModel) -> set[str]:
    return {name for name, _ in model.named_parameters()}


def _refuse(names: set[str], what: str) -> None:
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ValueError(what.format(f"{min(names)}{more}"))
