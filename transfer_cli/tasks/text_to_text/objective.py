"""The loss of a text that is made from another.

Legend: B texts, T positions, R texts to be answered, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError
from transfer_cli.metrics import LOSS, Metric, perplexity
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import LanguageModel, exponential
from transfer_cli.objectives.replies import replies, without_special
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.text_to_text.corruption import SpanCorruption
from transfer_cli.tasks.text_to_text.task import TextToTextTask, ends


class PrefixLM(CausalLM):
    """-log p(next token | source, target so far), over the tokens of targets and their ends.

    Of a source all positions see all of it (Raffel et al. 2020, section 3.2.1; Dong et al. 2019),
    unless its data say otherwise. Backbones of either direction can do it.

    With `corrupt` it makes sources and targets itself, of any text (`SpanCorruption`): to pretrain,
    to adapt to a text, or as a further loss. Of a text for which they have no room, each visit
    takes another part.

    Args:
        generate: Whether evaluations have the model answer as well, the likeliest token first, and
            measure how right that is; else what was written is measured alone.
        corrupt: The share of a text's tokens to hide, in (0, 1); None: targets come with the data.
        corrupt_length: Tokens of a hidden span in the mean.
    """

    task: str | None = "text to text"
    metrics: ClassVar[tuple[Metric, ...]] = (perplexity("perplexity"), LOSS)
    direction = None
    predicts = LanguageModel.predicts

    def __init__(
        self, *, generate: bool = True, corrupt: float | None = None, corrupt_length: float = 3.0
    ) -> None:
        self.corruption = None if corrupt is None else SpanCorruption(corrupt, corrupt_length)
        self.generate = generate and self.corruption is None
        if self.corruption is not None:
            self.task, self.keeps_tokens = None, False

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return the language-model head."""
        if backbone.shape.is_sparse and (
            self.corruption is not None or getattr(self.info.task, "prefix", False)
        ):
            raise ConfigError(
                f"model.attention: {backbone.shape.attention} looks back alone, and here all "
                "positions of a source see all of it; take attention=full or window, or data with "
                "data.prefix=false"
            )
        if self.corruption is not None:
            self._begin, self._end = ends(self.info.vocabulary, causal=backbone.causal)
            self._room = backbone.shape.positions - len(self._begin) - 2
            _, spans = self.corruption.counts(self.corruption.longest(self._room))
            if spans >= len(self.info.vocabulary.sentinels):
                key = "objective" if self.info.name == "main" else f"losses.{self.info.name}"
                raise ConfigError(
                    f"{key}.corrupt: up to {spans} spans of a text are hidden, and the tokenizer "
                    f"has {len(self.info.vocabulary.sentinels)} sentinels, <extra_id_0> and so "
                    f"on; say tokenizer.sentinels={spans + 1}"
                )
        return super().modules(backbone)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Add `target`, the next token; with `corrupt` return the corrupted texts alone."""
        if self.corruption is None:
            return super().prepare(batch, noise)
        if "document" in batch:
            raise ConfigError(
                "data.documents=separate: corrupt hides spans of whole blocks; say cross"
            )
        length, vocabulary = batch["tokens"].shape[1], self.info.vocabulary
        draws_BT3 = noise.uniform(batch["index"], length, 3).numpy()
        # Where it does not end lines as well, the token of classes is no part of a text.
        is_text_BT = batch["mask"] & (batch["tokens"] != vocabulary.cls)
        is_text_BT = batch["mask"] if vocabulary.cls == vocabulary.sep else is_text_BT
        most = self.corruption.longest(self._room)
        rows = []
        for tokens_T, is_text_T, draws_T3 in zip(
            batch["tokens"], is_text_BT, draws_BT3, strict=True
        ):
            text = tokens_T[is_text_T].tolist()
            first = int(draws_T3[0, 2] * (max(0, len(text) - most) + 1))
            rows.append(
                self.corruption.source_and_target(
                    text[first : first + most], vocabulary.sentinels, draws_T3
                )
            )
        width = self.corruption.grown(min(length, most)) + len(self._begin) + 2
        return {"index": batch["index"], **self._laid_out(rows, width)}

    def _laid_out(self, rows: Sequence[tuple[list[int], list[int]]], width: int) -> Batch:
        """Return sources and targets as rows of `TextToTextTask`, all of the same width."""
        tokens, targets, prefixes, lengths = [], [], [], []
        for source, target in rows:
            first = [*self._begin, *source, self.info.vocabulary.sep]
            second = [*target, self._end] if target else []
            padding = width - len(first) - len(second)
            tokens.append([*first, *second, *[self.info.vocabulary.pad] * padding])
            before = [IGNORE] * (len(first) - 1)
            targets.append([*before, *second, *[IGNORE] * (padding + 1)])
            prefixes.append(len(first))
            lengths.append(len(first) + len(second))
        place_T, prefix_B = torch.arange(width), torch.tensor(prefixes)
        mask_BT = place_T < torch.tensor(lengths)[:, None]
        return {
            "tokens": torch.tensor(tokens),
            "mask": mask_BT,
            "segment": ((place_T >= prefix_B[:, None]) & mask_BT).long(),
            "prefix": prefix_B,
            "target": torch.tensor(targets),
        }

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the tokens of answers, `answer` `[B, most tokens of a target]`."""
        if self.corruption is not None:
            return {}
        task, vocabulary = self.info.task, self.info.vocabulary
        most = TextToTextTask.most_new(task, model.backbone.shape.positions)
        end = vocabulary.cls if model.backbone.causal else vocabulary.sep
        said = replies(
            model,
            batch["tokens"],
            batch["segment"],
            _begin(batch),
            most=most,
            pick=lambda logits: without_special(logits, vocabulary, end).argmax(1),
            prefix_R=batch.get("prefix"),
            segment=1,
        )
        return {"answer": said}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        """Return each text's summed cross-entropy, its number of targets, and its answer."""
        found = super().example_results(model, batch, encoded)
        if not self.generate:
            return found
        return replace(found, predicted=self.predictions(model, batch, encoded))

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return the perplexity of the targets, and the loss."""
        loss = float(totals["loss"]) / counts["loss"]
        return {"perplexity": exponential(loss), "loss": loss}

    def answer_metrics(self) -> tuple[Metric, ...]:
        """Return those of `TextToTextTask.scores`."""
        fraction: Literal["fraction"] = "fraction"
        return tuple(
            Metric(name, higher_is_better=True, unit=fraction)
            for name in (("exact_match", "rouge_l") if self.generate else ())
        )


def _begin(batch: Batch) -> Tensor:
    """Return where targets begin, `[B]`."""
    if "next_tokens" in batch:
        return 1 + (batch["next_tokens"] != IGNORE).int().argmax(1)
    return batch["mask"].sum(1)
