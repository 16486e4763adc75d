"""A model as an ONNX graph, which is checked against the model before it is written."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError
from transfer_cli.interop.files import dump_json
from transfer_cli.interop.onnx_check import compare
from transfer_cli.interop.onnx_modules import Graph, graph_of
from transfer_cli.interop.vocabulary import FILE, LAYOUTS, SPECIAL_TOKENS
from transfer_cli.model.added import merge, unmerge
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective

GRAPH = "model.onnx"
FACTS = "onnx.json"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def write_onnx(
    model: TransferModel,
    objective: Objective | None,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    layout: str | None = None,
) -> float:
    """Write `model.onnx`, `tokenizer.json` and `onnx.json`; return the largest difference found.

    The graph takes `input_ids` and `attention_mask` (1 at real tokens, 0 at padding), of a model
    with several segments also `token_type_ids`; each is `[batch, length]` int64, padded on the
    right, any batch and any length up to the model's positions. It gives float32: of a classifier
    `logits` `[batch, labels]`, of a language model `logits` `[batch, length, vocabulary]`, of a
    model without a head `hidden` `[batch, length, width]`. Edits that can be merged are merged into
    their matrices. Weights of more than 1.5 GB are in a file of their own, `model.onnx.data`.

    `onnx.json` holds what else a program must know to use it:

    =============  =========================================================================
    `inputs`       names, in order
    `output`       name
    `labels`       names of the classes, in the order of their logits; [] without classes
    `positions`    longest input in tokens, special ones included
    `pad`          padding token
    `special`      numbers of the tokens pad, unk, cls, sep, mask
    `layout`       a text A among its special tokens, for example "cls A sep"
    `pair_layout`  the same for two texts A and B: B and what follows it are segment 1, all before
                   it is segment 0; null for a language model
    =============  =========================================================================

    Args:
        model: On the CPU, in float32. It is in evaluation mode afterwards, otherwise unchanged.
        objective: Bound; None to write hidden states.
        tokenizer: The model's.
        folder: An empty folder.
        layout: See the table. None: that of labelled texts, or for a language model that of lines
            to pretrain on.

    Raises:
        ConfigError: A package is missing, or the model has no head that a graph can end with.
        CheckpointError: The graph does not compute what the model does.
    """
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise ConfigError(
            "format=onnx needs the packages onnx, onnxscript and onnxruntime; "
            "pip install 'transfer-cli[onnx]'"
        )
    graph = graph_of(model, objective).eval()
    model.eval()
    merged = merge(model)
    try:
        with _quiet():
            _export(graph, model.backbone.shape.positions, folder / GRAPH)
    finally:
        unmerge(model, merged)
    largest = compare(folder / GRAPH, graph.output, model, objective)
    tokenizer.save(folder / FILE)
    direction = "causal" if model.backbone.causal else "bidirectional"
    usual, pair = LAYOUTS["labelled" if graph.with_pairs else "lines", direction]
    if not graph.with_pairs and tokenizer.sep == tokenizer.cls:
        usual = "A"  # its one special token is between documents
    facts = {
        "inputs": list(graph.inputs),
        "output": graph.output,
        "labels": list(objective.info.labels if objective else ()),
        "positions": model.backbone.shape.positions,
        "pad": tokenizer.pad,
        "special": {name: getattr(tokenizer, name) for name in SPECIAL_TOKENS},
        "layout": usual if layout is None else layout,
        "pair_layout": pair if graph.with_pairs else None,
    }
    dump_json(folder / FACTS, facts)
    return largest


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about its own inside: a user cannot act on them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


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
            output_names=[graph.output],
            dynamic_shapes=(sizes,) * len(example),
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export has returned no program")
    _forget_origin(program.model)
    program.save(path)
    # By path, since a graph of over 2 GB cannot be checked in memory.
    onnx.checker.check_model(path, full_check=True)


def _forget_origin(model: Any) -> None:
    """Drop the lines and paths of our source that the exporter notes at every node."""
    nodes = list(model.graph.all_nodes())
    outputs = (value for node in nodes for value in node.outputs)
    values = (*model.graph.inputs, *model.graph.initializers.values(), *outputs)
    for each in (*nodes, *values, model.graph, model):
        each.metadata_props.clear()
