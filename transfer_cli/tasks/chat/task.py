"""Conversations: their tokens by a chat template, and the loss of what the model says in them.

Legend: B conversations, T positions, R conversations to be answered, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from transfer_cli.batch import IGNORE, Batch, Counts, Sums
from transfer_cli.data.chat_template import (
    ASSISTANT,
    ChatTemplate,
    Renderer,
    Span,
    render_with_spans,
)
from transfer_cli.data.columns import other_data_hint, turns_column
from transfer_cli.data.encoded_task import iterate_portions
from transfer_cli.data.records import Record
from transfer_cli.data.split import TextStats
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.wanted import Chosen, Wanted
from transfer_cli.errors import ConfigError, DataError, at_least, one_of
from transfer_cli.metrics import LOSS, Metric, perplexity
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import exp_or_inf
from transfer_cli.objectives.replies import Continued, mask_special_tokens
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.base import Answer, Direction, Encoded, Result, Rows, Task
from transfer_cli.tasks.chat.conversations import ChatExample, parse_conversation
from transfer_cli.tasks.scoring import exact_match, word_f1
from transfer_cli.tasks.table import Table, TableRow
from transfer_cli.tasks.text_to_text.task import EncodedTexts


class EncodedConversations(EncodedTexts):
    """Conversations as rows of tokens; `end` ends what the model says."""

    given: Sequence[str]
    """The last answer of each row."""
    is_compared: Sequence[bool]
    """Whether that is whole, and no longer than what the model is asked to say."""


@dataclass(frozen=True)
class ChatTask(Task):
    """A conversation; the model learns its own turns.

    Args:
        template: The chat template, in Jinja; None: that of the model a run starts from.
        tokens: See `ChatTemplate`.
        end: The token that ends what the model says, by its name.
        system: What stands before conversations that have no system text; None: nothing.
        answer_tokens: The most tokens that the model says where it is asked for its own answer.
    """

    name, objective, head, example = "chat", "sft", "lm", ChatExample
    fields, expected = ("answer",), "answer"
    files = f"{__name__}.Conversations"
    export_head: ClassVar[str | None] = "language_model"
    scores_answers = True

    template: str | None = None
    tokens: Mapping[str, str | None] = field(default_factory=dict)
    end: str = ""
    system: str | None = None
    answer_tokens: int = 32

    def __post_init__(self) -> None:
        at_least("answer_tokens", self.answer_tokens, 1)

    @property
    def chat_template(self) -> ChatTemplate | None:
        return None if self.template is None else ChatTemplate(self.template, self.tokens, self.end)

    def written_by(self, chat: Callable[[], Any]) -> "ChatTask":
        template = chat()
        if template is None:
            raise ConfigError(
                "init_from: this model has no chat template, by which conversations become text; "
                "say tokenizer.chat_template=chatml, or give the file of one"
            )
        return replace(
            self, template=template.source, tokens=dict(template.tokens), end=template.end
        )

    def text_column(self, names: Sequence[str], name: str) -> str | None:
        return turns_column(names)

    def read(self, record: Record, text: str, pair: str | None, name: str) -> ChatExample:
        conversation = parse_conversation(record, text, text, name).unanswered()
        if not conversation.messages:
            raise DataError(f"{name}, line {record.line}: nothing is asked.")
        return conversation

    def texts(self, example: ChatExample) -> tuple[str, ...]:
        """See `Task`; all that was said before an answer is one text."""
        count = len(example.unanswered().messages)
        contents = [str(turn["content"]) for turn in example.messages]
        return ("\n".join(contents[:count]), *contents[count:])

    def equal_by(self, example: ChatExample) -> tuple[str, ...]:
        return self.texts(example)[:1]

    def unlabelled(self, example: ChatExample) -> ChatExample:
        return example.unanswered()

    def encode(
        self,
        examples: Sequence[ChatExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedConversations:
        """See `Task`; a conversation that is too long ends with an earlier answer.

        Where its first one is too long already, that is cut.
        """
        template = self.chat_template
        if template is None:
            raise ConfigError("data: conversations have no chat template here; see docs/chat.md")
        end, rows = self.end_in(tokenizer), list[_ChatRow]()
        with template.open_renderer() as render:
            writer = _Writer(render, tokenizer, end, self.system)
            for portion in iterate_portions(examples, "conversations"):
                rows += writer.rows(portion, length)
        is_answered = any(example.messages[-1]["role"] == ASSISTANT for example in examples)
        if is_answered and not any(row.answers for row in rows):
            raise DataError(f"no answer begins within {length} tokens; raise data.length")
        encoded = EncodedConversations(
            examples,
            [row.tokens for row in rows],
            tokenizer.pad,
            targets={
                "begin": [row.begin for row in rows],
                "next_tokens": [row.targets for row in rows],
            },
            fill={"next_tokens": IGNORE},
            is_cut=[row.is_cut for row in rows],
        )
        encoded.tokenizer, encoded.end = tokenizer, end
        encoded.given = [row.given for row in rows]
        encoded.is_compared = [
            row.is_whole and len(row.tokens) - row.begin <= self.answer_tokens for row in rows
        ]
        return encoded

    def end_in(self, tokenizer: Tokenizer) -> int:
        """Return the token that ends what the model says."""
        end = tokenizer.token(self.end)
        return tokenizer.sep if end is None else end

    @classmethod
    def sample(cls) -> tuple["ChatTask", Sequence[ChatExample]]:
        def asked(*texts: str) -> ChatExample:
            roles = ("user", ASSISTANT)
            turns = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
            return ChatExample(turns)

        template = "{% for turn in messages %}{{ turn.content }} [SEP] {% endfor %}"
        return cls(template=template, end="[SEP]", answer_tokens=5), (
            asked("Where ?", "there"),
            asked("How many rivers are there ?", "How many ?", "Where ?", "there"),
            asked("Where do the rivers go ?", "Where ?"),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        return {"answer": self._answer_text(data, rows)}

    def result(self, data: Any, example: int, rows: Rows) -> Result:
        """See `Task`; an answer is as right as the F1 of its words."""
        given, predicted = data.given[example], self._answer_text(data, rows)
        return Result(given, predicted, score=word_f1(given, predicted))

    def scores(self, data: Any, rows: Mapping[int, Rows]) -> dict[str, float]:
        """See `Task`; longer answers than are asked for are not compared."""
        pairs = [
            (data.given[at], self._answer_text(data, row))
            for at, row in rows.items()
            if data.is_compared[at]
        ]
        measured = {"exact_match": exact_match, "f1": word_f1} if pairs else {}
        return {name: sum(starmap(of, pairs)) / len(pairs) for name, of in measured.items()}

    def _answer_text(self, data: Any, rows: Rows) -> str:
        (row,) = rows.values()
        return str(data.text_of(row["answer"])).strip()


@dataclass(frozen=True)
class _ChatRow:
    """A conversation as tokens, and the places of those that the model says.

    Args:
        begin: Where its last answer begins, or what it has to say.
        given: That answer; `is_whole` says whether all of it is there.
    """

    tokens: list[int]
    answers: list[int]
    begin: int
    given: str
    is_cut: bool = False
    is_whole: bool = True

    @property
    def targets(self) -> list[int]:
        """The next token of each, where the model says it."""
        targets = [IGNORE] * len(self.tokens)
        for at in self.answers:
            targets[at - 1] = self.tokens[at]
        return targets

    def cut(self, length: int) -> "_ChatRow":
        """Return what is within a length."""
        answers = [at for at in self.answers if at < length]
        row = replace(self, tokens=self.tokens[:length], begin=min(self.begin, length))
        return replace(row, answers=answers, is_cut=True, is_whole=False)


@dataclass(frozen=True)
class _Writer:
    """Makes rows of conversations: as text by a template, then as tokens."""

    render: Renderer
    tokenizer: Tokenizer
    end: int
    system: str | None

    def rows(self, examples: Sequence[ChatExample], length: int) -> list[_ChatRow]:
        written = [self._text_and_spans(example) for example in examples]
        encoded = self.tokenizer.encode_marked([text for text, _ in written])
        rows = []
        for example, (tokens, starts), (_, spans) in zip(examples, encoded, written, strict=True):
            row = self._row(example, tokens, starts, spans)
            rows.append(row if len(tokens) <= length else self._truncated(example, row, length))
        return rows

    def _text_and_spans(self, example: ChatExample) -> tuple[str, list[Span]]:
        """Return a conversation as one text, and the spans of what the model says."""
        spoken = example.with_system(self.system)
        try:
            if example.messages[-1]["role"] == ASSISTANT:
                return render_with_spans(self.render, spoken.messages, spoken.tools)
            return self.render(spoken.messages, spoken.tools, add_generation_prompt=True).text, []
        except DataError as error:
            raise DataError(f"{example.place}{error}") from error

    def _row(
        self, example: ChatExample, tokens: list[int], starts: list[int], spans: Sequence[Span]
    ) -> _ChatRow:
        starts_T = np.asarray(starts)
        answers, begin = list[int](), len(tokens)
        for first, last in spans:
            places = ((starts_T >= first) & (starts_T < last)).nonzero()[0].tolist()
            begin = places[0] if places else begin
            # Of what a template writes behind the end of an answer, the model says nothing.
            while self.end in (tokens[at] for at in places) and tokens[places[-1]] != self.end:
                places.pop()
            answers += (at for at in places if at)
        return _ChatRow(tokens, answers, begin, str(example.messages[-1]["content"]))

    def _truncated(self, example: ChatExample, row: _ChatRow, length: int) -> _ChatRow:
        """Return a conversation up to the last answer within a length; else the first is cut."""
        earlier = example.unanswered().answered()
        while earlier.messages:
            text, spans = self._text_and_spans(earlier)
            [(tokens, starts)] = self.tokenizer.encode_marked([text])
            row = self._row(earlier, tokens, starts, spans)
            if len(row.tokens) <= length:
                return replace(row, is_cut=True)
            earlier = earlier.unanswered().answered()
        return row.cut(length)


@dataclass(kw_only=True)
class Conversations(Table):
    """Own tables of conversations; see `tasks.table.Table` and `ChatTask`.

    `text` is the column of the turns, or of a question whose answer is in `label`.

    Args:
        system: See `ChatTask`; so is
        answer_tokens: what the model says.
    """

    task: ClassVar[type[Task]] = ChatTask
    named: ClassVar[bool] = False

    system: str | None = None
    answer_tokens: int = 32

    @property
    def columns(self) -> Wanted:
        return replace(super().columns, turns=True)

    def read_row(self, record: Record, columns: Chosen, name: str) -> TableRow:
        conversation = parse_conversation(record, columns.text, columns.label, name).answered()
        if not conversation.messages:
            cure = other_data_hint(record.fields)
            raise DataError(
                f"{name}, line {record.line}: the conversation has no answer.{cure}", "no answer"
            )
        return TableRow(record.line, "", conversation)

    def build_example(self, row: TableRow, numbers: tuple[int, ...]) -> ChatExample:
        conversation: ChatExample = replace(row.label, file=row.file)
        return conversation


class SupervisedChat(CausalLM):
    """-log p(next token | conversation so far), over what the model says and the ends of that.

    The rest of a conversation is read, and not learnt (Ouyang et al. 2022, supervised fine-tuning;
    Touvron et al. 2023, section 3.1).

    Args:
        tokens: Which tokens are learnt: those of answers, or all of a conversation.
        generate: Whether evaluations have the model answer as well, the likeliest token first, and
            measure how right short answers are; else what was written is measured alone.
    """

    task: str | None = "chat"
    metrics: ClassVar[tuple[Metric, ...]] = (perplexity("perplexity"), LOSS)

    def __init__(
        self, *, tokens: Literal["answers", "all"] = "answers", generate: bool = True
    ) -> None:
        one_of("tokens", tokens, ("answers", "all"), ValueError)
        self.tokens, self.writes_answers = tokens, generate

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Add `target`, the next token, where it is learnt."""
        if self.tokens == "answers" and "next_tokens" in batch:
            return super().prepare(batch, noise)
        target_BT = torch.full_like(batch["tokens"], IGNORE)
        # By the mask, since tokens of a conversation may be the one that fills up rows, too.
        real_BT = batch["mask"][:, 1:]
        target_BT[:, :-1] = batch["tokens"][:, 1:].masked_fill(~real_BT, IGNORE)
        return {**batch, "target": target_BT}

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the tokens of last answers, `answer` `[B, task.answer_tokens]`."""
        task, vocabulary = self.info.task, self.info.vocabulary
        end = task.end_in(vocabulary)
        tokens_BT, most = batch["tokens"], task.answer_tokens
        texts = Continued(
            model, tokens_BT, torch.zeros_like(tokens_BT), batch["begin"], max_tokens=most
        )
        return {
            "answer": texts.pick_tokens(
                lambda logits: mask_special_tokens(logits, vocabulary, end).argmax(1), end
            )
        }

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        loss = float(totals["loss"]) / counts["loss"]
        return {"perplexity": exp_or_inf(loss), "loss": loss}

    def answer_metrics(self) -> tuple[Metric, ...]:
        return tuple(
            Metric(name, higher_is_better=True, unit="fraction")
            for name in (("exact_match", "f1") if self.writes_answers else ())
        )
