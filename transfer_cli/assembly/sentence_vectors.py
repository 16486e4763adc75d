"""A vector for each text: the last hidden states of its tokens, pooled.

Legend: N texts, B texts of a batch, T positions, D width.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.assembly.finished_run import OpenedModel, check_one_stack
from transfer_cli.assembly.model import direction_of
from transfer_cli.batch import to_device, with_facts
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.engine.evaluation import index_batches, inference_batch_size
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import ConfigError, one_of
from transfer_cli.interop.sentence_folder import SentenceModules, sentence_modules
from transfer_cli.model.pooling import Pooling, pool
from transfer_cli.objectives.base import Encoding
from transfer_cli.tasks.similarity.contrastive import Contrastive


class SentenceVectors:
    """Makes vectors by a model.

    Args:
        pooling: How a text's states become one, see `pooling.pool`; auto: as they were trained, or
            as the folder of a sentence-transformers model says (Reimers and Gurevych 2019), else
            their mean.
        normalize: Whether to divide vectors by their length; None: as these say, else not.
        batch: Texts that pass through the model at once, or auto.

    Attributes:
        width: How many numbers a vector has.
        kept: How many tokens of a text are read, and the key that says so.
        num_cut: How many texts have lost some.
    """

    def __init__(
        self,
        opened: OpenedModel,
        precision: Precision,
        pooling: str = "auto",
        *,
        normalize: bool | None = None,
        batch: int | str = "auto",
    ) -> None:
        one_of("pooling", pooling, ("auto", *get_args(Pooling)))
        if opened.start.graph is not None and opened.start.graph.has_head:
            raise ConfigError(
                f"run: {opened.path} is an ONNX graph that gives answers, and vectors are made of "
                "hidden states; export the run with head=false"
            )
        check_one_stack(opened)
        modules = SentenceModules("mean", normalize=False, length=None, lowercase=False)
        self._is_contrastive = isinstance(opened.objective, Contrastive)
        if isinstance(opened.objective, Contrastive):
            pooled_by, is_unit = opened.objective.vector_pooling, bool(opened.objective.normalize)
            modules = replace(modules, pooling=pooled_by, normalize=is_unit)
        if pooling == "auto":
            modules = sentence_modules(opened.start.folder) or modules
        self.pooling = modules.pooling if pooling == "auto" else cast(Pooling, pooling)
        self.normalize = modules.normalize if normalize is None else normalize
        self.batch = inference_batch_size(batch, opened.model, precision.device)
        self.width = opened.model.backbone.shape.width * (3 if self.pooling == "concat" else 1)
        self._opened, self._precision = opened, precision
        kept = [(opened.length, "data.length")]
        self.kept = min(kept + ([(modules.length, "max_seq_length")] if modules.length else []))
        self.num_cut = 0
        self._modules = modules
        by_template = getattr(opened.start.task, "by_template", False)
        self._layout = "template" if by_template else direction_of(opened.model.backbone.shape)

    def encode(self, examples: Sequence[Example]) -> Tensor:
        """Return the vectors of texts (or pairs), `[N, D]` in float32 on the CPU."""
        read, prompt = str.lower if self._modules.lowercase else str, self._modules.prompt
        examples = [
            replace(row, text=read(prompt + row.text), pair=row.pair and read(row.pair))
            for row in examples
        ]
        model, device = self._opened.model, self._precision.device
        data = encode_texts(examples, self._opened.start.tokenizer, self.kept[0], self._layout, {})
        self.num_cut += data.num_cut
        vectors_ND = torch.empty(len(data), self.width)
        for rows in index_batches(data, data.lengths.argsort(kind="stable"), self.batch):
            view = to_device(with_facts(data.batch(rows)), device)
            with torch.inference_mode(), self._precision.context():
                encoding = Encoding(model, view)
                states_BTD = encoding.top if self._is_contrastive else encoding.states[-1]
                pooled_BD = pool(states_BTD, view["mask"], self.pooling).float().cpu()
            vectors_ND[torch.from_numpy(rows)] = pooled_BD
        return F.normalize(vectors_ND, dim=1) if self.normalize else vectors_ND
