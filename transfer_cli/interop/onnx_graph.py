"""A model as an ONNX graph, which is checked against the model before it is written.

Legend: B batch, T positions, V vocabulary.
"""

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.errors import CheckpointError, ConfigError, pip_install
from transfer_cli.interop.files import dump_json
from transfer_cli.interop.graph_folder import FACTS, GRAPH, open_session, run_session
from transfer_cli.interop.onnx_modules import Graph, graph_of
from transfer_cli.interop.targets import Ours
from transfer_cli.interop.vocabulary import SPECIAL_TOKENS, layouts_of
from transfer_cli.model.added import merge, unmerge
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.terminal import silence_logging

PACKAGES = ("onnx", "onnxscript", "onnxruntime")

TOLERANCE = 1e-4
"""The largest difference between an output x and the model's, as a share of 1 + |x|: float32 sums
in another order, through dozens of layers."""

CHECKED_SIZES = ((1, 1), (3, 1), (1, 5), (3, 5), (4, 64), (1, 1024))
"""The batches to compare: how many texts, of how many positions if the model has as many."""


def write_onnx(
    model: TransferModel,
    objective: Objective | None,
    ours: Ours,
    folder: Path,
    *,
    layout: str | None = None,
    again: Mapping[str, Any] | None = None,
) -> float:
    """Write `model.onnx` and `onnx.json`; return the largest difference found.

    The graph takes `input_ids` and `attention_mask` (1 at real tokens, 0 at padding), of a model
    with several segments also `token_type_ids`; each is `[batch, length]` int64, padded on the
    right, any batch and any length up to the model's positions. It gives float32: of a classifier
    `logits` `[batch, labels]`, of a language model `logits` `[batch, length, vocabulary]`, of a
    head of tokens `logits` `[batch, length, outputs]`, of answers in a text `start_logits` and
    `end_logits` `[batch, length]`, of a model without a head `last_hidden_state` `[batch, length,
    width]`: names that optimum has. Edits that can be merged are merged into their matrices.
    Weights of more than 1.5 GB are in a file of their own, `model.onnx.data`.

    `onnx.json` holds what else a program must know to use it:

    =============  =========================================================================
    `inputs`       names, in order
    `output`       name, or of answers in a text the two names
    `labels`       names of the classes, in the order of their logits; [] without classes
    `positions`    longest input that the graph takes, in tokens, special ones included
    `length`       longest input of the run, which cuts longer texts to it
    `cut`          how: a text at its end (`side` right), the longer one of two first (`strategy`
                   longest_first), or the first one alone (only_first)
    `pad`          padding token
    `special`      numbers of the tokens pad, unk, cls, sep, mask
    `layout`       a text A among its special tokens, for example "cls A sep"
    `pair_layout`  the same for two texts A and B: B and what follows it are segment 1, all before
                   it is segment 0; null for a language model
    `again`        what this program reads the folder with, see `graph_folder`
    =============  =========================================================================

    The tokenizers library does what `length`, `cut` and the layouts say, where `tokenizer.json`
    does: `Tokenizer.from_file(...).encode(text)`, with `encode_special_tokens = True`, since a
    special token's name in a text is plain text. A language model's file cuts nothing.

    Args:
        model: On the CPU, in float32. It is in evaluation mode afterwards, otherwise unchanged.
        objective: Bound; None to write hidden states.
        ours: Its tokenizer, and the longest input of the run.
        layout: See the table. None: that of labelled texts, or for a language model that of lines
            to pretrain on.
    """
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise ConfigError(
            "format=onnx needs the packages onnx, onnxscript and onnxruntime: "
            f"{pip_install('onnx')}"
        )
    graph = graph_of(model, objective).eval()
    model.eval()
    merged = merge(model)
    try:
        with _quiet():
            _export(graph, model.backbone.shape.positions, folder / GRAPH)
    finally:
        unmerge(model, merged)
    largest = compare_outputs(folder / GRAPH, graph.outputs, model, objective)
    direction = "causal" if model.backbone.causal else "bidirectional"
    tokenizer, cut = ours.tokenizer, ours.truncate
    usual, pair = layouts_of("labelled" if graph.with_pairs else "lines", direction, tokenizer)
    facts = {
        "inputs": list(graph.inputs),
        "output": graph.outputs[0] if len(graph.outputs) == 1 else graph.outputs,
        "labels": list(objective.info.labels if objective else ()),
        "positions": ours.shape.positions,
        "length": ours.length,
        "cut": {"side": "right", "strategy": "only_first" if cut == "first" else cut},
        "pad": tokenizer.pad,
        "special": {name: getattr(tokenizer, name) for name in SPECIAL_TOKENS},
        "layout": usual if layout is None else layout,
        "pair_layout": pair if graph.with_pairs else None,
        "again": again,
    }
    dump_json(folder / FACTS, facts)
    return largest


def graph_size(folder: Path) -> int:
    """Return how many bytes a graph has, with its weights."""
    return sum(file.stat().st_size for file in folder.glob(f"{GRAPH}*"))


