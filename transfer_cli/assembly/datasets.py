"""Config to data: found, tokenised, encoded, ready to train on and to score."""

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from omegaconf import DictConfig, OmegaConf

from transfer_cli.assembly.chosen_tokenizer import (
    choose_chat_template,
    choose_tokenizer,
    default_line_rule,
)
from transfer_cli.assembly.init_from import Pretrained
from transfer_cli.assembly.losses import RequestedLoss, check_task
from transfer_cli.assembly.model import block_length, direction_of
from transfer_cli.assembly.origins import Origins
from transfer_cli.config.build import build
from transfer_cli.data.chat_template import ChatTemplate
from transfer_cli.data.cloze import ClozeTexts, PairsOfSentences
from transfer_cli.data.corpus import EncodedText, TextBlocks, encode_text
from transfer_cli.data.documents import TextSplit
from transfer_cli.data.encoded_task import is_empty, warn_of_cuts, warn_of_empty
from transfer_cli.data.folders import cache_folder, data_folder
from transfer_cli.data.labelled import INPUT, LabelledData, Rest, TaskData, rest_data
from transfer_cli.data.sampler import quotas
from transfer_cli.data.sentence_pairs import pair_text
from transfer_cli.data.shards import cached_tokenizer
from transfer_cli.data.split import (
    LineRule,
    Split,
    TextContext,
    TextStats,
    WeightedSource,
    subsample,
)
from transfer_cli.data.text import Pairs, TextData, whole_text
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import TokenizerRecipe
from transfer_cli.errors import ConfigError, DataError, at_least, raised_as
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.seeds import derive
from transfer_cli.tasks.base import Direction, Encoded, Rows, Task, build_task, rows_by_example

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")

NoteText = Callable[[Mapping[str, TextSplit]], None]
"""What notes the splits of a text before they are encoded."""

FindTemplate = Callable[[Tokenizer], ChatTemplate | None]
"""Returns how conversations become texts that a tokenizer reads."""


@dataclass(frozen=True)
class DataPlace:
    """The folder of the data, with its cache, and the seed of splits that are drawn."""

    data_dir: str
    seed: int

    @property
    def folder(self) -> Path:
        """The folder of the data sets."""
        return data_folder(self.data_dir)

    @property
    def cache(self) -> Path:
        """The folder of tokenizers, encoded text and cached states."""
        return cache_folder(self.data_dir)


