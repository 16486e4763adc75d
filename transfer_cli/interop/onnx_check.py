"""Whether an ONNX graph computes what its model does.

Legend: B batch, T positions, V vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.errors import CheckpointError
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.language_model import HEAD

TOLERANCE = 1e-4
"""How far an output x may be from the model's, as a share of 1 + |x|: float32, added up in another
order, through dozens of layers."""

CHECKED = ((1, 1), (3, 1), (1, 5), (3, 5), (4, 64), (1, 1024))
"""Texts and positions of the batches that are compared; of a shorter model, all its positions."""


@dataclass(frozen=True)
class CheckedBatch:
    """A batch, and what the model makes of it.

    Args:
        inputs: By the graph's names, in its order.
        expected: The model's own output.
        counts: `[B, T]` bool for outputs at every position: where they mean something.
    """

    inputs: dict[str, Tensor]
    expected: Tensor
    counts: Tensor | None


def samples_of(model: TransferModel, objective: Objective | None) -> list[CheckedBatch]:
    """Return batches of several shapes, and what the model itself makes of them."""
    positions = model.backbone.shape.positions
    shapes = sorted({(rows, min(length, positions)) for rows, length in CHECKED})
    return [_sample(model, objective, rows, length) for rows, length in shapes]


def _sample(
    model: TransferModel, objective: Objective | None, rows: int, length: int
) -> CheckedBatch:
    """Return a batch, padded on the right, and what the model itself makes of it."""
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
        top_BTD = encoded.top
        if objective is None:
            return CheckedBatch(inputs, top_BTD, mask_BT)
        logits_BTV = model.heads[HEAD](top_BTD, model.backbone.token_embedding.weight)
        return CheckedBatch(inputs, logits_BTV, mask_BT)


def compare(path: Path, output: str, samples: Iterable[CheckedBatch]) -> float:
    """Return the largest absolute difference between what the graph gives and what it should.

    Raises:
        CheckpointError: One is too large, or the shapes are not the same.
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
        largest = max(largest, _difference(found, sample))
    return largest


def _difference(found: npt.NDArray[np.float32], sample: CheckedBatch) -> float:
    expected = sample.expected.numpy()
    where = f"a batch of {' x '.join(map(str, sample.inputs['input_ids'].shape))} tokens"
    if found.shape != expected.shape:
        raise CheckpointError(
            f"format=onnx: the graph gives {list(found.shape)} for {where}, the model "
            f"{list(expected.shape)}; nothing is written, try other versions of torch and onnx"
        )
    if sample.counts is not None:
        # States at padded positions mean nothing.
        real = sample.counts.numpy()
        found, expected = found[real], expected[real]
    apart = np.abs(found - expected)
    # Asked this way round, since nothing is true of a difference that is no number.
    if not (apart <= TOLERANCE * (1 + np.abs(expected))).all():
        raise CheckpointError(
            f"format=onnx: the graph's outputs differ from the model's by up to {apart.max():.2g} "
            f"for {where}, more than {TOLERANCE:g} of 1 + |output|; nothing is written, try other "
            "versions of torch and onnxruntime"
        )
    return float(apart.max())
