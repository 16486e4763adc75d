"""Losses that draw vectors of texts together, and push others apart.

Legend: B batch, N examples of a step, K texts of an example, M candidates, D width, Z sizes.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import Batch, Counts, Sums, batch_size
from transfer_cli.data.split import TextStats
from transfer_cli.errors import CheckpointError, ConfigError, above_zero
from transfer_cli.metrics import Metric
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import Answering
from transfer_cli.objectives.base import Encoding, ExampleResults, TaskInfo
from transfer_cli.tasks.regression import format_number

ERROR = Metric("mse", higher_is_better=False)
"""The squared distance of a pair's cosine from its score, which is 1 where there is none."""

_CORRELATIONS = (
    Metric("spearman", higher_is_better=True, headline=True),
    Metric("pearson", higher_is_better=True),
)
_RETRIEVAL = (
    Metric("mrr", higher_is_better=True, unit="fraction", headline=True),
    Metric("recall_at_1", higher_is_better=True, unit="fraction"),
    Metric("recall_at_10", higher_is_better=True, unit="fraction"),
    Metric("ndcg_at_10", higher_is_better=True, unit="fraction"),
)


def multiple_negatives_loss(vectors_NKD: Tensor, text_NK: Tensor, scale: float) -> Tensor:
    """Return the cross-entropy of each anchor's own text among those of all examples, `[N]`.

    The logits are cosines times `scale`, the candidates the second texts of all examples, and
    their third ones where they are there (Henderson et al. 2017, section 4.4; van den Oord et al.
    2018). The anchor itself, its own text once more and what belongs to an equal anchor are no
    negatives.

    Args:
        text_NK: The number of each text, equal for equal texts, below 0 where there is none.
    """
    unit_NKD = F.normalize(vectors_NKD, dim=-1)
    candidates_MD = unit_NKD[:, 1:].transpose(0, 1).flatten(0, 1)
    logits_NM = scale * unit_NKD[:, 0] @ candidates_MD.T
    anchor_N1, text_M = text_NK[:, :1], text_NK[:, 1:].T.flatten()
    own_N = torch.arange(len(text_NK), device=text_NK.device)
    is_own_NM = own_N[:, None] == torch.arange(len(text_M), device=own_N.device)
    belongs_NM = (text_M == anchor_N1) | (text_M == text_NK[:, 1:2])
    belongs_NM[:, : len(own_N)] |= text_NK[:, 0] == anchor_N1
    is_out_NM = (belongs_NM | (text_M < 0)) & ~is_own_NM
    return F.cross_entropy(logits_NM.masked_fill(is_out_NM, -torch.inf), own_N, reduction="none")


def cosent_loss(cosine_N: Tensor, score_N: Tensor, scale: float) -> Tensor:
    """Return log(1 + sum of exp(scale (cos_j - cos_i)) over i, j with score_i > score_j).

    CoSENT (Su 2022). It is a loss of all examples together.
    """
    higher_NN = score_N[:, None] > score_N[None, :]
    differences_NN = scale * (cosine_N[None, :] - cosine_N[:, None])
    wrong = differences_NN.masked_fill(~higher_NN, -torch.inf).flatten()
    return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0)


