"""A model as an ONNX graph, which is checked against the model before it is there."""

import importlib.util
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError
from transfer_cli.interop.onnx_check import compare, samples_of
from transfer_cli.interop.onnx_modules import Graph, graph_of
from transfer_cli.interop.vocabulary import LAYOUTS
from transfer_cli.model.added import merge, unmerge
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective

GRAPH = "model.onnx"
FACTS = "onnx.json"
TOKENIZER = "tokenizer.json"

PACKAGES = ("onnx", "onnxscript", "onnxruntime")

TALKATIVE = ("torch.onnx", "onnxscript", "onnx_ir")
"""Loggers that tell what an exporter goes through."""


def write_onnx(
    model: TransferModel,
    objective: Objective | None,
    tokenizer: Tokenizer,
    labels: tuple[str, ...],
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
    their matrices. Weights of more than 1.5 GB lie beside the graph, in `model.onnx.data`.

    `onnx.json` holds what else a program must know to use it:

    =============  =========================================================================
    `inputs`       names, in order
    `output`       name
    `labels`       names of the classes, in the order of their logits; [] without classes
    `positions`    longest input in tokens, special ones included
    `pad`          token that fills up shorter texts
    `special`      numbers of the tokens pad, unk, cls, sep, mask
    `layout`       where special tokens stand around a text A, for example "cls A sep"
    `pair_layout`  the same for two texts A and B, where B and what follows it are of segment 1,
                   all before it of segment 0; null for a language model
    =============  =========================================================================

    Args:
        model: On the CPU, in float32; afterwards in evaluation mode and otherwise as before.
        objective: Bound; None for a model of which the hidden states are wanted.
        tokenizer: The model's.
        labels: See the table.
        folder: Made if it is missing. Nothing is left in it when something fails.
        layout: See the table. None: as labelled texts are laid out, or for a language model as text
            to pretrain on is, line by line.

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
    samples = samples_of(model, objective)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".onnx-") as place:
        unfinished = Path(place)
        merged = merge(model)
        try:
            with _quiet():
                _export(graph, model.backbone.shape.positions, unfinished / GRAPH)
        finally:
            unmerge(model, merged)
        largest = compare(unfinished / GRAPH, graph.output, samples)
        tokenizer.save(unfinished / TOKENIZER)
        facts = _facts(model, graph, tokenizer, labels, layout)
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        (unfinished / FACTS).write_text(text, encoding="utf-8")
        for file in sorted(unfinished.iterdir()):
            file.replace(folder / file.name)
    return largest


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the exporter says of its own inside: nobody here can act on it."""
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _export(graph: Graph, positions: int, path: Path) -> None:
    """Write the graph and check that it is well formed."""
    import onnx

    # Sizes of 1 in the example would be taken for constants.
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
    # By its path: a graph of over 2 GB cannot be checked in memory.
    onnx.checker.check_model(path, full_check=True)


def _forget_origin(model: Any) -> None:
    """Drop the lines and paths of our source that the exporter notes at every node."""
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        values += node.outputs
    for each in (*values, model.graph, model):
        each.metadata_props.clear()


def _facts(
    model: TransferModel,
    graph: Graph,
    tokenizer: Tokenizer,
    labels: tuple[str, ...],
    layout: str | None,
) -> dict[str, Any]:
    texts = "labelled" if graph.with_pairs else "lines"
    usual, pair = LAYOUTS[texts, "causal" if model.backbone.causal else "bidirectional"]
    if not graph.with_pairs and tokenizer.sep == tokenizer.cls:
        usual = "A"  # its one special token stands between documents
    return {
        "inputs": list(graph.inputs),
        "output": graph.output,
        "labels": list(labels),
        "positions": model.backbone.shape.positions,
        "pad": tokenizer.pad,
        "special": {
            name: getattr(tokenizer, name) for name in ("pad", "unk", "cls", "sep", "mask")
        },
        "layout": usual if layout is None else layout,
        "pair_layout": pair if graph.with_pairs else None,
    }