def quantize(path: Path) -> None:
    """Put whole numbers of 8 bits for the weights of a graph, a scale for each column.

    What they multiply is rounded as it comes (onnxruntime's dynamic quantization).
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(path)
    # It turns matrices round, which the sizes noted by torch's exporter then contradict.
    del graph.graph.value_info[:]
    with _quiet():
        quantize_dynamic(graph, path, weight_type=QuantType.QInt8, per_channel=True)
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about its own inside: a user cannot act on them."""
    handlers = [*logging.root.handlers]
    try:
        with silence_logging(), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.root.handlers[:] = handlers  # onnxruntime's quantization adds one


def _export(graph: Graph, positions: int, path: Path) -> None:
    """Write the graph and check that it is well formed."""
    import onnx

    # The exporter takes a size of 1 in the example for a constant.
    shape = (2, min(positions, 3))
    example = tuple(torch.ones(shape, dtype=torch.long) for _ in graph.inputs)
    sizes: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}
    if positions > 1:
        sizes[1] = torch.export.Dim("length", min=1, max=positions)
    with torch.no_grad():
        program = torch.onnx.export(
            graph,
            example,
            input_names=graph.inputs,
            output_names=[*graph.outputs],
            dynamic_shapes=(sizes,) * len(example),
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export has returned no program")
    _clear_metadata(program.model)
    program.save(path)
    # By path, since a graph of over 2 GB cannot be checked in memory.
    onnx.checker.check_model(path, full_check=True)


def _clear_metadata(model: Any) -> None:
    """Drop the lines and paths of our source that the exporter notes at every node."""
    nodes = list(model.graph.all_nodes())
    outputs = (value for node in nodes for value in node.outputs)
    values = (*model.graph.inputs, *model.graph.initializers.values(), *outputs)
    for part in (*nodes, *values, model.graph, model):
        part.metadata_props.clear()


def compare_outputs(
    path: Path, names: Sequence[str], model: TransferModel, objective: Objective | None
) -> float:
    """Return the largest difference between the outputs of a graph and of its model."""
    session = open_session(path)
    positions = model.backbone.shape.positions
    largest = 0.0
    for rows, length in sorted({(rows, min(length, positions)) for rows, length in CHECKED_SIZES}):
        batch = _random_batch(model, rows, length)
        inputs = {"input_ids": batch["tokens"], "attention_mask": batch["mask"].long()}
        if "segment" in batch:
            inputs["token_type_ids"] = batch["segment"]
        expected = _model_output(model, objective, batch)
        computed = run_session(session, names, inputs)
        largest = max(largest, _difference(computed, expected, batch["mask"]))
    return largest


def _random_batch(model: TransferModel, rows: int, length: int) -> Batch:
    """Return a batch of any tokens, padded on the right."""
    generator = torch.Generator().manual_seed(rows * length)
    vocabulary, segments = model.backbone.vocabulary, model.backbone.num_segments
    tokens_BT = torch.randint(vocabulary, (rows, length), generator=generator)
    real_B = torch.randint(1, length + 1, (rows,), generator=generator)
    real_B[0] = length
    batch = {"tokens": tokens_BT, "mask": torch.arange(length) < real_B[:, None]}
    if segments > 1:
        batch["segment"] = torch.randint(segments, (rows, length), generator=generator)
    return batch


@torch.no_grad()
def _model_output(model: TransferModel, objective: Objective | None, batch: Batch) -> Tensor:
    encoded = Encoding(model, batch)
    if isinstance(objective, SequenceObjective):
        return objective.text_outputs(model, encoded)
    if objective is None:
        return encoded.top
    if objective.token_head is not None:
        answers_BTC: Tensor = model.heads[objective.token_head](encoded.top)
        return answers_BTC
    logits_BTV: Tensor = model.heads[HEAD](encoded.top, model.backbone.token_embedding.weight)
    return logits_BTV


def _difference(computed: Tensor, expected: Tensor, mask_BT: Tensor) -> float:
    where = f"a batch of {' x '.join(map(str, mask_BT.shape))} tokens"
    if computed.shape != expected.shape:
        raise CheckpointError(
            f"format=onnx: the graph gives {list(computed.shape)} for {where}, the model "
            f"{list(expected.shape)}; nothing is written, try other versions of torch and onnx"
        )
    if expected.ndim == 3:  # an output for each token; padding has none that matters
        computed, expected = computed[mask_BT], expected[mask_BT]
    apart = (computed - expected).abs()
    # Not `any(apart > ...)`: of NaN, every comparison is false.
    if not (apart <= TOLERANCE * (1 + expected.abs())).all():
        raise CheckpointError(
            f"format=onnx: the graph's outputs differ from the model's by up to {apart.max():.2g} "
            f"for {where}, more than {TOLERANCE:g} of 1 + |output|; nothing is written, try other "
            "versions of torch and onnxruntime"
        )
    return float(apart.max())