@dataclass(eq=False, repr=False)
class Contrastive(Answering):
    """A loss of the vectors of texts, which are what `transfer embed` writes.

    It compares all examples of a step with each other: those of all micro-batches and processes.

    Args:
        loss: `multiple_negatives`: pairs belong together, see `multiple_negatives_loss`; of pairs
            with scores `cosent`, see `cosent_loss`, or `cosine`: the squared difference of cosine
            and score (Reimers and Gurevych 2019). auto: what goes with the data, of scores cosent.
        scale: What cosines are multiplied by, 1 / temperature.
        pooling: See `pooling.pool`; auto: as the model that it starts from says, else the mean.
        normalize: Whether vectors are written with length 1; None: as that model says, else not.
        matryoshka: Sizes; the loss is the sum of those of so many first numbers of each vector,
            and of all (Kusupati et al. 2022).
    """

    task: ClassVar[str] = "similarity"  # type: ignore[misc]
    metrics: ClassVar[tuple[Metric, ...]] = (ERROR,)

    loss: Literal["auto", "multiple_negatives", "cosent", "cosine"] = "auto"
    scale: float = 20.0
    pooling: Literal["auto", "cls_first", "cls_last", "mean", "max", "concat"] = "auto"
    normalize: bool | None = None
    matryoshka: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        above_zero("scale", self.scale)
        if any(count < 1 for count in self.matryoshka):
            raise ValueError(f"matryoshka must be sizes of 1 or more, got {list(self.matryoshka)}")

    @property
    def compares(self) -> tuple[str, ...]:
        """See `Objective`; a squared difference is of one pair alone."""
        return {"multiple_negatives": ("texts",), "cosent": ("value",), "cosine": ()}[self._loss]

    @property
    def _has_scores(self) -> bool:
        return bool(getattr(self.info.task, "scored", False))

    @property
    def _loss(self) -> str:
        if self.loss != "auto":
            return self.loss
        return "cosent" if self._has_scores else "multiple_negatives"

    def task_of(
        self, task: Any, *, words: Mapping[str, str], lines: bool, before_text: int | None
    ) -> Any:
        return replace(task, sizes=self.matryoshka)

    def inherit_options(self, options: Mapping[str, Any]) -> None:
        """Make vectors as the model that it starts from does, where it is not said how."""
        if self.pooling == "auto" and options.get("pooling", "auto") != "auto":
            if options["pooling"] not in get_args(Pooling):
                raise CheckpointError(
                    f"init_from: its vectors are {options['pooling']!r} of states"
                )
            self.pooling = options["pooling"]
        if self.normalize is None:
            self.normalize = options.get("normalize")

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        if info.main is not None:
            raise ConfigError(
                f"losses.{info.name}: a loss that compares the examples of a step is the main one; "
                "take objective=contrastive, and others as further losses"
            )
        if (self._loss == "multiple_negatives") == self._has_scores:
            there = "pairs with scores" if self._has_scores else "pairs that belong together"
            choose = "cosent or cosine" if self._has_scores else "multiple_negatives"
            raise ConfigError(
                f"objective.loss: {self._loss} does not go with {there}, which the data are; "
                f"take {choose}, or auto"
            )

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return none: the vectors are the backbone's."""
        width = backbone.shape.width * (3 if self.pooling == "concat" else 1)
        if any(count >= width for count in self.matryoshka):
            raise ConfigError(
                f"objective.matryoshka: {list(self.matryoshka)} are to be smaller than a vector, "
                f"which has {width} numbers"
            )
        return {}

    def finalize_options(self, model: TransferModel, trains: Set[str]) -> dict[str, Any]:
        options = super().finalize_options(model, trains)
        return {**options, "pooling": self.vector_pooling, "normalize": bool(self.normalize)}

    @property
    def vector_pooling(self) -> Pooling:
        """How the states of a text's tokens become its vector."""
        return "mean" if self.pooling == "auto" else self.pooling

    def pooling_of(self, model: TransferModel) -> Pooling:
        return self.vector_pooling

    # --- the loss --------------------------------------------------------------------------

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the vector of each text in float32, `[B, K, D]`; those that are missing are 0."""
        vectors = encoded.pooled(self.vector_pooling).float()
        vectors_BKD = vectors.unflatten(0, (batch_size(batch), -1))
        missing = batch["texts"].shape[1] - vectors_BKD.shape[1]
        return F.pad(vectors_BKD, (0, 0, 0, missing))

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of each of the examples, which are all of a step, `[N]`."""
        losses = [self._vector_losses(part, batch) for part in self._prefixes(outputs)]
        return torch.stack(losses).sum(0)

    def _prefixes(self, vectors_NKD: Tensor) -> list[Tensor]:
        """Return the vectors, and their first numbers, as many as each of the sizes."""
        return [vectors_NKD, *(vectors_NKD[..., :count] for count in self.matryoshka)]

    def _vector_losses(self, vectors_NKD: Tensor, batch: Batch) -> Tensor:
        if self._loss == "multiple_negatives":
            return multiple_negatives_loss(vectors_NKD, batch["texts"], self.scale)
        cosine_N = F.cosine_similarity(vectors_NKD[:, 0], vectors_NKD[:, 1], dim=-1)
        score_N = batch["value"].float()
        if self._loss == "cosine":
            return (cosine_N - score_N).square()
        return cosent_loss(cosine_N, score_N, self.scale).expand(len(cosine_N))

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the sum of `losses`, whose gradient the step may have computed already."""
        outputs = self.outputs(model, batch, encoded)
        if "output_gradient" not in batch:
            return {"loss": self.losses(outputs, batch).sum()}
        product = (outputs * batch["output_gradient"]).sum()
        return {"loss": batch["output_loss"].sum() + product - product.detach()}

    # --- measures and answers --------------------------------------------------------------

    def _cosines(self, outputs: Tensor) -> Tensor:
        """Return the cosine of the first two texts, of whole vectors and of sizes, `[B, Z]`."""
        cosines = [
            F.cosine_similarity(part[:, 0], part[:, 1], dim=-1) for part in self._prefixes(outputs)
        ]
        return torch.stack(cosines, dim=1)

    def _expected(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return what the cosine of each pair should be, `[B]`: its score, or 1."""
        ones_B = torch.ones_like(outputs[:, 0, 0])
        return batch["value"].to(ones_B) if "value" in batch else ones_B

    def _errors(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the squared distance of each cosine from what is expected, `[B]`."""
        return (self._cosines(outputs)[:, 0] - self._expected(outputs, batch)).square()

    def tallies(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the summed error, which unlike `losses` is that of each pair alone."""
        return {"loss": self._errors(outputs, batch).sum()}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        outputs = self._cached_outputs(model, batch, encoded)
        errors_B = self._errors(outputs, batch)
        return ExampleResults(errors_B, self.targets(batch), self.results(outputs, batch))

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        return {ERROR.name: float(totals["loss"]) / max(1, counts["loss"])}

    def answer_metrics(self) -> tuple[Metric, ...]:
        """Return the correlations with scores, or how well anchors find their texts."""
        info = getattr(self, "info", None)  # metrics are asked for before there is one
        return _CORRELATIONS if getattr(info and info.task, "scored", False) else _RETRIEVAL

    def answers(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return `cosine`, `[B, Z]`."""
        return {"cosine": self._cosines(outputs)}

    def results(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return `cosine` and `expected`; of pairs without scores also `vectors`, to compare."""
        results = {**self.answers(outputs, batch), "expected": self._expected(outputs, batch)}
        return results if "value" in batch else {**results, "vectors": outputs}

    def display_pairs(self, outputs: Any, batch: Batch) -> Iterable[tuple[str, str]]:
        cosine_B, expected_B = self._cosines(outputs)[:, 0], self._expected(outputs, batch)
        both = zip(expected_B.tolist(), cosine_B.tolist(), strict=True)
        return [(format_number(expected), format_number(cosine)) for expected, cosine in both]