@dataclass(frozen=True)
class StreamSource:
    """A further stream as the config describes it.

    Args:
        batch: Examples of a step; None: as many as of the main stream.
        scored: Examples of each split that are scored at most; None: all.
        joins_main: Whether each step of the main stream has a batch of it, too; else a step is of
            one stream.
    """

    data: TextData | TaskData | Rest
    batch: int | None = None
    scored: int | None = None
    joins_main: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "scored"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class PreparedData:
    """A data set, encoded: ready to train on and to score.

    Args:
        splits: By name; "train" always.
        task: What its examples are; None: text without labels.
        lengths: Of the training texts, in tokens; None for blocks of text, which are all as long.
        pairs: What pairs of running text are asked; None: there are none.
        sources: Of the training text, whose blocks follow each other, with their weights.
    """

    splits: Mapping[str, Split]
    task: Task | None = None
    lengths: np.ndarray | None = None
    pairs: Pairs | None = None
    lines: LineRule = "end"
    sources: Sequence[WeightedSource] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of classes or tags; of text, and of some tasks, none."""
        return () if self.task is None else self.task.labels

    @property
    def count(self) -> int:
        """How many rows of it there are to train on."""
        return len(self.splits["train"].data)

    def info(self, tokenizer: Tokenizer) -> TaskInfo:
        """Return what an objective learns about it."""
        train = () if self.task is None else self.splits["train"].encoded.examples
        return TaskInfo(
            tokenizer, self.labels, task=self.task, pairs=self.pairs, train=train,
            validates="validation" in self.splits,
        )  # fmt: skip

    def encoded(self) -> "PreparedData":
        """Return it as it is."""
        return self

    def with_task(self, task: Task) -> "PreparedData":
        """Return the same data, whose answers are scored by another record of their task."""
        splits = {
            name: replace(split, scorer=_scorer(task, split.encoded))
            for name, split in self.splits.items()
        }
        return replace(self, splits=splits, task=task)


@dataclass(frozen=True)
class UnencodedData:
    """Labelled data that are read, and encoded when they are needed."""

    data: LabelledData
    length: int | None
    tokenizer: Tokenizer
    shape: BackboneShape
    origins: Origins

    @property
    def count(self) -> int:
        """How many examples of it there are to train on."""
        return len(self.data.splits["train"])

    def info(self, tokenizer: Tokenizer) -> TaskInfo:
        """Return what an objective learns about it."""
        data_task = task_of_data(self.data)
        return TaskInfo(
            tokenizer, data_task.labels, task=data_task, train=self.data.splits["train"],
            validates="validation" in self.data.splits,
        )  # fmt: skip

    def encoded(self) -> PreparedData:
        """Return it, encoded."""
        return prepare_task(self.data, self.length, self.tokenizer, self.shape)

    def rest(self, key: str) -> PreparedData:
        """Return what its labels leave out, encoded, for the stream of this key."""
        left = self.origins.check_labelled(key, rest_data(self.data, key))
        return replace(self, data=left).encoded()


@dataclass(frozen=True)
class RunData:
    """The data of every stream of a run, the main one first; encoded when it is needed.

    Args:
        batches: Examples that a step takes of each stream.
        joining: The streams that have a batch in each step of the main one.
    """

    tokenizer: Tokenizer
    main: PreparedData | UnencodedData
    others: Mapping[str, PreparedData]
    batches: Mapping[str, int]
    info: Mapping[str, TaskInfo]
    joining: frozenset[str] = frozenset()
    lines: LineRule = "end"

    @property
    def counts(self) -> dict[str, int]:
        """Training examples of each stream."""
        return {name: part.count for name, part in {"main": self.main, **self.others}.items()}

    @property
    def drawn_counts(self) -> dict[str, int]:
        """The examples of the streams from which a step draws one."""
        return {name: count for name, count in self.counts.items() if name not in self.joining}

    @property
    def splits(self) -> Set[str]:
        """The names of the splits of the main stream."""
        main = self.main
        return (main.data if isinstance(main, UnencodedData) else main).splits.keys()

    def encoded(self) -> dict[str, PreparedData]:
        """Return the streams, ready to train on and to score."""
        return {"main": self.main.encoded(), **self.others}


def run_data(
    config: DictConfig,
    command: str,
    shape: BackboneShape,
    start: Pretrained | None,
    origins: Origins,
    main: RequestedLoss,
) -> RunData:
    """Return the data of every stream of a run; labelled data of the main one is not encoded yet.

    The main objective decides how labelled data of the main one are written.
    """
    place = DataPlace(config.data_dir, config.seed)
    main_source = build_source(config.data, TextData if command == "pretrain" else TaskData)
    sources = {
        str(name): _stream_source(node, f"streams.{name}") for name, node in config.streams.items()
    }
    tokenizer = origins.check_tokenizer(choose_tokenizer(config.tokenizer, start, shape))
    lines = origins.lines or (None if start is None else start.lines)
    chat: FindTemplate = partial(choose_chat_template, config.tokenizer, start)
    labels: UnencodedData | None = None
    first: PreparedData | UnencodedData
    if command == "pretrain":
        note = partial(origins.check_text, "data")
        first, tokenizer = prepare_text(
            main_source, place, shape, tokenizer, note=note, lines=lines
        )
        lines = first.lines
    else:
        labels = _main_labelled_data(
            main_source, place, shape, tokenizer, start, origins, main, chat
        )
        first, tokenizer = labels, labels.tokenizer
        if task_of_data(labels.data).makes_windows:  # how many rows there are shows then
            first = labels.encoded()
    others = {
        name: prepare_stream(name, source, place, tokenizer, shape, origins, labels, lines, chat)
        for name, source in sources.items()
    }
    batch = config.loop.batch
    return RunData(
        tokenizer,
        first,
        others,
        {"main": batch} | {name: source.batch or batch for name, source in sources.items()},
        {name: part.info(tokenizer) for name, part in {"main": first, **others}.items()},
        frozenset(name for name, source in sources.items() if source.joins_main),
        lines or "end",
    )


def _main_labelled_data(
    source: TaskData,
    place: DataPlace,
    shape: BackboneShape,
    tokenizer: Tokenizer | TokenizerRecipe,
    start: Pretrained | None,
    origins: Origins,
    main: RequestedLoss,
    chat: FindTemplate,
) -> UnencodedData:
    """Return labelled data that a run is for, of the task as the main objective has it."""
    if source.kind is not None:  # before it is read: what it lacks would be said in its place
        check_task("main", main, source.kind)
    block_length(source.length, shape.positions)
    labelled = origins.check_labelled("data", source.load(place.folder, place.seed))
    data_task = main.objective.task_of(
        task_of_data(labelled),
        words=labelled.words,
        lines=start is not None and start.reads_lines,
        before_text=None if start is None else start.before_text,
    )
    tokenizer = task_tokenizer(labelled, tokenizer)
    data_task = data_task.written_by(partial(chat, tokenizer))
    labelled = replace(labelled, task=data_task.as_node())
    return UnencodedData(labelled, source.length, tokenizer, shape, origins)


def _stream_source(node: Any, key: str) -> StreamSource:
    options: Any = OmegaConf.to_container(node, resolve=True)
    joined = options.pop("with", None)
    if joined not in (None, "main"):
        raise ConfigError(
            f"{key}.with: {joined!r} is neither main, whose steps it joins, nor null, for steps "
            "of its own"
        )
    return build(options, key, StreamSource, joins_main=joined == "main")


def data_dir_of(earlier: str, now: str, typed: Sequence[str]) -> str:
    """Return where the data of an earlier run is: in `earlier`, if that folder is on this machine.

    Where `data_dir` was typed for the command at work, or the folder is gone, it is that of `now`.
    """
    is_typed = any(word.lstrip("+").startswith("data_dir=") for word in typed)
    return earlier if not is_typed and data_folder(earlier).is_dir() else now


def prepare_stream(
    name: str,
    source: StreamSource,
    place: DataPlace,
    tokenizer: Tokenizer,
    shape: BackboneShape,
    origins: Origins,
    main: UnencodedData | None = None,
    lines: LineRule | None = None,
    chat: FindTemplate = lambda _: None,
) -> PreparedData:
    """Return the data of a further stream, encoded for the run's model.

    `main` are the labelled data of the main stream, if any. For `lines` see `prepare_text`.
    """
    data, key = source.data, f"streams.{name}"
    if isinstance(data, Rest):
        if main is None:
            raise ConfigError(f"{key}.data: the main data have no labels, so there is no rest")
        prepared = main.rest(key)
    elif isinstance(data, TaskData):
        labelled = origins.check_labelled(key, data.load(place.folder, place.seed))
        data_task = task_of_data(labelled).written_by(partial(chat, tokenizer))
        prepared = prepare_task(labelled, data.length, tokenizer, shape, known=data_task)
    else:
        note = partial(origins.check_text, key)
        prepared, _ = prepare_text(data, place, shape, tokenizer, note=note, lines=lines)
    if source.scored is None:
        return prepared
    fewer = {
        part: split if part == "train" else subsample(split, source.scored)
        for part, split in prepared.splits.items()
    }
    for portion in fewer.values():
        if portion.name != "train":
            log.info("streams.%s: %s: %s", name, portion.name, portion.extent("scores"))
    return replace(prepared, splits=fewer)


def build_source(node: Any, kind: Any = TextData | TaskData) -> Any:
    """Return the data that a config describes, which has to be of a kind, to train on or score."""
    source: Any = build(node, "data", TextData | TaskData | PairsOfSentences | ClozeTexts)
    if isinstance(source, kind):
        return source
    if isinstance(source, PairsOfSentences | ClozeTexts):
        what = "pairs of sentences" if isinstance(source, PairsOfSentences) else "texts with a gap"
        raise ConfigError(
            f"data: these are {what}, which only score takes: type transfer score run=RUN"
        )
    if kind is TaskData:
        raise ConfigError(
            "data: this is text without labels, which only pretrain takes; "
            "choose labelled data: trec6, trec50, table or sample_questions"
        )
    raise ConfigError(
        "data: this is labelled data, which only finetune takes; "
        "choose text: wikitext103, wikitext2, text or sample_text"
    )


def prepare_text(
    source: TextData,
    place: DataPlace,
    shape: BackboneShape,
    tokenizer: Tokenizer | TokenizerRecipe,
    only: tuple[str, ...] | None = None,
    note: NoteText = lambda _: None,
    lines: LineRule | None = None,
) -> tuple[PreparedData, Tokenizer]:
    """Return a text, or `only` some of its splits, and the tokenizer that encoded it.

    It is in blocks, or in pairs. `lines` is what became of line breaks when the model was trained;
    None: it is new.
    """
    length = block_length(source.length, shape.positions)
    if source.pairs is not None and shape.direction == "causal":
        raise ConfigError(
            "data.pairs: pairs of texts are for a model that reads them from both sides; take "
            "objective=mlm, or leave it out"
        )
    direction = direction_of(shape)
    encoded, tokenizer, rule = encode_whole_texts(
        source, place, direction, tokenizer, only, note, lines
    )
    if source.pairs is None:
        return replace(_split_into_blocks(encoded, tokenizer, length, shape), lines=rule), tokenizer
    return _make_pairs(encoded, tokenizer, length, source, source.pairs, place.seed), tokenizer


def encode_whole_texts(
    source: TextData,
    place: DataPlace,
    direction: Direction,
    tokenizer: Tokenizer | TokenizerRecipe,
    only: tuple[str, ...] | None = None,
    note: NoteText = lambda _: None,
    lines: LineRule | None = None,
) -> tuple[dict[str, EncodedText], Tokenizer, LineRule]:
    """Return splits of a text, each encoded in one piece, with tokenizer and rule for line breaks.

    A recipe makes the tokenizer from the training text. `note` is called before it is encoded. For
    `lines` see `prepare_text`.
    """
    raw = source.splits(place.folder, place.seed, only=only)
    if isinstance(tokenizer, TokenizerRecipe):
        tokenizer = cached_tokenizer(tokenizer, raw["train"], place.cache)
    rule = _line_rule(source, tokenizer, direction, lines)
    if rule not in ("end", source.lines):  # other parts are held out
        raw = replace(source, lines=rule).splits(place.folder, place.seed, only=only)
    note(raw)
    return _encode_splits(raw, tokenizer, place.cache, rule), tokenizer, rule


def _line_rule(
    source: TextData, tokenizer: Tokenizer, direction: Direction, trained: LineRule | None
) -> LineRule:
    """Return what becomes of the line breaks of a text: what it says, or the model knows."""
    if source.pairs is not None:
        return "end"
    rule = source.lines or trained or default_line_rule(tokenizer, direction)
    if rule == "keep" and not tokenizer.keeps_lines:
        raise ConfigError(
            "data.lines: keep needs a tokenizer that has a token for a line break, and this one "
            "has none; say data.lines=join or data.lines=end"
        )
    if rule != "end":
        end = tokenizer.pieces([tokenizer.sep])[0]
        log.info("data.lines=%s: %s ends documents, and lines do not end by it", rule, end)
    return rule


def encode_files(
    paths: str,
    cache: Path,
    tokenizer: Tokenizer,
    shape: BackboneShape,
    length: int,
    note: NoteText = lambda _: None,
    lines: LineRule = "end",
) -> Split:
    """Return all of some text files, encoded, to be scored."""
    raw = {"validation": whole_text(paths, "validation")}
    note(raw)
    encoded = _encode_splits(raw, tokenizer, cache, lines)
    return _split_into_blocks(encoded, tokenizer, length, shape).splits["validation"]


def _encode_splits(
    raw: Mapping[str, TextSplit], tokenizer: Tokenizer, cache: Path, rule: LineRule
) -> dict[str, EncodedText]:
    return {
        name: encode_text(raw[name].with_rule(rule), tokenizer, cache)
        for name in (*SPLITS, INPUT)
        if name in raw
    }


def _split_into_blocks(
    encoded: Mapping[str, EncodedText], tokenizer: Tokenizer, length: int, shape: BackboneShape
) -> PreparedData:
    context = TextContext("blocks", 0, length) if shape.direction == "causal" else None
    if shape.recurrence:
        context = TextContext("memory", shape.recurrence, length)
    blocks = {name: TextBlocks(part, length, tokenizer.pad) for name, part in encoded.items()}
    splits = {
        name: Split(
            name,
            blocks[name],
            TextStats(words=part.num_words, size_bytes=part.num_bytes),
            part_of=part.part_of,
            context=context,
        )
        for name, part in encoded.items()
    }
    sources = blocks["train"].sources if "train" in blocks else []
    for source, count in zip(sources, quotas(sources), strict=True):
        log.info(
            "data.weights: %s of %s blocks of an epoch are from %s, which has %s",
            f"{count:,}", f"{len(blocks['train']):,}", source.name, f"{source.size:,}",
        )  # fmt: skip
    return PreparedData(splits, sources=sources)


def with_context(
    split: Split,
    shape: BackboneShape,
    tokens: int,
    stride: int | None,
    by: Literal["windows", "memory"],
) -> Split:
    """Return running text in which `tokens` tokens are seen before those that are scored.

    Args:
        tokens: How many; 0 are blocks.
        stride: Tokens that are scored at once; None: a block by memory, else as many as fill one
            beside the context.
        by: Whether the context is remembered or read again.
    """
    blocks = split.data
    if split.context is None or not isinstance(blocks, TextBlocks):
        raise ConfigError(
            "evaluation.context: is for language models that read running text from left to right, "
            "and this run is none"
        )
    at_least("evaluation.context:", tokens, 0, ConfigError)
    remembers = by == "memory" and tokens > 0
    bounded = not remembers and shape.is_bounded
    if stride is None:
        stride = max(1, blocks.length - tokens) if bounded else blocks.length
    at_least("evaluation.stride:", stride, 1, ConfigError)
    if bounded and tokens + stride > shape.positions:
        raise ConfigError(
            f"evaluation.context: {tokens} tokens and {stride} that are scored (evaluation.stride) "
            f"are more than the model's {shape.positions} positions; give less of either"
        )
    cut = replace(blocks, length=stride, history=0 if remembers else tokens)
    context = TextContext(by if tokens else "blocks", tokens, stride)
    return replace(split, data=cut, context=context)


def _make_pairs(
    encoded: Mapping[str, EncodedText],
    tokenizer: Tokenizer,
    length: int,
    source: TextData,
    kind: Pairs,
    seed: int,
) -> PreparedData:
    """Return splits in pairs: those to score are the same in every run, so that runs compare."""
    splits = {}
    for name, part in encoded.items():
        own_seed, copies = (seed, source.copies) if name == "train" else (0, 1)
        try:
            pairs = pair_text(
                part, tokenizer, length, kind, source.units,
                seed=derive(own_seed, "pairs", name), copies=copies,
            )  # fmt: skip
        except DataError as error:
            raise DataError(
                f"data.pairs={kind}: the {name} text, cut into units of a {source.units}, {error}; "
                "say where documents begin (data.heading, or an empty line before each), which two "
                "columns are translations (data.field=[en,de]), or take another of data.units, "
                "data.pairs"
            ) from error
        log.info("%s: %s", name, pairs.describe())
        splits[name] = Split(name, pairs, unit="pairs", part_of=part.part_of)
    return PreparedData(splits, pairs=kind)


def task_tokenizer(data: LabelledData, tokenizer: Tokenizer | TokenizerRecipe) -> Tokenizer:
    """Return the tokenizer of labelled data; a recipe makes one of its training texts."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    data_task = task_of_data(data)
    firsts, others = [], []
    for first, *further in map(data_task.texts, data.splits["train"]):
        firsts.append(first)
        others += further
    return tokenizer.make(lambda: iter([*firsts, *others]))


