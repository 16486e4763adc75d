"""Turns of dialogs: PersonaChat's files or JSON lines, their tokens, answers and losses.

The losses are which candidate follows, and the words of the right one.

Legend: B turns, C candidates, T positions, D width, V vocabulary, R replies.
"""

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch, Counts, Sums
from transfer_cli.data import readers
from transfer_cli.data.columns import other_data_hint
from transfer_cli.data.encoded_groups import EncodedGroups
from transfer_cli.data.encoded_task import EncodedRows
from transfer_cli.data.json_tables import json_rows
from transfer_cli.data.labelled import LabelledData
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.split import TextStats
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.wanted import ANY, Wanted
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import exp_or_inf
from transfer_cli.objectives.replies import Continued, decode_until, mask_special_tokens
from transfer_cli.safe_files import STRICT_JSON
from transfer_cli.seeds import derive
from transfer_cli.tasks.base import Answer, Direction, Task
from transfer_cli.tasks.choice.task import CHANCE, MEAN_RANK, ChoiceTask, MultipleChoice
from transfer_cli.tasks.scoring import word_f1
from transfer_cli.tasks.sources import LabelledFiles

_SPLITS = {"train": "train", "validation": "valid"}
"""What PersonaChat's file calls our splits."""

_TURN = ' A turn is a line of JSON: {"persona": [...], "history": [...], "candidates": [...]}.'


@dataclass(frozen=True, slots=True)  # there may be millions
class DialogExample:
    """A turn: what the speaker is like, what was said so far, what may follow, and what did.

    The last utterance of the history is the other speaker's; the number of the right candidate
    counts from 0.
    """

    persona: Sequence[str]
    history: Sequence[str]
    choices: Sequence[str]
    label: int | None = None


def read_turns(path: Path) -> dict[str, list[DialogExample]]:
    """Return the turns of each split of a file, by our names; JSON lines are `train` alone."""
    if ".json" in path.suffixes:
        try:
            with readers.open_file(path) as file:
                whole = STRICT_JSON.decode(file.read().decode())
        except (ValueError, RecursionError):
            whole = None  # perhaps lines
        if isinstance(whole, dict) and "train" in whole:
            return {
                name: list(_persona_chat_turns(whole[theirs], f"{path}, {theirs}"))
                for name, theirs in _SPLITS.items()
                if theirs in whole
            }
    records = json_rows(path)
    turns = [_labelled_turn(record.fields, f"{path}, line {record.line}") for record in records]
    if not turns:
        raise DataError(f"{path} has no turns.")
    return {"train": turns}


def parse_turn(fields: Mapping[str, object], where: str) -> DialogExample:
    """Return a turn without its answer."""
    persona = _texts(fields, "personality" if "personality" in fields else "persona", where, 0)
    history = _texts(fields, "history", where, 1)
    return DialogExample(persona, history, _texts(fields, "candidates", where, 1))


def _labelled_turn(fields: Mapping[str, object], where: str) -> DialogExample:
    turn = parse_turn(fields, where)
    if len(turn.choices) < 2:
        raise DataError(f"{where}: 'candidates' has 1, expected at least 2, the right one last.")
    return replace(turn, label=len(turn.choices) - 1)


def _persona_chat_turns(dialogs: object, where: str) -> Iterator[DialogExample]:
    for number, dialog in enumerate(_list(dialogs, where), 1):
        place = f"{where}, dialog {number}"
        fields = dialog if isinstance(dialog, dict) else {}
        persona = _texts(fields, "personality", place, 0)
        for turn, utterance in enumerate(
            _list(fields.get("utterances"), f"{place}: 'utterances'"), 1
        ):
            own_fields = utterance if isinstance(utterance, dict) else {}
            yield _labelled_turn({**own_fields, "personality": persona}, f"{place}, turn {turn}")


