"""Texts made from others: the record of the task, tables of them, the loss of their tokens.

===============  =====================================  ================================
direction        source and target                      segments
===============  =====================================  ================================
causal           source `sep` target `cls`              0 up to `sep`, then 1
bidirectional    `cls` source `sep` target `sep`        0 up to the first `sep`, then 1
encoder_decoder  (`cls`) source `sep` | start target    the row's parts are stacks' inputs,
                 `sep`                                  see `seq2seq.split_source_and_target`
===============  =====================================  ================================

What a target stands behind in a decoder says `Tokenizer.target_start`.

The prefix ends with the token before the target, which predicts its first token; the last token
ends the target.

Legend: B texts, T positions, R texts to be answered, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch, Counts, Sums
from transfer_cli.data.columns import source_column
from transfer_cli.data.encoded_task import EncodedRows, Truncate, have_answers, specials_around
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.split import TextStats
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.wanted import Chosen, Wanted
from transfer_cli.errors import ConfigError, at_least
from transfer_cli.metrics import LOSS, Metric, perplexity
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.shape import SettledDirection
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo
from transfer_cli.objectives.beam_search import BeamSearch
from transfer_cli.objectives.causal_lm import ACCURACY, CausalLM
from transfer_cli.objectives.language_model import LanguageModel, exp_or_inf
from transfer_cli.objectives.replies import Averaged, Continued, decode_until, mask_special_tokens
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.base import Answer, Direction, Encoded, Result, Rows, Task
from transfer_cli.tasks.scoring import rouge_l
from transfer_cli.tasks.table import Table, TableRow, nonempty_text
from transfer_cli.tasks.text_to_text import measures
from transfer_cli.tasks.text_to_text.corruption import build_noise


@dataclass(frozen=True, slots=True)  # there may be millions
class TextToTextExample:
    """A text, and the one that people made of it."""

    source: str
    target: str | None = None


class EncodedTexts(EncodedRows):
    """Sources as rows of tokens, with what was written after them if that is known."""

    tokenizer: Tokenizer
    end: int
    """The token that ends what is written."""

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text that a model wrote, whose tokens go on after its end."""
        return decode_until(list(tokens), self.tokenizer, self.end)


