"""The folder of an ONNX export, read again: a model whose passes are those of its graph.

Legend: B batch, T positions, N outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.data.tokenizer import Tokenizer, library_errors
from transfer_cli.data.tokenizer_file import load_tokenizer
from transfer_cli.errors import CheckpointError, ConfigError, pip_install, raised_as
from transfer_cli.interop.vocabulary import TOKENIZER_FILE
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import ModelDescription, parse_description
from transfer_cli.safe_files import UnreadableError, read_json

GRAPH = "model.onnx"
FACTS = "onnx.json"

HIDDEN = "last_hidden_state"
"""The output of a model without a head."""


@dataclass(frozen=True)
class GraphFolder:
    """A graph, and what it was made of.

    Args:
        description: Of the model; its edits are in the graph.
        segments: How many it tells apart.
        length: How many tokens of a text it reads.
        mean: What was added to the head's outputs, and
        scale: what they were multiplied by before, to be answers that need nothing else.
    """

    folder: Path
    description: ModelDescription
    tokenizer: Tokenizer
    segments: int
    length: int
    outputs: tuple[str, ...]
    mean: float
    scale: float

    @property
    def has_head(self) -> bool:
        """Whether it answers; else it gives hidden states."""
        return self.outputs != (HIDDEN,)

    def model(self, heads: Sequence[str]) -> TransferModel:
        """Return the graph as a model, with heads of these names."""
        backbone = cast("Backbone", _GraphBackbone(self))
        return TransferModel(backbone, {name: _PassThroughHead() for name in heads})


def is_graph_folder(folder: Path) -> bool:
    """Return whether `export format=onnx` wrote a folder."""
    return (folder / FACTS).is_file()


def open_graph(folder: Path, key: str) -> GraphFolder:
    """Return what lies in a folder, without loading the graph."""
    path = folder / FACTS
    with raised_as(CheckpointError, f"{key}: {path}: ", OSError, ValueError, UnreadableError):
        facts = read_json(path)
    again = facts.get("again")
    if not isinstance(again, dict) or not {"model", "template"} <= again.keys():
        raise CheckpointError(
            f"{key}: {path} does not say all that the graph was trained for (again), as earlier "
            "versions did not; export the run anew"
        )
    output = facts.get("output")
    names: list[Any] = output if isinstance(output, list) else [output]
    numbers = [facts.get("length"), again.get("segments"), again.get("mean"), again.get("scale")]
    if not all(isinstance(n, str) for n in names) or not all(
        isinstance(n, int | float) for n in numbers
    ):
        raise CheckpointError(f"{key}: {path} is damaged; export the run anew")
    description = parse_description(path, lambda: again["model"])
    tokenizer_file = folder / TOKENIZER_FILE
    tokenizer = load_tokenizer(tokenizer_file)
    if tokenizer.hash != description.tokenizer_hash:
        raise CheckpointError(f"{key}: {tokenizer_file} is another tokenizer than the graph's")
    # The file's own template is for others, which know no rules of ours for what is around a text.
    with library_errors(f"{key}: {path}: the template is none"):
        tokenizer = tokenizer.with_template(again["template"])
    length, segments, mean, scale = cast("list[Any]", numbers)
    return GraphFolder(
        folder, description, tokenizer, segments, length, tuple(names), mean, scale
    )  # fmt: skip


class _GraphBackbone(nn.Module):
    """Stands for a backbone: what it returns as the last hidden states are the graph's outputs."""

    shape: BackboneShape

    def __init__(self, graph: GraphFolder) -> None:
        super().__init__()
        self.shape, self.vocabulary = graph.description.shape, graph.description.vocabulary
        self.causal, self.num_segments = self.shape.direction == "causal", graph.segments
        self.token_embedding = nn.Embedding(0, 1)  # heads are given it, and these read nothing
        self._graph = graph
        self._session = open_session(graph.folder / GRAPH)

    def forward(
        self,
        tokens_BT: Tensor,
        mask_BT: Tensor,
        segment_BT: Tensor | None = None,
        *,
        padded: bool = True,
        packing: Any = None,
        layers: Any = None,
        **others: Any,
    ) -> list[Tensor]:
        """See `Backbone.forward`; a text's own output stands at each of its positions."""
        if extras := [name for name, value in others.items() if value is not None]:
            raise CheckpointError(
                f"run: {self._graph.folder} holds an ONNX graph, which reads whole texts alone (it "
                f"has no {extras[0].partition('_B')[0]}); take the run itself, or its export with "
                "format=hf"
            )
        inputs = {"input_ids": tokens_BT, "attention_mask": mask_BT.long()}
        if self.num_segments > 1:
            zeros_BT = torch.zeros_like(tokens_BT)
            inputs["token_type_ids"] = zeros_BT if segment_BT is None else segment_BT
        outputs = run_session(self._session, self._graph.outputs, inputs).to(tokens_BT.device)
        if (self._graph.mean, self._graph.scale) != (0, 1):
            outputs = (outputs - self._graph.mean) / self._graph.scale
        if outputs.dim() < 3:
            outputs = outputs[:, None].expand(-1, tokens_BT.shape[1], -1)
        return [outputs if packing is None else packing.pack(outputs)] * len(layers or (0,))


class _PassThroughHead(nn.Module):
    """Stands for any head: the answers are there."""

    pooling: Pooling = "cls_first"

    def forward(self, outputs: Tensor, *others: Any) -> Tensor:
        return outputs

    def summed_loss(
        self, logits_NV: Tensor, table: Tensor, target_N: Tensor, on_logits: Any = None
    ) -> Tensor:
        if on_logits is not None:
            on_logits(logits_NV, slice(None))
        return F.cross_entropy(logits_NV.float(), target_N, reduction="sum")


def open_session(path: Path) -> Any:
    """Return what computes a graph, with as many threads as torch has."""
    if find_spec("onnxruntime") is None:
        raise ConfigError(f"run: {path} needs the package onnxruntime: {pip_install('onnx')}")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has no class of its own that all of its errors are of
        raise CheckpointError(f"run: {path} is no ONNX graph that runs: {error}") from error


def run_session(session: Any, names: Sequence[str], inputs: Mapping[str, Tensor]) -> Tensor:
    """Return what a graph gives; those of several outputs are the last dimension."""
    arrays = session.run([*names], {name: tensor.cpu().numpy() for name, tensor in inputs.items()})
    parts = [torch.from_numpy(part) for part in arrays]
    return parts[0] if len(parts) == 1 else torch.stack(parts, -1)
