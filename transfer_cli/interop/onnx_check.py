"""Whether an ONNX graph computes what its model does.

Legend: B batch, T positions, V vocabulary.
"""

from pathlib import Path

import torch
from torch import Tensor

from transfer_cli.batch import Batch
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


def compare(path: Path, output: str, model: TransferModel, objective: Objective | None) -> float:
    """Return the largest difference between the outputs of a graph and of its model.

    Raises:
        CheckpointError: It is too large, or the shapes are not the same.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    positions = model.backbone.shape.positions
    largest = 0.0
    for rows, length in sorted({(rows, min(length, positions)) for rows, length in CHECKED}):
        batch = _batch(model, rows, length)
        given = {"input_ids": batch["tokens"], "attention_mask": batch["mask"].long()}
        if "segment" in batch:
            given["token_type_ids"] = batch["segment"]
        (found,) = session.run([output], {name: tensor.numpy() for name, tensor in given.items()})
        expected = _output(model, objective, batch)
        largest = max(largest, _difference(torch.from_numpy(found), expected, batch["mask"]))
    return largest


def _batch(model: TransferModel, rows: int, length: int) -> Batch:
    """Return a batch of any tokens, padded on the right."""
    generator = torch.Generator().manual_seed(rows * length)
    vocabulary, segments = model.backbone.vocabulary, model.backbone.shape.segments
    tokens_BT = torch.randint(vocabulary, (rows, length), generator=generator)
    real_B = torch.randint(1, length + 1, (rows,), generator=generator)
    real_B[0] = length
    batch = {"tokens": tokens_BT, "mask": torch.arange(length) < real_B[:, None]}
    if segments > 1:
        batch["segment"] = torch.randint(segments, (rows, length), generator=generator)
    return batch


@torch.no_grad()
def _output(model: TransferModel, objective: Objective | None, batch: Batch) -> Tensor:
    encoded = Encoding(model, batch)
    if isinstance(objective, Classification):
        return objective.class_logits(model, batch, encoded)
    if objective is None:
        return encoded.top
    logits_BTV: Tensor = model.heads[HEAD](encoded.top, model.backbone.token_embedding.weight)
    return logits_BTV


def _difference(found: Tensor, expected: Tensor, mask_BT: Tensor) -> float:
    where = f"a batch of {' x '.join(map(str, mask_BT.shape))} tokens"
    if found.shape != expected.shape:
        raise CheckpointError(
            f"format=onnx: the graph gives {list(found.shape)} for {where}, the model "
            f"{list(expected.shape)}; nothing is written, try other versions of torch and onnx"
        )
    if expected.ndim == 3:  # an output for each token; padding has none that matters
        found, expected = found[mask_BT], expected[mask_BT]
    apart = (found - expected).abs()
    # Not `any(apart > ...)`: of NaN, every comparison is false.
    if not (apart <= TOLERANCE * (1 + expected.abs())).all():
        raise CheckpointError(
            f"format=onnx: the graph's outputs differ from the model's by up to {apart.max():.2g} "
            f"for {where}, more than {TOLERANCE:g} of 1 + |output|; nothing is written, try other "
            "versions of torch and onnxruntime"
        )
    return float(apart.max())
