"""The record of the task: texts of words, their tags, the entities that tags mark.

A long text becomes several windows; no window cuts a word.

Legend: W words of a text, P pieces, C tags.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, count, pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.encoded_task import (
    EncodedRows,
    have_answers,
    iterate_portions,
    specials_around,
)
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.tasks.base import (
    CURE,
    DECIMALS,
    MARGIN,
    Answer,
    Direction,
    Encoded,
    Result,
    Rows,
    Task,
    baseline_failure,
    mean_by_label,
    rarest_labels,
)
from transfer_cli.tasks.tagging import schemes
from transfer_cli.tasks.tagging.readers import WORDS, TagExample
from transfer_cli.tasks.tagging.schemes import allowed_transitions, viterbi


class EncodedWords(EncodedRows):
    """Texts as tokens; batches have `word`, the number of each word where its tag is read.

    Args:
        examples, rows, pad: See `EncodedRows`.
        read_at: For each row, the positions at which the tags of its own words are read, in order.
            A word in several windows belongs to one of them.
        target: For each row the target of each of its tokens; None: tags are not known.
        options: Others of `EncodedRows`.
    """

    def __init__(
        self,
        examples: Sequence[TagExample],
        rows: Sequence[Sequence[int]],
        pad: int,
        read_at: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]] | None,
        **options: Any,
    ) -> None:
        targets: dict[str, Sequence[Sequence[int]]] = {"word": _word_index(rows, read_at)}
        if target is not None:
            targets["target"] = target
        fill = dict.fromkeys(targets, IGNORE)
        super().__init__(examples, rows, pad, targets=targets, fill=fill, **options)
        self.read_at = read_at
        self._word_values: dict[str, npt.NDArray[Any]] = {}

    def add_answers(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a key to all batches, `[B, T, ...]`, with a value for each word; 0 elsewhere."""
        self._word_values[name] = values

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        batch = super().batch(indices)
        word_BT = batch["word"].numpy()
        is_read_BT = word_BT != IGNORE
        for name, values in self._word_values.items():
            placed = np.zeros((*word_BT.shape, *values.shape[1:]), values.dtype)
            placed[is_read_BT] = values[word_BT[is_read_BT]]
            batch[name] = torch.from_numpy(placed)
        return batch


def of_words(data: Any, rows: Mapping[int, Mapping[str, Any]], name: str) -> list[Any]:
    """Return what rows of `EncodedWords` hold of each word: they come in order, each once."""
    return [window[name][place] for row, window in rows.items() for place in data.read_at[row]]


def encode_words(
    examples: Sequence[TagExample],
    tokenizer: Tokenizer,
    length: int,
    direction: str,
    piece: Literal["first", "last"],
    *,
    stride: int | None = None,
    inside: Sequence[int] | None = None,
) -> EncodedWords:
    """Return texts as rows of at most `length` tokens, with targets if their tags are known.

    A word that is longer than a row is cut. One without pieces is the unknown token.

    Batch keys: `word`; if tags are known `target`, the tag of a word at the piece where it is read
    (and at the others with `inside`), `IGNORE` elsewhere.

    Args:
        piece: The piece of a word at which its tag is read.
        stride: Words that two windows share at least, where both have room; None: half of one.
        inside: The label of the pieces behind the one that is read, by the label of the word; those
            before it have the word's. None: only the piece that is read has a target.
    """
    before, after = specials_around(tokenizer, direction)
    room = length - len(before) - len(after)
    if room < 1:
        raise ConfigError(f"data.length is {length}, which leaves no room for a word; raise it")
    known = have_answers([example.label for example in examples], "tags")
    rows, read_at, target, example_of, is_cut = [], [], [], [], []
    for at, whole in enumerate(_encode_pieces(examples, tokenizer)):
        is_cut.append(any(len(word) > room for word in whole))
        pieces = [word[:room] for word in whole]
        label = examples[at].label or [0] * len(pieces)
        windows = word_windows([*map(len, pieces)], room, stride)
        for window, owned in zip(windows, owned_words(len(pieces), windows), strict=True):
            places, tags = _window_targets(pieces, window, owned, label, piece, inside)
            rows.append([*before, *chain.from_iterable(pieces[slice(*window)]), *after])
            read_at.append([len(before) + place for place in places])
            target.append([*[IGNORE] * len(before), *tags, *[IGNORE] * len(after)])
            example_of.append(at)
    return EncodedWords(
        examples, rows, tokenizer.pad, read_at, target if known else None,
        example_of=example_of, is_cut=is_cut,
    )  # fmt: skip


