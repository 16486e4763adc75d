"""Whether an ONNX graph computes what its model does.

Legend: B batch, T positions, V vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transfer_cli.errors import CheckpointError
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.language_model import HEAD

TOLERANCE = 1e-4
"""The largest difference between an output x and the model's, as a share of 1 + |x|: float32 sums
in another order, through dozens of layers."""

CHECKED = ((1, 1), (3, 1), (1, 5), (3, 5), (4, 64), (1, 1024))
"""The batches to compare: how many texts, of how many positions if the model has as many."""


@dataclass(frozen=True)
class CheckedBatch:
    """A batch, and the model's output.

    Args:
        inputs: By the graph's names, in its order.
        expected: The model's output.
        counts: `[B, T]` bool, the positions to compare; None: an output is for a text.
    """

    inputs: dict[str, Tensor]
    expected: Tensor
    counts: Tensor | None


def samples_of(model: TransferModel, objective: Objective | None) -> list[CheckedBatch]:
    """Return batches of several shapes, with the model's outputs."""
    positions = model.backbone.shape.positions
    shapes = sorted({(rows, min(length, positions)) for rows, length in CHECKED})
    return [_sample(model, objective, rows, length) for rows, length in shapes]


def _sample(
    model: TransferModel, objective: Objective | None, rows: int, length: int
) -> CheckedBatch:
    """Return a batch, padded on the right, with the model's output."""
    generator = torch.Generator().manual_seed(rows * length)
    vocabulary, segments = model.backbone.vocabulary, model.backbone.shape.segments
    tokens_BT = torch.randint(vocabulary, (rows, length), generator=generator)
    real_B = torch.randint(1, length + 1, (rows,), generator=generator)
    real_B[0] = length
    mask_BT = torch.arange(length) < real_B[:, None]
    inputs = {"input_ids": tokens_BT, "attention_mask": mask_BT.long()}
    batch = {"tokens": tokens_BT, "mask": mask_BT}
    if segments > 1:
        batch["segment"] = torch.randint(segments, (rows, length), generator=generator)
        inputs["token_type_ids"] = batch["segment"]
    with torch.no_grad():
        encoded = Encoding(model, batch)
        if isinstance(objective, Classification):
            return CheckedBatch(inputs, objective.class_logits(model, batch, encoded), None)
        output = encoded.top
        if objective is not None:
            output = model.heads[HEAD](output, model.backbone.token_embedding.weight)
        return CheckedBatch(inputs, output, mask_BT)


def compare(path: Path, output: str, samples: Iterable[CheckedBatch]) -> float:
    """Return the largest absolute difference between the outputs of the graph and of the model.

    Raises:
        CheckpointError: It is too large, or the shapes are not the same.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    largest = 0.0
    for sample in samples:
        given = {name: tensor.numpy() for name, tensor in sample.inputs.items()}
        (found,) = session.run([output], given)
        largest = max(largest, _difference(torch.from_numpy(found), sample))
    return largest


def _difference(found: Tensor, sample: CheckedBatch) -> float:
    expected = sample.expected
    where = f"a batch of {' x '.join(map(str, sample.inputs['input_ids'].shape))} tokens"
    if found.shape != expected.shape:
        raise CheckpointError(
            f"format=onnx: the graph gives {list(found.shape)} for {where}, the model "
            f"{list(expected.shape)}; nothing is written, try other versions of torch and onnx"
        )
    if sample.counts is not None:
        found, expected = found[sample.counts], expected[sample.counts]
    apart = (found - expected).abs()
    # Not `any(apart > ...)`: of NaN, every comparison is false.
    if not (apart <= TOLERANCE * (1 + expected.abs())).all():
        raise CheckpointError(
            f"format=onnx: the graph's outputs differ from the model's by up to {apart.max():.2g} "
            f"for {where}, more than {TOLERANCE:g} of 1 + |output|; nothing is written, try other "
            "versions of torch and onnxruntime"
        )
    return float(apart.max())
