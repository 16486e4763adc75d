"""What a model is exported as: the one answer of `plan`, of a run's first lines and of `export`."""

from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.init_from import drop_training_heads
from transfer_cli.assembly.model import apply_edits, build_model
from transfer_cli.config.build import build
from transfer_cli.data.chat_template import ChatTemplate
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.interop.family import SEQUENCE_CLASSIFICATION
from transfer_cli.interop.onnx_modules import graph_of
from transfer_cli.interop.targets import GRAPHS, Ours, Texts, target_of
from transfer_cli.model.added import added_parameters, unmerged_parameters
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import ModelDescription
from transfer_cli.objectives.base import Loss, Objective, TaskInfo
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.objectives.sequence import POOLER, SequenceObjective
from transfer_cli.tasks.base import Task


def export_description(plan: Blueprint) -> str:
    """Return in words what `transfer export` will make of a finished run, or why it will not."""
    description, tokenizer = plan.description(), plan.data.tokenizer
    task = plan.data.info["main"].task
    objective: Objective = build(description.objective, "objective", Objective)
    objective.setup(TaskInfo(tokenizer, description.labels, task=task))
    with without_weights():
        model = build_model(
            description.shape, description.vocabulary, [Loss("main", objective)], seed=0
        )
        drop_training_heads(model, objective)
        apply_edits(model, description.edits, tokenizer)
        graph = ""
        with suppress(ConfigError):
            graph_of(model, objective)
            graph = ", or format=onnx"
        gone = plan.training_only_weights | model.state_dict().keys()
        tensors = plan.model.state_dict().items()
        heads = {n: t for n, t in tensors if n.startswith("heads.") and n not in gone}
        try:
            target = target_of(
                exportable_model(description, tokenizer, task, model, heads, head=True)
            )
        except CheckpointError as error:
            reason = str(error).removeprefix("run: ").removesuffix(GRAPHS)
            return f"{'format=onnx' if graph else 'not as it is'}; {reason}"
    return target.describe() + graph


def exportable_model(
    description: ModelDescription,
    tokenizer: Tokenizer,
    task: Task | None,
    model: TransferModel,
    heads: Mapping[str, Tensor] | None = None,
    *,
    head: bool,
    texts: Texts | None = None,
    length: int = 0,
    chat: ChatTemplate | None = None,
) -> Ours:
    """Return a model as `target_of` and `write_folder` ask for it.

    Args:
        task: What it was adapted to; None for a language model.
        model: With its edits. Those that can be merged are merged already, or the model is on the
            meta device: there a product would import torch's compiler, for seconds.
        heads: Tensors of heads that the model does not have.
        texts: See `Ours`; None: by what it was trained on.
    """
    kind, classifier = published_head(description, task) if head else (None, None)
    labels = description.labels if kind else ()
    if classifier is not None and task is not None and not labels:
        labels = task.fields[:1]
    new_rows, table = model.backbone.new_rows, model.backbone.token_embedding
    # A tied output reads the table, too, and there nothing was added.
    reads_table = head and (task is None or description.shape.has_encoder)
    if new_rows is not None and not reads_table:
        table.weight = torch.nn.Parameter(new_rows.with_offsets(table.weight))
        model.backbone.new_rows = None
    lasting = unmerged_parameters(model)
    merged = added_parameters(model).keys() - lasting.keys()
    tensors = {n: tensor.detach() for n, tensor in model.state_dict().items() if n not in merged}
    tensors |= heads or {}
    if classifier is not None and not classifier.pooler:  # which then nothing reads
        pooler = f"heads.{POOLER}."
        tensors = {n: tensor for n, tensor in tensors.items() if not n.startswith(pooler)}
    return Ours(
        shape=description.shape,
        tensors=scaled_to_units(tensors, classifier, task),
        tokenizer=tokenizer,
        head=kind,
        classifier=classifier,
        texts=texts or _text_kind(description, task),
        length=length,
        labels=labels,
        added=lasting,
        truncate="longest_first" if task is None else task.truncate,
        chat=chat,
    )


def _text_kind(description: ModelDescription, task: Task | None) -> Texts:
    if task is not None and task.chat_template is not None:
        return "published"  # its template writes all special tokens
    if task is not None or description.pairs:
        return "labelled"
    is_causal = description.shape.direction == "causal"
    # Documents stand between what its tokenizer puts there.
    return "published" if is_causal and description.lines in ("keep", "join") else "lines"


def scaled_to_units(
    tensors: Mapping[str, Tensor], objective: Objective | None, task: Task | None
) -> dict[str, Tensor]:
    """Return tensors whose head answers in the units of the data, and as sure as the run is.

    Others know no mean to add, and no temperature.
    """
    scaled, (mean, scale) = dict(tensors), unit_mean_and_scale(objective, task)
    layer = "heads.tags" if "heads.tags.weight" in scaled else "heads.class.linear"
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    # On the meta device a product would import torch's compiler.
    if (mean, scale) != (0.0, 1.0) and weight in scaled and not scaled[weight].is_meta:
        scaled[weight], scaled[bias] = scaled[weight] * scale, scaled[bias] * scale + mean
    return scaled


def unit_mean_and_scale(objective: Objective | None, task: Task | None) -> tuple[float, float]:
    """Return what is added to outputs for that, and what they are multiplied by before."""
    mean, scale = (
        objective.unit_of(task) if isinstance(objective, SequenceObjective) else (0.0, 1.0)
    )
    return mean, scale / (1.0 if task is None else task.temperature)


def published_head(
    description: ModelDescription, task: Task | None
) -> tuple[str | None, SequenceObjective | None]:
    """Return what families call the head's kind, and the classification that trained it, if any.

    Of a model that answers without one there is neither.
    """
    objective: Objective = build(description.objective, "objective", Objective)
    if task is None or description.shape.has_encoder:
        return objective.published_as, None
    kind = task.export_head
    if kind == "":
        return None, None
    if kind is None:
        raise CheckpointError(
            f"run: it was trained for {task.name}, which no published head is for; "
            "head=false writes the backbone alone"
        )
    if isinstance(objective, SequenceObjective) and task.head != HEAD:
        return kind, objective
    if kind == SEQUENCE_CLASSIFICATION:
        raise CheckpointError(
            f"run: {type(objective).__name__} is no classification that other libraries know; "
            "head=false writes the backbone alone"
        )
    return kind, None
