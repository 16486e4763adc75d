"""The Fisher information of a language model: how its predictions depend on each parameter."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from transfer_cli.batch import Batch, batch_size, to_device, with_facts
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.seeds import ExampleNoise, derive


def fisher_information(
    model: TransferModel,
    objective: LanguageModel,
    batches: Iterable[Batch],
    kind: Literal["true", "empirical"],
    seed: int,
) -> dict[str, Tensor]:
    """Return the diagonal of the Fisher information, by parameter name, in float32.

    F = mean over sequences of (d/d parameter of the sum of log p(target | context))^2. The square
    is taken of each sequence's own gradient: that of a batch's mean gradient would be smaller by
    about the number of sequences in the batch. With the text's targets it is only an approximation
    (Kunstner et al. 2019).

    The model is left in evaluation mode. Draws depend on the seed and each sequence's `index`, not
    on the batches.

    Args:
        objective: Its pretraining objective, set up.
        batches: Of any number of sequences, on the CPU, not prepared.
        kind: "true" draws each target from the model, "empirical" takes that of the text.
    """
    parameters = dict(model.named_parameters())
    totals = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
    sequences = 0
    model.eval()
    with _all_differentiable(parameters.values()):
        for sequence in _sequences(objective, batches, seed):
            here = to_device(with_facts(sequence), next(iter(totals.values())).device)
            own_seed = derive(seed, "fisher", int(sequence["index"]))
            loss = _loss(model, objective, here, kind, own_seed)
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for total, gradient in zip(totals.values(), gradients, strict=True):
                if gradient is not None:
                    total.addcmul_(gradient, gradient)
            sequences += 1
    if not sequences:
        raise ValueError("the Fisher information needs at least 1 sequence, got none")
    return {name: total / sequences for name, total in totals.items()}


def _sequences(objective: LanguageModel, batches: Iterable[Batch], seed: int) -> Iterator[Batch]:
    noise = ExampleNoise(seed, "fisher")
    for batch in batches:
        prepared = objective.prepare(batch, noise)
        for row in range(batch_size(prepared)):
            yield {key: value[row : row + 1] for key, value in prepared.items()}


def _loss(
    model: TransferModel, objective: LanguageModel, sequence: Batch, kind: str, seed: int
) -> Tensor:
    encoded = Encoding(model, sequence)
    if kind == "true":
        generator = torch.Generator().manual_seed(seed)
        sequence = objective.with_drawn_targets(model, sequence, encoded, generator)
    return objective.loss_sums(model, sequence, encoded)["loss"]


@contextmanager
def _all_differentiable(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let every parameter have a gradient, whatever trains in the current stage."""
    with ExitStack() as stack:
        for parameter in parameters:
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(True)  # noqa: FBT003 - torch names it otherwise for tensors
        yield