def _window_targets(
    pieces: Sequence[Sequence[int]],
    window: tuple[int, int],
    owned: range,
    label: Sequence[int],
    piece: str,
    inside: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """Return the pieces at which a window's own words are read, and the target of each piece."""
    read_at, target = list[int](), list[int]()
    for word in range(*window):
        size = len(pieces[word])
        place = 0 if piece == "first" else size - 1
        ahead = tag = behind = IGNORE
        if word in owned:
            read_at.append(len(target) + place)
            tag = label[word]
            if inside is not None:
                ahead, behind = tag, inside[tag]
        target += [*[ahead] * place, tag, *[behind] * (size - place - 1)]
    return read_at, target


def _word_index(rows: Sequence[Sequence[int]], read_at: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the number of each word at the position where it is read, `IGNORE` elsewhere."""
    number, numbers = count(), list[list[int]]()
    for tokens, places in zip(rows, read_at, strict=True):
        row = [IGNORE] * len(tokens)
        for place in places:
            row[place] = next(number)
        numbers.append(row)
    return numbers


def word_windows(sizes: Sequence[int], room: int, stride: int | None) -> list[tuple[int, int]]:
    """Return windows of words: the first one of each, and the one after its last.

    Each ends behind the one before it.

    Args:
        sizes: The pieces of each word, from 1 to `room`.
        room: Most pieces of a window.
    """
    ends = [0, *accumulate(sizes)]
    windows, first = list[tuple[int, int]](), 0
    while True:
        past = bisect_right(ends, ends[first] + room) - 1
        windows.append((first, past))
        if past == len(sizes):
            return windows
        shared = (past - first) // 2 if stride is None else stride
        first = max(past - shared, bisect_left(ends, ends[past + 1] - room))


def owned_words(words: int, windows: Sequence[tuple[int, int]]) -> list[range]:
    """Return the words that belong to each window: those that stand furthest from its edges.

    Of two windows in which a word is as far from an edge it belongs to the first one.
    """
    # Halfway between the beginning of a window and the end of the one before, both are as far.
    bounds = [(past + first + 1) // 2 for (_, past), (first, _) in pairwise(windows)]
    return [range(*bound) for bound in pairwise([0, *bounds, words])]


def _encode_pieces(
    examples: Sequence[TagExample], tokenizer: Tokenizer
) -> Iterator[list[list[int]]]:
    """Yield the tokens of each word of each example, those that it has in the whole text."""
    # As other libraries do: else the first word's would be others than in the middle of a text.
    prefix = " " if tokenizer.is_byte_level else ""
    for portion in iterate_portions(examples):
        # A text without words has no tokens either, which the prefix alone would be.
        texts = [prefix + " ".join(example.words) if example.words else "" for example in portion]
        for example, (tokens, places) in zip(
            portion, tokenizer.encode_with_offsets(texts), strict=True
        ):
            words = example.words
            begins = [*accumulate((len(word) + 1 for word in words), initial=len(prefix))]
            pieces: list[list[int]] = [[] for _ in words]
            for token, (start, _) in zip(tokens, places, strict=True):
                word = bisect_right(begins, max(len(prefix), start)) - 1
                pieces[min(word, len(words) - 1)].append(token)
            yield [of_word or [tokenizer.unk] for of_word in pieces]


@dataclass(frozen=True)
class TaggingTask(Task):
    """A tag for each word of a text; the labels are the tags.

    Args:
        marks_entities: Whether they are BIO tags of entities; else each stands for itself.
        piece: The piece of a word at which its tag is read; auto: the last one in a causal model,
            which has not seen the word before, else the first.
        label_all: Whether all pieces of a word have a target; see `encode_words`.
        stride: Words that two windows of a long text share; None: half of one.
        words: Where `read` parts words: at blanks, or at marks such as commas, too.
        scheme: That of other files: auto, or iob1, which a file of few entities may not show.
    """

    name, objective, head, example = "tagging", "tagging", "tags", TagExample
    fields, expected = ("tags", "entities", "probabilities"), "tags"
    files, export_head = "transfer_cli.tasks.tagging.files.TaggedFiles", "token_classification"
    makes_windows = scores_answers = combines = can_fail = True

    # Tasks that differ in these alone share their heads.
    marks_entities: bool = field(default=True, compare=False)
    piece: Literal["auto", "first", "last"] = field(default="auto", compare=False)
    label_all: bool = field(default=False, compare=False)
    stride: int | None = field(default=None, compare=False)
    words: Literal["blanks", "marks"] = field(default="blanks", compare=False)
    scheme: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.stride is not None:
            at_least("stride", self.stride, 0)

    def read(self, record: Record, text: str, pair: str | None, name: str) -> TagExample:
        """Return the words of a text, parted as `words` says, or those of a list."""
        cell = record.fields.get(text)
        if isinstance(cell, list) and all(isinstance(word, str) for word in cell):
            return TagExample.of_words(cell)
        cell = text_of(record, text, name)
        return TagExample(cell, tuple(match.span() for match in WORDS[self.words].finditer(cell)))

    def texts(self, example: TagExample) -> tuple[str, ...]:
        return (example.text,)

    def inputs(self, example: TagExample) -> tuple[str, ...]:
        """Return the words: not each stands between blanks."""
        return tuple(example.words)

    def labels_of(self, example: TagExample) -> Sequence[str]:
        return [self.labels[number] for number in example.label or ()]

    def check(self, train: Sequence[TagExample], where: str) -> None:
        if len(self.labels) < 2:
            raise DataError(
                f"{where}: all words have the tag {self.labels[0]!r}; there is nothing to learn. "
                "Name another column of tags."
            )

    def strata(self, examples: Sequence[TagExample]) -> Sequence[int]:
        return rarest_labels(examples)

    def encode(
        self,
        examples: Sequence[TagExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedWords:
        piece = self.piece
        if piece == "auto":
            piece = "last" if direction == "causal" else "first"
        inside = [self._continuation(tag) for tag in self.labels] if self.label_all else None
        return encode_words(
            examples, tokenizer, length, direction, piece, stride=self.stride, inside=inside
        )

    def _continuation(self, tag: str) -> int:
        """Return the number of the tag with which another one goes on."""
        goes_on = f"I{tag[1:]}"
        begins = self.marks_entities and schemes.marks_entity(tag, "B")
        return self.labels.index(goes_on if begins and goes_on in self.labels else tag)

    @classmethod
    def sample(cls) -> tuple["TaggingTask", Sequence[TagExample]]:
        return cls(("O", "B-RIVER", "I-RIVER"), stride=1), (
            TagExample.of_words(["Where", "do", "the", "rivers", "go", "?"], (0, 0, 1, 2, 0, 0)),
            TagExample.of_words(["How", "many", "?"], (0, 0, 0)),
            TagExample.of_words(["Rivers", "there"], (1, 1)),
        )

    # --- answers ----------------------------------------------------------------------------

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the text, the characters of its words, and the probability of each tag of each."""
        sentence = data.examples[example]
        spans = [[int(start), int(end)] for start, end in sentence.spans]
        return {"text": sentence.text, "spans": spans, "shares": of_words(data, rows, "shares")}

    def decode(self, shares_WC: Sequence[Sequence[float]]) -> list[str]:
        """Return the likeliest tags, of those that mark entities without fault if they are to."""
        if not shares_WC:
            return []
        found_WC = np.asarray(shares_WC, dtype=np.float64)
        best_W = found_WC.argmax(1)
        if self.marks_entities:
            with np.errstate(divide="ignore"):
                best_W = viterbi(np.log(found_WC), allowed_transitions(self.labels))
        return [self.labels[number] for number in best_W]

    def _decoded(self, shares_WC: Sequence[Sequence[float]]) -> tuple[list[str], list[float]]:
        """Return the tag of each word, and its share."""
        tags, numbers = self.decode(shares_WC), {tag: at for at, tag in enumerate(self.labels)}
        return tags, [shares[numbers[tag]] for shares, tag in zip(shares_WC, tags, strict=True)]

    def entities(self, tags: Sequence[str]) -> list[schemes.Entity]:
        """Return the entities that tags mark."""
        return schemes.entities(tags) if self.marks_entities else []

    def said(self, answer: Answer) -> tuple[str, float]:
        """Return entities, or each word with its tag, and how sure the least sure word is."""
        tags, sure = self._decoded(answer["shares"])
        return self._tagged_text(answer["text"], answer["spans"], tags), min(sure, default=1.0)

    @property
    def counted(self) -> Sequence[str]:
        """The kinds of entities, or the tags."""
        if not self.marks_entities:
            return self.labels
        return sorted({kind for tag in self.labels for kind, _, _ in self.entities([tag])})

    def counted_in(self, example: TagExample) -> Collection[str]:
        tags = list(self.labels_of(example))
        return {kind for kind, _, _ in self.entities(tags)} if self.marks_entities else {*tags}

    def said_labels(self, said: str) -> Collection[str]:
        """See `Task`; how entities and tags are told from words, `_tagged_text` says."""
        if self.marks_entities:
            parts = {part.partition(": ")[0] for part in said.split("; ")}
        else:
            parts = {word.rpartition("/")[2] for word in said.split()}
        return parts & {*self.counted}

    def written(self, answer: Answer) -> dict[str, Any]:
        """Return a tag for each word, and the entities by the characters of the text.

        The tag of a word that is not sure is null, and an entity with such a word is left out.
        """
        (tags, sure), spans, text = self._decoded(answer["shares"]), answer["spans"], answer["text"]
        is_given = [share >= self.abstain_below for share in sure]
        places = [
            (kind, spans[first][0], spans[past - 1][1])
            for kind, first, past in self.entities(tags)
            if all(is_given[first:past])
        ]
        return {
            "tags": [tag if known else None for tag, known in zip(tags, is_given, strict=True)],
            "entities": [
                {"label": kind, "start": start, "end": end, "text": text[start:end]}
                for kind, start, end in places
            ],
            "probabilities": [round(share, DECIMALS) for share in sure],
        }

    def combine(self, answers: Sequence[tuple[Task, Answer]]) -> Answer:
        orders = [task.labels for task, _ in answers]
        shares_WC = [
            mean_by_label(self.labels, list(zip(orders, shares, strict=True)))
            for shares in zip(*(answer["shares"] for _, answer in answers), strict=True)
        ]
        return {**answers[0][1], "shares": shares_WC}

    def learnt(self, answer: Answer) -> Sequence[Sequence[float]]:
        return list(answer["shares"])

    # --- scores -----------------------------------------------------------------------------

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """Return entities, or each word with its tag.

        The score is the F1 of the entities of this text, or the share of right tags.
        """
        sentence = data.examples[example]
        shares_WC = of_words(data, rows, "shares")
        (predicted, sure), given = self._decoded(shares_WC), list(self.labels_of(sentence))
        if self.marks_entities:
            expected, had = set(self.entities(given)), set(self.entities(predicted))
            both = len(expected) + len(had)
            score = 2 * len(expected & had) / both if both else 1.0
        else:
            right = sum(one == other for one, other in zip(given, predicted, strict=True))
            score = right / max(1, len(given))
        return Result(
            self._tagged_text(sentence.text, sentence.spans, given),
            self._tagged_text(sentence.text, sentence.spans, predicted),
            min(1.0, float(np.prod(sure))),
            score,
        )

    def _tagged_text(self, text: str, spans: Sequence[Sequence[int]], tags: Sequence[str]) -> str:
        if not self.marks_entities:
            words = (text[first:past] for first, past in spans)
            return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
        no_entity = "(none)"  # stands for no entities where people look at answers
        return "; ".join(
            f"{kind}: {text[spans[first][0] : spans[past - 1][1]]}"
            for kind, first, past in self.entities(tags)
        ) or no_entity  # fmt: skip

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return `accuracy` of words; of entities precision, recall and F1, also of each type.

        `macro_f1` is the mean of the types' F1, or where there are no entities of the tags'.
        An entity is right if its type, its first and its last word are. `entity_f1` follows
        conlleval's rules, `entity_f1_strict` seqeval's strict mode. Without any entity all are 0.
        """
        given = [list(self.labels_of(data.examples[example])) for example in rows]
        predicted = [self.decode(of_words(data, windows, "shares")) for windows in rows.values()]
        return measures(given, predicted, entities=self.marks_entities)

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        if self.marks_entities:
            f1 = measures.get("entity_f1", 1.0)
            if f1 > MARGIN:
                return None
            return f"the entity F1 of the training texts is {100 * f1:.1f} %; {CURE}"
        given = [sum(row) for row in tables.get("confusion", [])]
        if not given or "accuracy" not in measures:
            return None
        commonest = f"always answering {self.labels[given.index(max(given))]}"
        share = max(given) / sum(given)
        return baseline_failure("accuracy", measures["accuracy"], commonest, share)


def measures(
    given: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, entities: bool = True
) -> dict[str, float]:
    """Return the measures of sentences of tags; see `TaggingTask.scores`."""
    pairs = list(zip(given, predicted, strict=True))
    words = sum(map(len, given))
    right = sum(one == other for both in pairs for one, other in zip(*both, strict=True))
    scores = {"accuracy": right / words if words else 0.0}
    if not entities:
        both = list(chain.from_iterable(zip(*pair, strict=True) for pair in pairs))
        hits_of = Counter(one for one, other in both if one == other)
        had_of = Counter(chain.from_iterable(both))  # given and said
        f1_of = {tag: 2 * hits_of[tag] / had_of[tag] for tag in had_of}
        return scores | {"macro_f1": sum(f1_of.values()) / max(1, len(f1_of))}
    hit_of, wanted_of, had_of = _count_entities(pairs)
    scores |= _entity_measures(hit_of.total(), wanted_of.total(), had_of.total())
    hits, expected, had = (count_of.total() for count_of in _count_entities(pairs, strict=True))
    scores["entity_f1_strict"] = _entity_measures(hits, expected, had)["entity_f1"]
    parts = dict[str, float]()
    for kind in sorted(wanted_of | had_of):
        parts |= _entity_measures(hit_of[kind], wanted_of[kind], had_of[kind], f"/{kind}")
    f1s = [value for name, value in parts.items() if name.startswith("entity_f1/")]
    return scores | {"macro_f1": sum(f1s) / max(1, len(f1s))} | parts


def _count_entities(
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]], *, strict: bool = False
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Return how many entities of each type are said rightly, given, and said."""
    hits, expected, had = Counter[str](), Counter[str](), Counter[str]()
    for given, predicted in pairs:
        ours, theirs = (schemes.entities(tags, strict=strict) for tags in (given, predicted))
        expected.update(entity.type for entity in ours)
        had.update(entity.type for entity in theirs)
        hits.update(entity.type for entity in set(ours) & set(theirs))
    return hits, expected, had


def _entity_measures(hits: int, wanted: int, had: int, suffix: str = "") -> dict[str, float]:
    return {
        f"entity_f1{suffix}": 2 * hits / (wanted + had) if wanted + had else 0.0,
        f"entity_precision{suffix}": hits / had if had else 0.0,
        f"entity_recall{suffix}": hits / wanted if wanted else 0.0,
    }