@dataclass(frozen=True)
class TextToTextTask(Task):
    """A text that is made from another.

    Args:
        prefix: Whether all of the source sees all of it; else it is read from left to right. A text
            stands before each source, such as "summarize: " (Raffel et al. 2020).
        target_length: The most tokens of a target with its end; None: half of an input.
        begins: Whether a causal model's token before texts stands before sources; not in old runs.
    """

    name, objective, head, example = "text to text", "prefix_lm", "lm", TextToTextExample
    fields, expected = ("answer",), "target"
    files = f"{__name__}.TextPairsTable"
    scores_answers = combines = True

    prefix: bool | str = True
    target_length: int | None = None
    begins: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.target_length is not None:
            at_least("target_length", self.target_length, 2)
        if isinstance(self.prefix, str) and not self.prefix.strip():
            raise ConfigError("data.prefix is empty; give true, false, or a text for each source")

    def text_column(self, names: Sequence[str], name: str) -> str | None:
        return source_column(names)

    def read(self, record: Record, text: str, pair: str | None, name: str) -> TextToTextExample:
        return TextToTextExample(text_of(record, text, name))

    def texts(self, example: TextToTextExample) -> tuple[str, ...]:
        return (example.source,) if example.target is None else (example.source, example.target)

    def equal_by(self, example: TextToTextExample) -> tuple[str, ...]:
        return (example.source,)

    def unlabelled(self, example: TextToTextExample) -> TextToTextExample:
        return replace(example, target=None)

    def facts(self, train: Sequence[TextToTextExample]) -> dict[str, bool]:
        return {"begins": True}

    def max_target_tokens(self, length: int) -> int:
        """Return the most tokens of a target with its end, of an input of `length`."""
        return max(2, length // 2) if self.target_length is None else self.target_length

    def encode(
        self,
        examples: Sequence[TextToTextExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedTexts:
        """See `Task`; a source that is too long is cut at its end, and so is a target.

        The room of a source is the same whether its target is known and however long that is.
        """
        begin, start, end = special_tokens(tokenizer, direction)
        if self.begins and direction == "causal":
            begin, _ = specials_around(tokenizer, direction)
        most, apart = self.max_target_tokens(length), direction == "encoder_decoder"
        room = length - len(begin) - 1 - (0 if apart else most)
        if room < 1 or len(start) + most > length:
            raise ConfigError(
                f"data.target_length is {most}: of the {length} tokens of an input (data.length), "
                f"{length - (len(start) if apart else len(begin) + 2)} at most may be a target's"
            )
        known = have_answers([example.target for example in examples], "target")
        before = self.prefix if isinstance(self.prefix, str) else ""
        sources = tokenizer.encode_batch([f"{before}{example.source}" for example in examples])
        targets = tokenizer.encode_batch([example.target or "" for example in examples])
        rows, firsts, following, is_cut = [], [], [], []
        for source, target in zip(sources, targets, strict=True):
            first = [*begin, *source[:room], tokenizer.sep]
            kept = target[: most - 1]
            second = [*kept, end] if known else []
            rows.append([*first, *start, *second])
            firsts.append(len(first))
            following.append([*[IGNORE] * (len(first) + len(start) - 1), *second, IGNORE])
            is_cut.append(len(source) > room or len(target) > len(kept))
        row_keys: dict[str, Sequence[Any]] = {"next_tokens": following} if known else {}
        if self.prefix or apart:
            row_keys["prefix"] = firsts
        elif direction == "bidirectional":
            row_keys["prefix"] = [0] * len(rows)
        encoded = EncodedTexts(
            examples, rows, tokenizer.pad, firsts=firsts, targets=row_keys,
            fill={"next_tokens": IGNORE}, is_cut=is_cut,
        )  # fmt: skip
        encoded.tokenizer, encoded.end = tokenizer, end
        return encoded

    @classmethod
    def sample(cls) -> tuple["TextToTextTask", Sequence[TextToTextExample]]:
        return cls(target_length=3), (
            TextToTextExample("Where is it ?", "there"),
            TextToTextExample("How many rivers are there ?", "How many ?"),
            TextToTextExample("Where do the rivers go ?", "Where ?"),
            TextToTextExample("How many ?", "How many rivers are there ?"),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        return {"answer": self._answer_text(data, rows)}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; an answer is as right as its ROUGE-L."""
        given, predicted = data.examples[example].target, self._answer_text(data, rows)
        return Result(given, predicted, score=rouge_l(given, predicted))

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        given = [data.examples[at].target for at in rows]
        predicted = [self._answer_text(data, row) for row in rows.values()]
        return measures.text_measures(given, predicted)

    def signatures(self) -> Mapping[str, str]:
        return measures.signatures()

    def _answer_text(self, data: Encoded, rows: Rows) -> str:
        (row,) = rows.values()
        return str(data.text_of(row["answer"]))  # type: ignore[attr-defined]  # of `encode`


def special_tokens(tokenizer: Tokenizer, direction: str) -> tuple[list[int], list[int], int]:
    """Return the special tokens before a source and before a target, and the target's end."""
    if direction == "encoder_decoder":
        before, (end,) = specials_around(tokenizer, direction)
        return before, tokenizer.target_start, end
    return (
        ([], [], tokenizer.cls) if direction == "causal" else ([tokenizer.cls], [], tokenizer.sep)
    )


@dataclass(kw_only=True)
class TextPairsTable(Table):
    """Own tables of source and target texts; see `tasks.table.Table`.

    `text` is the column of the source, `label` that of the target.

    Args:
        prefix: See `TextToTextTask`; so is
        target_length: the most tokens of a target.
    """

    task: ClassVar[type[Task]] = TextToTextTask
    named: ClassVar[bool] = False
    truncate: Truncate = field(default="longest_first", init=False)  # there is one text

    prefix: bool | str = True
    target_length: int | None = None

    @property
    def columns(self) -> Wanted:
        return replace(super().columns, written=True)

    def read_row(self, record: Record, columns: Chosen, name: str) -> TableRow:
        record = columns.join_texts(record, name)
        columns_read = (columns.text, columns.label)
        source, target = (nonempty_text(record, column, name) for column in columns_read)
        return TableRow(record.line, source, target)

    def build_example(self, row: TableRow, numbers: tuple[int, ...]) -> TextToTextExample:
        return TextToTextExample(row.text, row.label)


class PrefixLM(CausalLM):
    """-log p(next token | source, target so far), over the tokens of targets and their ends.

    Of a source all positions see all of it (Raffel et al. 2020, section 3.2.1; Dong et al. 2019),
    unless its data say otherwise. Backbones of either direction can do it.

    With `corrupt` or `noise` it makes sources and targets itself, of any text (`corruption`): to
    pretrain, to adapt to a text, or as a further loss. Of a text for which they have no room, each
    visit takes another part.

    Args:
        generate: Whether evaluations have the model answer as well, and measure how right that is;
            else what was written is measured alone.
        beams: See `BeamSearch`, where there are several; else answers have the likeliest token in
            each place. So are `length_penalty`, `early_stopping`, `first_token` and
            `no_repeat_ngram_size`, which counts tokens of answers alone.
        corrupt: The share of a text's tokens to hide, in (0, 1); None: that of the noise, and where
            that is None, too, targets come with the data.
        corrupt_length: Tokens of a hidden span in the mean.
        noise: What becomes of a text, see `corruption`; None: spans.
    """

    task: str | None = "text to text"
    metrics: ClassVar[tuple[Metric, ...]] = (perplexity("perplexity"), LOSS, ACCURACY)
    direction: SettledDirection | None = None
    prediction_mask = LanguageModel.prediction_mask

    def __init__(
        self,
        *,
        generate: bool = True,
        beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        no_repeat_ngram_size: int = 0,
        first_token: str | None = None,
        corrupt: float | None = None,
        corrupt_length: float = 3.0,
        noise: str | None = None,
    ) -> None:
        self.search: BeamSearch = BeamSearch(
            beams, length_penalty, early_stopping, no_repeat_ngram_size, first_token
        )
        self.corruption = build_noise(noise, corrupt, corrupt_length)
        self.writes_answers = generate and self.corruption is None
        if self.corruption is not None:
            self.task, self.keeps_tokens = None, False

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.search.check(info.vocabulary)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        if backbone.shape.is_sparse and (
            self.corruption is not None or getattr(self.info.task, "prefix", False)
        ):
            raise ConfigError(
                f"model.attention: {backbone.shape.attention} looks back alone, and here all "
                "positions of a source see all of it; take attention=full or window, or data with "
                "data.prefix=false"
            )
        if self.corruption is not None:
            direction = backbone.shape.direction
            self._begin, self._start, self._end = special_tokens(self.info.vocabulary, direction)
            room = backbone.shape.positions - len(self._begin) - len(self._start) - 2
            self._longest = self.corruption.max_length(
                room, max if direction == "encoder_decoder" else sum
            )
            self._marks = self.corruption.marks(self.info.vocabulary)
            if lacks := self.corruption.missing_tokens(self._marks, self._longest):
                raise ConfigError(f"{self.info.key}.{lacks}")
        return super().modules(backbone)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Add `target`, the next token; with noise return the corrupted texts alone."""
        if self.corruption is None:
            return super().prepare(batch, noise)
        if "document" in batch:
            raise ConfigError(
                "data.documents=separate: corrupt and noise change whole blocks; say cross"
            )
        length, vocabulary = batch["tokens"].shape[1], self.info.vocabulary
        draws_BTC = noise.uniform(batch["index"], length, self.corruption.num_draws).numpy()
        # Where it does not end lines as well, the token of classes is no part of a text.
        is_text_BT = batch["mask"] & (batch["tokens"] != vocabulary.cls)
        is_text_BT = batch["mask"] if vocabulary.cls == vocabulary.sep else is_text_BT
        most = self._longest
        rows = []
        for tokens_T, is_text_T, draws_TC in zip(
            batch["tokens"], is_text_BT, draws_BTC, strict=True
        ):
            text = tokens_T[is_text_T].tolist()
            first = int(draws_TC[0, 2] * (max(0, len(text) - most) + 1))
            rows.append(
                self.corruption.source_and_target(text[first : first + most], self._marks, draws_TC)
            )
        width = sum(self.corruption.sizes(min(length, most)))
        width += len(self._begin) + len(self._start) + 2
        return {"index": batch["index"], **self._as_rows(rows, width)}

    def _as_rows(self, rows: Sequence[tuple[list[int], list[int]]], width: int) -> Batch:
        """Return sources and targets as rows of `TextToTextTask`, all of the same width."""
        tokens, targets, prefixes, lengths = [], [], [], []
        for source, target in rows:
            first = [*self._begin, *source, self.info.vocabulary.sep]
            second = [*target, self._end] if target else []
            padding = width - len(first) - len(self._start) - len(second)
            row = [*first, *self._start, *second]
            tokens.append([*row, *[self.info.vocabulary.pad] * padding])
            before = [IGNORE] * (len(first) + len(self._start) - 1)
            targets.append([*before, *second, *[IGNORE] * (padding + 1)])
            prefixes.append(len(first))
            lengths.append(len(row))
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
        return self._answers(self.start_targets(model, batch), model)

    def predictions_together(
        self, asked: Sequence[tuple[Objective, TransferModel, Batch]]
    ) -> dict[str, Tensor]:
        """Return answers as this one looks for them, by the mean of the models' distributions."""
        targets = [
            objective.start_targets(model, batch)
            for objective, model, batch in asked
            if isinstance(objective, PrefixLM)
        ]
        return self._answers(Averaged(targets), asked[0][1])

    def _answers(self, texts: Continued, model: TransferModel) -> dict[str, Tensor]:
        vocabulary = self.info.vocabulary
        end = vocabulary.cls if model.backbone.causal else vocabulary.sep
        if self.search.beams > 1:
            return {"answer": texts.beam_search(self.search, end, vocabulary)}
        best = texts.pick_tokens(
            lambda logits: mask_special_tokens(logits, vocabulary, end).argmax(1), end
        )
        return {"answer": best}

    def start_targets(self, model: TransferModel, batch: Batch) -> Continued:
        """Return the targets of a batch's sources, with no token written yet."""
        most = TextToTextTask.max_target_tokens(self.info.task, model.backbone.shape.positions)
        return Continued(
            model, batch["tokens"], batch["segment"], _target_starts(batch), max_tokens=most,
            prefix_R=batch.get("prefix"), segment=1,
        )  # fmt: skip

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        loss = float(totals["loss"]) / counts["loss"]
        right = float(totals["right"]) / counts["loss"]
        return {"perplexity": exp_or_inf(loss), "loss": loss, "token_accuracy": right}

    def answer_metrics(self) -> tuple[Metric, ...]:
        return measures.declared_metrics() if self.writes_answers else ()


def _target_starts(batch: Batch) -> Tensor:
    """Return where targets begin, `[B]`."""
    if "next_tokens" in batch:
        return 1 + (batch["next_tokens"] != IGNORE).int().argmax(1)
    return batch["mask"].sum(1)