def task_of_data(data: LabelledData) -> Task:
    """Return what the examples of labelled data are."""
    data_task = build_task(data.task, data.labels, "data")
    if data_task is None:
        raise ConfigError("data: its source names no task, and its examples have no labels")
    return data_task


def prepare_task(
    data: LabelledData,
    length: int | None,
    tokenizer: Tokenizer,
    shape: BackboneShape,
    only: tuple[str, ...] = SPLITS,
    known: Task | None = None,
) -> PreparedData:
    """Return labelled data encoded for a model; `only` names the splits that are needed.

    The longest example has `length` tokens, by default as many as the model has positions. Where a
    run is scored, the task is the run's, which is `known`, and not the data's own.
    """
    longest = block_length(length, shape.positions)
    data_task = known or task_of_data(data)
    splits = {}
    for name in (split for split in only if split in data.splits):
        examples = data.splits[name]
        with raised_as(DataError, f"{data.source(name)}, ", DataError):
            encoded = data_task.encode(examples, tokenizer, longest, direction_of(shape))
        warn_of_cuts(encoded.num_cut, len(examples), *data_task.kept(longest))
        warn_of_empty(sum(map(is_empty, map(data_task.texts, examples))), len(examples))
        splits[name] = Split(
            name,
            encoded,
            order=np.argsort(encoded.lengths, kind="stable"),  # from short to long: least padding
            example_of=encoded.example_of if len(encoded) > len(examples) else None,
            scorer=_scorer(data_task, encoded),
            unit="examples",
            part_of=data.part_of.get(name),
            num_cut=encoded.num_cut,
            shown=partial(_first_text, data_task, examples),
            column=partial(data.column, name),
            seen=data.seen.get(name, ()),
        )
    train: Any = splits["train"].data if "train" in splits else None
    return PreparedData(splits, data_task, None if train is None else train.lengths)


def _first_text(data_task: Task, examples: Sequence[Any], number: int) -> str:
    return data_task.texts(examples[number])[0]


def _scorer(data_task: Task, encoded: Encoded) -> Callable[[Rows], dict[str, float]] | None:
    return partial(_scores, data_task, encoded) if data_task.scores_answers else None


def _scores(data_task: Task, encoded: Encoded, rows: Rows) -> dict[str, float]:
    return data_task.scores(encoded, rows_by_example(encoded, rows))