def _texts(fields: Mapping[str, object], name: str, where: str, least: int) -> list[str]:
    texts = fields.get(name, [] if least == 0 else None)
    if not isinstance(texts, list) or len(texts) < least:
        few = f"has {len(texts)}" if isinstance(texts, list) else "is no list of texts"
        cure = (other_data_hint(fields) or _TURN) if name == "history" else ""
        raise DataError(f"{where}: {name!r} {few}, expected at least {least}.{cure}")
    wrong = next((text for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        raise DataError(f"{where}: {name!r} holds {wrong!r:.40}, expected texts.")
    return [text_of(Record(0, {name: text}), name, where) for text in texts]


def _list(values: object, where: str) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise DataError(f"{where} is no list with something in it.")
    return values


SPEAKERS = ("<speaker1>", "<speaker2>")
"""Stand before what the model says, and before what the other one says."""


@dataclass(frozen=True)
class Context:
    """What stands before a reply, as tokens, and who says each: 0 for the model, 1 for the other.

    It ends with the mark of the model's turn. `is_whole`: whether nothing was left out.
    """

    tokens: list[int]
    speakers: list[int]
    is_whole: bool


@dataclass(frozen=True)
class DialogTask(ChoiceTask):
    """The next utterance of a dialog, among candidates.

    Args:
        candidates: Replies of a training turn: the right one, and others drawn by the seed; None:
            all. Turns that are scored keep all of theirs.
        max_history: Exchanges before the last utterance that are read.
        speakers: What stands before each utterance of the model, and of the other speaker: tokens
            of the vocabulary, or else any text.
    """

    name, objective = "dialog", "next_utterance"
    example: ClassVar[type] = DialogExample
    fields, expected = ("reply", "ranking", "probability", "probabilities"), "right reply"
    files = f"{__name__}.Dialogs"
    export_head: ClassVar[str | None] = None
    measure: ClassVar[str] = "hits_at_1"

    max_history: int = 2
    speakers: tuple[str, ...] = SPEAKERS
    # Tasks that differ in this alone share their heads.
    candidates: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.candidates is not None:
            at_least("candidates", self.candidates, 2)
        at_least("max_history", self.max_history, 0)

    def text_column(self, names: Sequence[str], name: str) -> str:
        return "history"

    def read(  # type: ignore[override]  # examples are of its own class
        self, record: Record, text: str, pair: str | None, name: str
    ) -> DialogExample:
        return parse_turn(record.fields, f"{name}, line {record.line}")

    def texts(self, example: DialogExample) -> tuple[str, ...]:  # type: ignore[override]
        """See `Task`; the last utterance is shown first."""
        *earlier, last = example.history or ("",)
        return (last, *example.persona, *earlier, *example.choices)

    def equal_by(self, example: Any) -> tuple[str, ...]:
        return (*example.persona, *example.history)

    def group(self, example: DialogExample) -> Hashable:
        """Return the dialog: what the speaker is like, and what was said first."""
        return (tuple(example.persona), *example.history[:1])

    def learnt_from(self, train: Sequence[DialogExample], seed: int) -> Sequence[DialogExample]:
        """Return turns with few candidates, one of them right."""
        if self.candidates is None:
            return train
        # Of Python's generator, only random() is promised to stay the same in later versions.
        draw = random.Random(derive(seed, "distractors")).random  # noqa: S311 - no secret
        turns = []
        for turn in train:
            right = turn.choices[turn.label or 0]
            others = [reply for reply in turn.choices if reply != right]
            order = sorted(range(len(others)), key=[draw() for _ in others].__getitem__)
            distractors = [others[at] for at in order[: self.candidates - 1]]
            turns.append(replace(turn, choices=[*distractors, right], label=len(distractors)))
        return turns

    def encode(  # type: ignore[override]  # examples are of its own class
        self,
        examples: Sequence[DialogExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedGroups:
        """See `Task`; every candidate of a turn is read after the same context.

        Of what is too long, the oldest utterances are left out, then the persona is cut at its
        end, then the last utterance, and a reply where it is too long alone.
        """
        rows, speakers, targets, is_cut = [], [], [], []
        for example in examples:
            replies = tokenizer.encode_batch(list(example.choices))
            room = length - max(map(len, replies)) - 1
            context = self.context(example, tokenizer, max(room, 0))
            begin, most = len(context.tokens), length - len(context.tokens) - 1
            if most < 1:
                raise ConfigError(f"data.length is {length}, too short for a reply; raise it")
            for number, reply in enumerate(replies):
                ending = [*reply[:most], tokenizer.cls]
                rows.append([*context.tokens, *ending])
                speakers.append([*context.speakers, *[0] * len(ending)])
                # From the mark of the turn on, each token predicts the next one.
                following = ending if number == example.label else [IGNORE] * len(ending)
                targets.append([*[IGNORE] * (begin - 1), *following, IGNORE])
                is_cut.append(not context.is_whole or len(reply) > most)
        labels = [example.label for example in examples]
        known = None not in labels
        per_token = {"segment": speakers, **({"next_tokens": targets} if known else {})}
        sequences = EncodedRows(
            rows, rows, tokenizer.pad, targets=per_token,
            fill={"segment": 0, "next_tokens": IGNORE}, is_cut=is_cut,
        )  # fmt: skip
        counts = [len(example.choices) for example in examples]
        return EncodedGroups(
            examples, sequences, counts, tokenizer.pad, {"label": labels} if known else {}
        )

    def context(self, example: DialogExample, tokenizer: Tokenizer, room: int) -> Context:
        """Return what stands before a reply, in at most `room` tokens."""
        marks = self.marks(tokenizer)
        history = list(example.history)[-(2 * self.max_history + 1) :]
        encoded = tokenizer.encode_batch([*example.persona, *history])
        persona = [token for sentence in encoded[: len(example.persona)] for token in sentence]
        # Backwards from the reply, which is the model's, the speakers alternate.
        turns = [
            (marks[(len(history) - at) % 2] + tokens, (len(history) - at) % 2)
            for at, tokens in enumerate(encoded[len(example.persona) :])
        ]
        left = room - 1 - len(marks[0])
        size = len(persona) + sum(len(tokens) for tokens, _ in turns)
        is_whole = size <= left
        while size > left and len(turns) > 1:
            size -= len(turns.pop(0)[0])
        persona = persona[: max(0, len(persona) - max(0, size - left))]
        if turns and len(persona) + len(turns[0][0]) > left:
            turns = [(turns[0][0][: max(0, left)], turns[0][1])]
        tokens, speakers = [tokenizer.sep, *persona], [0] * (1 + len(persona))
        for utterance, speaker in turns:
            tokens += utterance
            speakers += [speaker] * len(utterance)
        return Context([*tokens, *marks[0]], [*speakers, *[0] * len(marks[0])], is_whole)

    def marks(self, tokenizer: Tokenizer) -> list[list[int]]:
        """Return the tokens that stand before what the model says, and what the other one says."""
        if len(self.speakers) != 2:
            raise ConfigError(f"data.speakers: expected two, got {list(self.speakers)}")
        known = (tokenizer.token(speaker) for speaker in self.speakers)
        marks = [
            tokenizer.encode(name) if token is None else [token]
            for name, token in zip(self.speakers, known, strict=True)
        ]
        if marks[0] == marks[1] or not all(marks):
            raise ConfigError(
                f"data.speakers: this tokenizer does not tell {self.speakers[0]!r} from "
                f"{self.speakers[1]!r}; give other marks, such as data.speakers=[me,you]"
            )
        return marks

    @classmethod
    def sample(cls) -> tuple["DialogTask", Sequence[DialogExample]]:  # type: ignore[override]
        return cls(speakers=("there", "where")), (
            DialogExample(["Where is it ?"], ["How many ?"], ["Rivers", "How many ?"], 1),
            DialogExample([], ["Where ?", "There", "How ?"], ["Where ?", "How many ?", "There"], 0),
            DialogExample(["Rivers go"], ["Do they ?"], ["Many", "Where do they go ?"], 0),
        )

    def written(self, answer: Answer) -> dict[str, Any]:
        chosen = super().written(answer)
        shares = chosen["probabilities"]
        ranking = sorted(range(len(shares)), key=lambda number: -shares[number])
        return {
            "reply": chosen["answer"], "ranking": ranking,
            "probability": chosen["probability"], "probabilities": shares,
        }  # fmt: skip


@dataclass(kw_only=True)
class Dialogs(LabelledFiles):
    """PersonaChat's released JSON, which holds both splits, or JSON lines, one a turn.

    The last candidate of a turn is the right one.

    Args:
        candidates: See `DialogTask`; so are
        max_history: the exchanges that are read, and
        speakers: the marks.
    """

    task: ClassVar[type[Task]] = DialogTask

    candidates: int | None = 2
    max_history: int = 2
    speakers: tuple[str, ...] = SPEAKERS

    def examples(self, paths: Mapping[str, Sequence[Path]], columns: Wanted = ANY) -> LabelledData:
        """See `LabelledFiles`; a run is tested and scored on the turns of `valid`."""
        splits = {}
        for split, files in paths.items():
            turns: dict[str, list[DialogExample]] = {}
            for name, some in chain.from_iterable(read_turns(path).items() for path in files):
                turns.setdefault(name, []).extend(some)
            splits[split] = turns.get(split, turns.get("validation", turns["train"]))
            if split == "train" and "validation" in turns and "validation" not in paths:
                splits["validation"] = turns["validation"]
        first, node = next(iter(paths.values())), self.task.node(**self.options())
        return LabelledData(first[0].stem, (), splits, node, files=paths)


HITS = Metric("hits_at_1", higher_is_better=True, unit="fraction", headline=True, per_example=True)
PERPLEXITY = Metric("perplexity", higher_is_better=False, unit="perplexity")
F1 = Metric("f1", higher_is_better=True, unit="fraction")
"""Of the words of what the model says."""


@dataclass(eq=False, repr=False)
class NextUtterance(MultipleChoice):
    """Cross-entropy of the right candidate, and of its words (Wolf et al. 2019).

    The words have their own term, which counts by `language_model`; a further loss on them,
    `+objective@losses.lm=clm`, does the same. Both see the right candidate alone: its words and
    the token that ends it.

    Args:
        language_model: How much the words count beside the choice.
        reply_tokens: How many tokens the model says at most where what it says is compared with
            what was said (`f1`), the likeliest first; 0: it is not asked.
        options: Those of `MultipleChoice`.
    """

    task = "dialog"
    direction = "causal"

    language_model: float = field(default=0.0, kw_only=True)
    reply_tokens: int = field(default=20, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("reply_tokens", self.reply_tokens, 0)
        if self.language_model < 0:
            raise ValueError(f"language_model is {self.language_model}, expected 0 or more")
        self._words = CausalLM()

    @property
    def weights(self) -> Mapping[str, float]:
        return {"loss": 1.0, "words": self.language_model}

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self._words.setup(info)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        return {**super().modules(backbone), **self._words.modules(backbone)}

    def pooling_of(self, model: TransferModel) -> None:
        """Return None: the words need the state of every token."""

    def counts(self, batch: Batch) -> dict[str, int]:
        return {**super().counts(batch), "words": int((batch["next_tokens"] != IGNORE).sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        sums = super().loss_sums(model, batch, encoded)
        return {**sums, "words": self._nats(model, batch, encoded)}

    def metric_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Sums:
        """Return the sums of a choice, the nats of the words, and the F1 of what is generated."""
        sums = super().metric_sums(model, batch, encoded)
        sums["words"] = self._nats(model, batch, encoded)
        if self.reply_tokens:
            sums["f1"] = torch.tensor(self._f1(model, batch))
        return sums

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        means = super().compute_metrics(totals, counts, text)
        del means["words"]
        perplexity = exp_or_inf(float(totals["words"]) / counts["words"])
        return {"hits_at_1": means.pop("accuracy"), **means, "perplexity": perplexity}

    def declared_metrics(self) -> tuple[Metric, ...]:
        words = (F1,) if self.reply_tokens else ()
        return (HITS, PERPLEXITY, *words, CHANCE, MEAN_RANK, LOSS)

    def _nats(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        words = {**batch, "target": batch["next_tokens"]}
        return self._words.loss_sums(model, words, encoded)["loss"]

    def _f1(self, model: TransferModel, batch: Batch) -> float:
        """Return the summed F1 of the words of what the model says to each turn of a batch."""
        target_BT = _of_right_candidate(batch, batch["next_tokens"])
        has_target_BT = target_BT != IGNORE
        begin_B = 1 + has_target_BT.int().argmax(1)  # after the mark of the turn
        tokens_BT, segment_BT = (
            _of_right_candidate(batch, batch[name]) for name in ("tokens", "segment")
        )
        vocabulary, end = self.info.vocabulary, self.info.vocabulary.cls
        texts = Continued(model, tokens_BT, segment_BT, begin_B, max_tokens=self.reply_tokens)
        predicted = texts.pick_tokens(
            lambda logits: mask_special_tokens(logits, vocabulary, end).argmax(1), end
        )
        total = 0.0
        for row, target, has in zip(predicted.tolist(), target_BT, has_target_BT, strict=True):
            total += word_f1(self.text_of(target[has].tolist()), self.text_of(row))
        return total

    def text_of(self, reply: list[int]) -> str:
        """Return the text of a reply up to its end."""
        return decode_until(reply, self.info.vocabulary, self.info.vocabulary.cls)


def _of_right_candidate(batch: Batch, values_BCT: Tensor) -> Tensor:
    """Return `[B, T]` of the right candidates."""
    label_B = batch["label"]
    return values_BCT[torch.arange(len(label_B), device=label_B.device), label_B]
