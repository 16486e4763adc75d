"""`transfer export`: a run as a folder that others load without us."""

import logging
from pathlib import Path
from typing import Literal

import torch
from omegaconf import DictConfig
from torch import Tensor

from transfer_cli.assembly.finished_run import (
    config_of,
    load_trained,
    longest_input,
    objective_of,
)
from transfer_cli.assembly.init_from import Pretrained, open_pretrained
from transfer_cli.commands.export.cards import card_of
from transfer_cli.commands.typed_paths import check_new
from transfer_cli.config.build import build
from transfer_cli.errors import CheckpointError, ConfigError, one_of
from transfer_cli.interop.family import LANGUAGE_MODEL, SEQUENCE_CLASSIFICATION
from transfer_cli.interop.saving import Ours, write_folder
from transfer_cli.model.added import added_parameters, merge
from transfer_cli.model.weights import check_finite
from transfer_cli.objectives.base import Objective
from transfer_cli.objectives.classification import Classification
from transfer_cli.runs.atomic import new_folder, writing
from transfer_cli.terminal import Entry, Page, Piece, print_out

log = logging.getLogger(__name__)

FORMATS = ("hf", "onnx")


def export(config: DictConfig) -> None:
    """Write the model of `run` to the new folder `to`, whole or not at all."""
    one_of("format", config.format, FORMATS)
    if config.family is not None and config.format != "hf":
        raise ConfigError(f"family: format={config.format} writes none; leave family= out")
    to = Path(config.to).expanduser()
    check_new(to)
    start = open_pretrained(config.run, "run", config.base)
    with writing(to), new_folder(to) as made:
        facts = (_write_hf if config.format == "hf" else _write_onnx)(config, start, made)
    print_out(
        Page(*(Entry([Piece(f"  {name}", "name")], [text], 12) for name, text in facts.items()))
    )


def _write_hf(config: DictConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    """Write a folder as Hugging Face's libraries do; return what to say about it."""
    head, classifier = _head(start) if config.head else (None, None)
    tensors, added = plain_tensors(start, keeps_head=config.head)
    own: Literal["labelled", "lines"] = "lines" if start.task is None else "labelled"
    ours = Ours(
        shape=start.description.shape,
        tensors=tensors,
        tokenizer=start.tokenizer,
        head=head,
        classifier=classifier,
        texts="published" if start.published is not None else own,
        length=_length(start),
        labels=start.description.labels,
        added=added,
    )
    own_family = start.published.family.model_type if start.published else None
    written = write_folder(ours, folder, config.family or own_family)
    card = card_of(start, written, config.to, ours.length)
    (folder / "README.md").write_text(card, encoding="utf-8")
    facts = {
        "written": config.to,
        "loads as": f"transformers.{written.architecture}",
        "card": f"{Path(config.to) / 'README.md'}: fill in its license",
    }
    if written.left_out:
        facts["left out"] = ", ".join(written.left_out)
    return facts


def _write_onnx(config: DictConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    """Write an ONNX graph; return what to say about it."""
    from transfer_cli.interop.onnx_graph import write_onnx

    objective, tensors = None, start.tensors()
    if config.head and _has_head(start):
        _head(start)  # refuses what others do not know
        objective = objective_of(start)
        model = load_trained(start, objective, tensors)
    else:
        model, _ = start.filled(tensors)
    causal = start.description.shape.direction == "causal"
    # A published model was trained with the layout of our labelled texts, not with that of lines.
    usual = "A" if causal else "cls A sep"
    layout = usual if start.published is not None else None
    largest = write_onnx(
        model.eval(), objective, start.tokenizer, folder, length=_length(start), layout=layout
    )
    return {
        "written": config.to,
        "checked": f"against torch in onnxruntime: outputs differ by at most {largest:.1e}",
    }


def _length(start: Pretrained) -> int:
    """Return the longest input: `predict`'s for labelled texts; a language model reads any."""
    if start.task is None:
        return start.description.shape.positions
    config = config_of(start)
    length = longest_input(start, config)
    if config is None and start.published is None:
        log.warning(
            "run: no config.yaml of a run lies beside %s, so whether texts were cut in training is "
            "not known; the export says %d tokens, the model's positions",
            start.folder,
            length,
        )
    return length


def _has_head(start: Pretrained) -> bool:
    """Return whether the head of what the model was trained for is there."""
    shape = start.description.shape
    tied = shape.tie_output and not shape.output_bias and not shape.output_transform
    head = "heads.lm." if start.task is None else f"heads.{start.task.head}."
    return (tied and start.task is None) or any(
        n.startswith(head) for n in start.tensors(values=False)
    )


def plain_tensors(
    start: Pretrained, *, keeps_head: bool
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a model's weights with every edit folded in that can be, and what the others are.

    Returns:
        The tensors, and what people call the part that each added one belongs to, both by name.
    """
    tensors = start.tensors()
    if not start.description.edits:
        return tensors, {}
    model, _ = start.filled(tensors)
    merge(model)
    new_rows, table = model.backbone.new_rows, model.backbone.token_embedding
    # A tied output reads the table, too, and there nothing was added.
    if new_rows is not None and (start.task is not None or not keeps_head):
        table.weight = torch.nn.Parameter(new_rows.added_to(table.weight))
        model.backbone.new_rows = None
    heads = {name: tensor for name, tensor in tensors.items() if name.startswith("heads.")}
    plain = {n: t.detach() for n, t in model.state_dict().items()} | heads
    check_finite(plain, start.weights)  # a product of finite numbers may be none
    return plain, {name: part.describe() for name, part in added_parameters(model).items()}


def _head(start: Pretrained) -> tuple[str, Classification | None]:
    """Return what families call the head's kind, and the classification that trained it, if any.

    Raises:
        CheckpointError: No published model has such a head.
    """
    if start.task is None:
        return LANGUAGE_MODEL, None
    kind = start.task.export_head
    if kind is None:
        raise CheckpointError(
            f"run: it was trained for {start.task.name}, which no published head is for; "
            "head=false writes the backbone alone"
        )
    objective: Objective = build(start.description.objective, "objective", Objective)
    if isinstance(objective, Classification):
        return kind, objective
    if kind == SEQUENCE_CLASSIFICATION:
        raise CheckpointError(
            f"run: {type(objective).__name__} is no classification that other libraries know; "
            "head=false writes the backbone alone"
        )
    return kind, None
