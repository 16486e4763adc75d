"""The loss of an answer's first and last token in a text.

Legend: B rows, T positions, D width, N best.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import Batch
from transfer_cli.errors import at_least
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.backbone import Backbone, initialise_plain
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import Answering
from transfer_cli.objectives.base import Encoding
from transfer_cli.tasks.span.windows import FIRST, NULL, OWN_FIRST, OWN_PAST, PAST

RULED_OUT = -1e9
"""The logit of a position that is no answer."""


@dataclass(eq=False, repr=False)
class SpanExtraction(Answering):
    """Cross-entropy of the positions of an answer's first and last token (Devlin et al. 2019).

    A linear layer scores each token as the first and as the last one of the answer; the loss is the
    mean of the two cross-entropies over the positions of a row. An answer's score is the sum of two
    logits, and so is that of no answer, at the row's special token.

    Args:
        mask_question: Whether only the text and the place of no answer can be chosen; else all
            positions can in the loss, as in BERT's code. Answers are in the text either way.
        n_best: How many first and last tokens of a window are combined, and how many answers are
            kept.
        longest_answer: Most tokens of an answer.
        null_threshold: A question has no answer if the score of none is more than this above that
            of the best one. `fit`: what is best for the validation questions at the end; until
            then 0. If all training questions have answers, so have all others.
    """

    task = "span"
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS,)
    task_metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("f1", higher_is_better=True, unit="percent", headline=True, per_example=True),
        Metric("exact_match", higher_is_better=True, unit="percent"),
    )

    mask_question: bool = field(default=True, kw_only=True)
    n_best: int = field(default=20, kw_only=True)
    longest_answer: int = field(default=30, kw_only=True)
    null_threshold: float | Literal["fit"] = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        at_least("n_best", self.n_best, 1)
        at_least("longest_answer", self.longest_answer, 1)

    @property
    def head(self) -> str:
        return "span" if self.info.name == "main" else f"span_{self.info.name}"

    @property
    def token_head(self) -> str:
        """Its head: it scores each token."""
        return self.head

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return a linear layer with two outputs: first and last."""
        linear = nn.Linear(backbone.shape.width, 2)
        initialise_plain(linear)
        return {self.head: linear}

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the scores of each position as first and as last of the answer, `[B, T, 2]`."""
        logits_BT2: Tensor = model.heads[self.head](encoded.top).float()
        allowed_BT = batch["mask"]
        if self.mask_question:
            place_T = torch.arange(allowed_BT.shape[1], device=allowed_BT.device)
            is_null_BT = place_T == batch["window"][:, NULL, None]
            allowed_BT = is_null_BT | _between(batch, FIRST, PAST)
        return torch.where(allowed_BT[..., None], logits_BT2, RULED_OUT)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs, batch["span"], reduction="none").mean(1)

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the best answers of each row, and the score of none.

        They are made of the N best first tokens among those that belong to the window and the N
        best last ones in its text.

        Returns:
            `score`, `start`, `end`: `[B, N]`, positions in the row; a score of -inf is no answer.
            `null`: `[B]`, less the threshold; -inf where there must be an answer.
        """
        start_BT, end_BT = outputs.unbind(2)
        count = min(self.n_best, start_BT.shape[1])
        start_BN, first_BN = _ruled(start_BT, batch, OWN_FIRST, OWN_PAST).topk(count)
        end_BN, last_BN = _ruled(end_BT, batch, FIRST, PAST).topk(count)
        length_BNN = last_BN[:, None, :] - first_BN[:, :, None] + 1
        fits_BNN = (length_BNN >= 1) & (length_BNN <= self.longest_answer)
        pairs_BNN = start_BN[:, :, None] + end_BN[:, None, :]
        pairs_BNN = torch.where(fits_BNN, pairs_BNN, -torch.inf)
        score_BN, pair_BN = pairs_BNN.flatten(1).topk(min(self.n_best, count**2))
        # Equally many whatever the row is padded to.
        missing = (0, self.n_best - score_BN.shape[1])
        null_B1 = batch["window"][:, NULL, None]
        null_B = (start_BT.gather(1, null_B1) + end_BT.gather(1, null_B1)).squeeze(1)
        return {
            "score": F.pad(score_BN, missing, value=-torch.inf),
            "start": F.pad(first_BN.gather(1, pair_BN // count), missing),
            "end": F.pad(last_BN.gather(1, pair_BN % count), missing),
            "null": null_B - self._threshold(),
        }

    def _threshold(self) -> float:
        if not getattr(self.info.task, "unanswerable", False):
            return float("inf")
        if self.null_threshold == "fit":
            return float(self.info.task.fitted.get("null_threshold", 0.0))
        return float(self.null_threshold)

    @property
    def fits_answers(self) -> bool:  # type: ignore[override]
        """Whether the task is to choose the threshold at the end of the run."""
        return self.null_threshold == "fit" and self.info.task.unanswerable

    def shown(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[list[int], list[int]]]:
        """Return each row's answer and the predicted one; of a row without one, none."""
        best = self.answers(outputs, batch)
        predicted_B2 = torch.stack([best["start"][:, 0], best["end"][:, 0]], 1)
        is_none_B1 = (best["null"] > best["score"][:, 0])[:, None]
        predicted_B2 = torch.where(is_none_B1, batch["window"][:, NULL, None], predicted_B2)
        for tokens, *spans in zip(
            batch["tokens"].tolist(), batch["span"].tolist(), predicted_B2.tolist(), strict=True
        ):
            wanted, predicted = (tokens[first : last + 1] for first, last in spans)
            yield wanted, predicted


def _between(batch: Batch, first: int, past: int) -> Tensor:
    """Return whether positions are between two columns of a row's window, `[B, T]`."""
    place_T = torch.arange(batch["tokens"].shape[1], device=batch["tokens"].device)
    return (place_T >= batch["window"][:, first, None]) & (place_T < batch["window"][:, past, None])


def _ruled(logits_BT: Tensor, batch: Batch, first: int, past: int) -> Tensor:
    return torch.where(_between(batch, first, past), logits_BT, -torch.inf)
