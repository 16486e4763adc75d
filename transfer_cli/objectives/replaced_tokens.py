"""Replaced-token detection, and its ablations (ELECTRA, Clark et al. 2020).

Legend: B batch, T positions, N positions with a loss, D width, V vocabulary.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import (
    IGNORE,
    Batch,
    Counts,
    Sums,
    rows_compared,
    rows_with_target,
    select_rows,
)
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError, RunError, above_zero, at_least, raised_as
from transfer_cli.metrics import LOSS, Metric, perplexity
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.borrowing import borrowing_model, narrowed_shape
from transfer_cli.model.heads import LanguageModelHead, TokenDiscriminator
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.vocabulary_loss import summed_copy_loss
from transfer_cli.objectives.base import Encoding, ModelPart, Objective, TaskInfo
from transfer_cli.objectives.language_model import (
    HEAD,
    draw_tokens,
    exp_or_inf,
    language_model_head,
)
from transfer_cli.objectives.masked_lm import MaskedLM, Masks
from transfer_cli.seeds import ExampleNoise

Mode = Literal["detect", "all_tokens", "detect_selected", "replace"]

GENERATOR, DISCRIMINATOR, COPY = "generator", "discriminator", "copy"
"""The names of its heads, beside that of a language model."""

_MASKING = ("rate", "whole_word", "spans", "masks", "copies")
"""The options that are those of `MaskedLM`."""

LOGIT_BINS, MAX_LOGIT = 4096, 16.0
"""Answers are counted by their logit, in so many equal parts of plus and minus so much."""


@dataclass(eq=False, repr=False)
class ReplacedTokens(Objective):
    """A small generator fills masked positions; the model learns from the text that this makes.

    The generator is a masked language model that reads the model's own embeddings, and trains with
    it. Tokens are drawn from what it says, which returns no gradient. Where a draw is the original
    token, that counts as original. What the model learns from the corrupted text is the mode's:

    - detect: which tokens are not original, at every real position; special tokens included.
    - detect_selected: the same, at the positions that were selected alone.
    - replace: the original tokens at those positions.
    - all_tokens: the original tokens at every real position, by a language model that may copy the
      token that it reads (`model.vocabulary_loss.summed_copy_loss`).

    The finished model has no generator; the run keeps it beside.

    Args:
        mode: See above.
        rate: Share of eligible tokens to select, as in `MaskedLM`; likewise the next four.
        whole_word: Select words.
        spans: Select spans of words.
        masks: dynamic, or static.
        copies: Of static masks.
        keep: Share of the selected that the generator reads as they are (0.15 in the released
            code); of the others it reads the mask token.
        width: Of the generator: its share of the model's heads, and so of its width. None: there is
            no generator, as in a published model, and nothing to learn from.
        depth: Of the generator: its share of the model's blocks.
        temperature: The generator's logits are divided by it before tokens are drawn.
        generator_weight: Of the generator's loss.
        detect_weight: Of the detection loss, which is small; other modes weigh 1.
    """

    direction = "bidirectional"
    keeps_tokens = False
    predicts_tokens = True

    mode: Mode = "detect"
    rate: float = 0.15
    whole_word: bool = field(default=False, kw_only=True)
    spans: bool = field(default=False, kw_only=True)
    masks: Masks = field(default="dynamic", kw_only=True)
    copies: int = field(default=10, kw_only=True)
    keep: float = field(default=0.0, kw_only=True)
    width: float | None = field(default=0.25, kw_only=True)
    depth: float = field(default=1.0, kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)
    generator_weight: float = field(default=1.0, kw_only=True)
    detect_weight: float = field(default=50.0, kw_only=True)

    def __post_init__(self) -> None:
        for name, share in (("width", self.width), ("depth", self.depth)):
            if share is not None and not 0 < share <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, got {share}")
        if not 0 <= self.keep < 1:
            raise ValueError(f"keep must be in [0, 1), got {self.keep}")
        above_zero("temperature", self.temperature)
        at_least("generator_weight", self.generator_weight, 0)
        above_zero("detect_weight", self.detect_weight)
        self.masking = MaskedLM(**{name: getattr(self, name) for name in _MASKING})
        self.detects = self.mode in ("detect", "detect_selected")
        self.published_as = "replaced_tokens" if self.detects else "language_model"

    @property
    def term(self) -> str:
        """The name of the model's own term."""
        return "detect" if self.detects else "restore"

    @property
    def weights(self) -> Mapping[str, float]:
        weight = self.detect_weight if self.detects else 1.0
        return {GENERATOR: self.generator_weight, self.term: weight}

    @property
    def head(self) -> str | None:
        """That of detection; a language model's is shared."""
        return DISCRIMINATOR if self.detects else None

    @property
    def training_heads(self) -> Set[str]:
        return set() if self.width is None else {GENERATOR}

    def parts_of(self, shape: BackboneShape) -> Mapping[str, ModelPart]:
        """Return the generator, as a masked language model."""
        if self.width is None:
            return {}
        node = {
            "_target_": f"{MaskedLM.__module__}.{MaskedLM.__qualname__}",
            **{name: getattr(self.masking, name) for name in _MASKING},
        }
        return {GENERATOR: ModelPart(narrowed_shape(shape, self.width, self.depth), node)}

    def check_start(self, model: TransferModel, inherited: Set[str]) -> None:
        """Refuse what cannot train, or could not be written."""
        if self.width is None:
            raise ConfigError(
                f"{self.info.key}.width: null is no generator, whose tokens the model learns from; "
                "give a share of the model's heads, such as 0.25"
            )
        if model.backbone.new_rows is not None or model.backbone.new_segments is not None:
            raise ConfigError(
                f"{self.info.key}: the generator would be left without the embeddings that "
                "adaptation.edits adds to those of the model; leave the edit out"
            )

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.masking.setup(info)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        with raised_as(ConfigError, f"{self.info.key}."):
            parts = self.parts_of(backbone.shape)
        modules: dict[str, nn.Module] = {
            n: borrowing_model(p.shape, backbone) for n, p in parts.items()
        }
        if self.detects:
            return {**modules, DISCRIMINATOR: TokenDiscriminator(backbone.shape)}
        modules[HEAD] = LanguageModelHead(backbone.shape, backbone.vocabulary)
        if self.mode == "all_tokens":
            modules[COPY] = nn.Linear(backbone.shape.width, 1)
        return modules

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the generator's view: selected tokens are masked, `target` holds them.

        `compared` says where the model's own loss is, and `draw` holds a number in [0, 1) for each
        position, by which the generator's token is drawn.
        """
        tokens_BT = batch["tokens"]
        selected_BT, action_BT, _ = self.masking.select(batch, noise)
        is_hidden_BT = selected_BT & (action_BT >= self.keep)
        everywhere = self.mode in ("detect", "all_tokens")
        return {
            **batch,
            "tokens": tokens_BT.masked_fill(is_hidden_BT, self.info.vocabulary.mask),
            "target": torch.where(selected_BT, tokens_BT, IGNORE),
            "compared": batch["mask"] if everywhere else selected_BT,
            "draw": noise.uniform(batch["index"], tokens_BT.shape[1], 1, part=1).squeeze(-1),
        }

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of selected positions, and of those with a loss of the model's own."""
        selected = int((batch["target"] != IGNORE).sum())
        return {GENERATOR: selected, self.term: int(batch["compared"].sum())}

    def head_rows(self, batch: Batch) -> dict[str, int]:
        counts = self.counts(batch)
        rows = dict.fromkeys((DISCRIMINATOR, HEAD, COPY), counts[self.term])
        return {GENERATOR: counts[GENERATOR], **rows}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        return self._forward(model, batch)[0]

    def metric_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Sums:
        """Return both terms, the number of replaced tokens, and of detection its answers counted.

        `answers` is `[2, LOGIT_BINS]`: how many original and replaced tokens got which logit.
        """
        sums, replaced_N, logit_N = self._forward(model, batch)
        tallies = {**sums, "replaced": replaced_N.sum()}
        if logit_N is None:
            return tallies
        share_N = (logit_N.clamp(-MAX_LOGIT, MAX_LOGIT) + MAX_LOGIT) / (2 * MAX_LOGIT)
        bin_N = (share_N * LOGIT_BINS).long().clamp(max=LOGIT_BINS - 1)
        answers = torch.zeros(2 * LOGIT_BINS, dtype=torch.long, device=logit_N.device)
        answers.index_add_(0, bin_N + LOGIT_BINS * replaced_N, torch.ones_like(bin_N))
        return {**tallies, "answers": answers.view(2, LOGIT_BINS)}

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        means = {term: float(totals[term]) / max(1, counts[term]) for term in self.weights}
        loss = sum(float(totals[term]) for term in self.weights) / max(1, counts[self.term])
        replaced = float(totals["replaced"]) / max(1, counts[self.term])
        generator = {"replaced": replaced, "generator_perplexity": exp_or_inf(means[GENERATOR])}
        if not self.detects:
            return {"loss": loss, "restored_perplexity": exp_or_inf(means[self.term]), **generator}
        return {
            "loss": loss,
            "auc": area_under_curve(totals["answers"]),
            "detect_loss": means[self.term],
            "detect_excess": means[self.term] - binary_entropy(replaced),
            **generator,
        }

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics.

        `loss` is the sum of both losses, unweighted, a position that the model is asked about: what
        it takes to say which tokens are replaced, and what was there. Detection alone gets easier
        with a worse generator, so no run is judged by it. `auc` is how often a replaced token looks
        more suspicious than an original one, `detect_excess` the detection loss less that of who
        knows nothing but the share of `replaced` tokens.
        """
        loss, perplexity_of = (
            replace(LOSS, per_example=False),
            partial(replace, perplexity("restored_perplexity"), headline=False, per_example=False),
        )
        generator_metrics: tuple[Metric, ...] = (perplexity_of(),)
        if self.detects:
            generator_metrics = (
                Metric("auc", higher_is_better=True, unit="fraction"),
                replace(loss, name="detect_loss"),
                Metric("detect_excess", higher_is_better=False),
            )
        replaced = Metric("replaced", higher_is_better=False, unit="fraction")
        generator = perplexity_of(name="generator_perplexity")
        return replace(loss, headline=True), *generator_metrics, replaced, generator

    def _corrupt(self, model: TransferModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the generator's summed loss, and the text with its draws, `[B, T]`."""
        if GENERATOR not in model.heads:
            raise RunError(
                f"{self.info.key}: there is no generator to replace tokens, which a run keeps "
                "beside its model and published models lack; adapt it to a task (transfer finetune)"
            )
        generator = cast("TransferModel", model.heads[GENERATOR])
        rows_N = rows_with_target(batch)
        draw_N = select_rows(batch["draw"].flatten(), rows_N)
        drawn_N = torch.empty_like(rows_N)

        def draw(logits_RV: Tensor, rows: slice) -> None:
            drawn_N[rows] = draw_tokens(logits_RV.detach() / self.temperature, draw_N[rows])

        loss = language_model_head(generator).summed_loss(
            select_rows(Encoding(generator, batch).top.flatten(0, 1), rows_N),
            model.backbone.token_embedding.weight,
            select_rows(batch["target"].flatten(), rows_N),
            draw,
        )
        tokens_BT = batch["tokens"]
        return loss, tokens_BT.flatten().index_copy(0, rows_N, drawn_N).view_as(tokens_BT)

    def _forward(
        self, model: TransferModel, batch: Batch
    ) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Return both terms, which of the N tokens are replaced, and the logit of each.

        There are none where the tokens are to be restored.
        """
        generator_loss, read_BT = self._corrupt(model, batch)
        rows_N = rows_compared(batch)
        original_BT = torch.where(batch["target"] == IGNORE, batch["tokens"], batch["target"])
        original_N = select_rows(original_BT.flatten(), rows_N)
        replaced_N = select_rows(read_BT.flatten(), rows_N) != original_N
        top_BTD = Encoding(model, {**batch, "tokens": read_BT}).top
        top_ND = select_rows(top_BTD.flatten(0, 1), rows_N)
        logit_N = None
        if self.detects:
            logit_N = model.heads[DISCRIMINATOR](top_ND).float()
            is_one_N = replaced_N.to(logit_N.dtype)
            loss = F.binary_cross_entropy_with_logits(logit_N, is_one_N, reduction="sum")
        else:
            loss = self._restoration_loss(model, top_ND, original_N, ~replaced_N)
        return {GENERATOR: generator_loss, self.term: loss}, replaced_N, logit_N

    def _restoration_loss(
        self, model: TransferModel, top_ND: Tensor, original_N: Tensor, is_read_N: Tensor
    ) -> Tensor:
        head, table_VD = language_model_head(model), model.backbone.token_embedding.weight
        if self.mode == "replace":
            return head.summed_loss(top_ND, table_VD, original_N)
        gate_N = model.heads[COPY](top_ND).squeeze(-1)
        return summed_copy_loss(
            *head.linear_inputs(top_ND, table_VD), gate_N, original_N, is_read_N
        )


def binary_entropy(share: float) -> float:
    """Return the loss in nats of who knows nothing but how large a share is."""
    return -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)


def area_under_curve(counts_2N: Tensor) -> float:
    """Return the area under the receiver operating characteristic: 0.5 says nothing.

    Args:
        counts_2N: How many negatives and positives have each score, in rising order; equal scores
            count as half.
    """
    negative_N, positive_N = counts_2N.double()
    pairs = float(negative_N.sum() * positive_N.sum())
    if not pairs:
        return 0.5
    below_N = negative_N.cumsum(0) - negative_N / 2
    return float((positive_N * below_N).sum()) / pairs
