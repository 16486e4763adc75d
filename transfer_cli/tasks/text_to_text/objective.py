"""The loss of a text that is made from another.

Legend: B texts, T positions, R texts to be answered, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from torch import Tensor

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import LOSS, Metric, perplexity
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import LanguageModel, exponential
from transfer_cli.objectives.replies import replies, without_special
from transfer_cli.tasks.text_to_text.task import TextToTextTask


class PrefixLM(CausalLM):
    """-log p(next token | source, target so far), over the tokens of targets and their ends.

    Of a source all positions see all of it (Raffel et al. 2020, section 3.2.1; Dong et al. 2019),
    unless its data say otherwise. Backbones of either direction can do it.

    Args:
        generate: Whether evaluations have the model answer as well, the likeliest token first, and
            measure how right that is; else what was written is measured alone.
    """

    task = "text to text"
    direction = None
    predicts = LanguageModel.predicts

    def __init__(self, *, generate: bool = True) -> None:
        self.generate = generate

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the tokens of answers, `answer` `[B, most tokens of a target]`."""
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

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics; runs are judged by the perplexity."""
        return perplexity("perplexity"), LOSS

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
