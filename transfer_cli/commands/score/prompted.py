"""The labels, or choices, of texts by the words that a language model finds likeliest.

Legend: B examples, C labels or choices.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.finished_run import Trained
from transfer_cli.commands.score.sentence_scores import Findings
from transfer_cli.config.literal import text_of
from transfer_cli.config.schema import ScoreConfig
from transfer_cli.data.labelled import LabelledData, TaskData
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.generation.filling import encode_with_gaps
from transfer_cli.generation.likelihood import Ending, Gap, ReadBeginning, score_gaps
from transfer_cli.generation.prompts import (
    CONTENT_FREE,
    Template,
    calibrated,
    draw_shots,
    ending_of,
    normalised,
    shares,
)
from transfer_cli.metrics import Metric, wilson_interval
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.progress import progress
from transfer_cli.runs.items import Item, shortened
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.cloze.pattern import words_of_labels

SHOWN = 5
"""Labels of which it is told how often they were said."""

Words = Sequence[Sequence[str]]
"""The words of each label."""


@dataclass(frozen=True)
class PromptExample:
    """An example as a prompt asks for it."""

    text: str
    pair: str | None
    words: Words
    label: int
    shown: str


@dataclass
class Prompter:
    """Asks a language model which of some words goes on with a prompt.

    Args:
        trained: The language model.
        template: How examples are written.
        shots: The items that stand before each one, the first ones left out where all are too long.
        norm: See `prompts.normalised`.
        batch: Texts that pass through a masked model at once.

    Attributes:
        dropped: How many items were left out of all prompts.
        is_causal: Whether the model goes on with a prompt, or fills a gap in it.
    """

    trained: Trained
    template: Template
    shots: Sequence[str]
    norm: str
    batch: int
    dropped: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.is_causal = isinstance(self.trained.objective, CausalLM)
        self._encode = self.trained.start.prompt_layout.encode
        if self.is_causal:
            begun = self.template.joined(self.shots)
            room = self.trained.start.description.shape.positions
            self._read = ReadBeginning(self.trained.model, self._encode(begun)[: room - 1])
            self._alone = ReadBeginning(self.trained.model, [])

    def ask(self, examples: Sequence[PromptExample]) -> list[dict[str, npt.NDArray[np.float64]]]:
        """Return the probabilities `[C]` of each example's labels, plain and by the norm."""
        if not self.is_causal:
            return self._fill(examples)
        with progress("asking", len(examples), "prompts") as more:
            found = []
            for each in examples:
                found.append(self._go_on(each))
                more(1)
        return found

    def _go_on(self, example: PromptExample) -> dict[str, npt.NDArray[np.float64]]:
        """Return what a causal model says of an example."""
        answers = [self.template.answer(word) for own in example.words for word in own]
        rows = self._rows(example, answers)
        said = [each.tolist() for each in self._read.score(rows)]
        alone: list[list[float]] = [[] for _ in answers]
        if self.norm == "unconditional":
            bare = [ending_of(self._encode, self.template.bare, answer) for answer in answers]
            alone = [each.tolist() for each in self._alone.score(_with_start(bare))]
        found = {}
        for norm in dict.fromkeys(("none", self.norm)):
            scores = iter(
                normalised(own, answer, norm, other)
                for own, answer, other in zip(said, answers, alone, strict=True)
            )
            found[norm] = shares([[next(scores) for _ in own] for own in example.words])
        return found

    def _rows(self, example: PromptExample, answers: Sequence[str]) -> list[Ending]:
        """Return an example's prompt with each answer, after as many items as there is room."""
        positions = self.trained.start.description.shape.positions
        for left in range(len(self.shots) + 1):
            prompt = self.template.asked(self.shots[left:], example.text, example.pair)
            rows = [ending_of(self._encode, prompt, answer) for answer in answers]
            if max(len(row.tokens) for row in rows) <= positions:
                self.dropped += left
                return _with_start(rows)
        raise DataError(_too_long(example, positions))

    def _fill(self, examples: Sequence[PromptExample]) -> list[dict[str, npt.NDArray[np.float64]]]:
        """Return what a masked model says of examples, whose label it sees as a gap."""
        tokenizer = self.trained.start.tokenizer
        positions = self.trained.start.description.shape.positions
        gaps = []
        for example in examples:
            asked = [self._token(word) for own in example.words for word in own]
            own = self.template.filled(example.text, example.pair, "[MASK]")
            for left in range(len(self.shots) + 1):
                text = self.template.joined([*self.shots[left:], own])
                tokens = encode_with_gaps(text, tokenizer, self.trained.start.around)
                if len(tokens) <= positions:
                    break
            else:
                raise DataError(_too_long(example, positions))
            self.dropped += left
            if tokens.count(tokenizer.mask) != 1:
                raise DataError(f"The text {example.text[:80]!r} holds [MASK], as its prompt does.")
            gaps.append(Gap(tokens, tokens.index(tokenizer.mask), asked))
        said = score_gaps(self.trained.model, gaps, tokenizer.pad, self.batch)
        found = []
        for example, each in zip(examples, said, strict=True):
            scores = iter(each.tolist())
            by_label = shares([[next(scores) for _ in own] for own in example.words])
            found.append(dict.fromkeys(("none", self.norm), by_label))
        return found

    def _token(self, word: str) -> int:
        """Return the one token of a word."""
        tokens = self.trained.start.tokenizer.encode(self.template.answer(word))
        if len(tokens) != 1:
            raise ConfigError(
                f"prompt.words: {word!r} has {len(tokens)} tokens, and a masked model fills a gap "
                "with one; transfer fill shows which words it knows"
            )
        return tokens[0]


class PromptedData:
    """Labelled examples that are asked for by prompts: those of a split, after some of training."""

    def __init__(self, config: ScoreConfig, source: TaskData, trained: Trained) -> None:
        place, asked = DataPlace(config.data_dir, config.seed), config.prompt
        self._trained, self._asked, self._batch = trained, asked, int(config.batch)
        self._data = source.load(place.folder, place.seed)
        self._task = datasets.task_of_data(self._data)
        if self._task.name not in ("classification", "choice"):
            raise ConfigError(
                f"data: it holds examples of the task {self._task.name}; prompts are for texts "
                "with one label each, and for choices"
            )
        self._is_choice = self._task.name == "choice"
        if self._is_choice and asked.calibrate:
            raise ConfigError(
                "prompt.calibrate: is for labels; each question has choices of its own"
            )
        self._split = _split(self._data, config.split)
        item, head = text_of(asked.item, "prompt.item"), text_of(asked.head, "prompt.head")
        self._template = Template(item.replace("\\n", "\n"), head.replace("\\n", "\n"))
        words = _typed_words(asked.words)
        self._words: Words = ()
        if not self._is_choice:
            self._words = words_of_labels(words, self._data.labels, "prompt.words")
        elif words:
            raise ConfigError("prompt.words: are for labels; choices are their own words")

    def findings(self, shots: int, seed: int) -> Findings:
        """Return how often the right label, or choice, is the likeliest.

        Args:
            shots: How many examples of each label stand before each item.
            seed: Which ones follows from it.
        """
        train = [self._example(each) for each in self._data.splits["train"]] if shots else []
        labels = [0 if self._is_choice else each.label for each in train]
        shown = [
            self._template.filled(each.text, each.pair, each.words[each.label][0])
            for each in (train[number] for number in draw_shots(labels, shots, seed))
        ]
        prompter = Prompter(self._trained, self._template, shown, self._asked.norm, self._batch)
        examples = [self._example(each) for each in self._data.splits[self._split]]
        return self._scored(prompter, examples)

    def _example(self, example: Any) -> PromptExample:
        shown = " / ".join(self._task.texts(example))
        if self._is_choice:
            text = f"{example.context} {example.question}".strip()
            words = [[choice] for choice in example.choices]
            return PromptExample(text, None, words, example.label, shown)
        return PromptExample(example.text, example.pair, self._words, example.label, shown)

    def _item(self, index: int, example: PromptExample, shares_C: npt.NDArray[np.float64]) -> Item:
        names = [words[0] for words in example.words] if self._is_choice else self._data.labels
        best = int(shares_C.argmax())
        ties = float((shares_C == shares_C[best]).sum())
        is_right = shares_C[example.label] == shares_C[best]
        return Item(
            split=self._split,
            index=index,
            label=names[example.label],
            predicted=names[best],
            probability=float(shares_C[best]),
            text=shortened(example.shown),
            loss=float(-np.log(max(shares_C[example.label], 1e-300))),
            targets=1,
            score=is_right / ties if self._is_choice else None,
        )

    def _scored(self, prompter: Prompter, examples: Sequence[PromptExample]) -> Findings:
        norm, labels = self._asked.norm, self._data.labels
        found = prompter.ask(examples)
        bias_C = None
        variants = {name: [each[name] for each in found] for name in dict.fromkeys(("none", norm))}
        if self._asked.calibrate:
            # Another [MASK] would be a second gap.
            texts = [text for text in CONTENT_FREE if prompter.is_causal or text != "[MASK]"]
            nothing = [replace(examples[0], text=text, pair=None) for text in texts]
            bias_C = np.mean([each[norm] for each in prompter.ask(nothing)], axis=0)
            variants["calibrated"] = [calibrated(each, bias_C) for each in variants[norm]]
        chosen = "calibrated" if self._asked.calibrate else norm
        labels_B = np.array([each.label for each in examples])
        measures, tables, metrics = _measures(variants[chosen], labels_B, self._task)
        names = [f"accuracy_{name}" for name in variants]
        for name, own in zip(names, variants.values(), strict=True):
            measures[name] = _measures(own, labels_B, self._task)[0]["accuracy"]
        others = [Metric(name, higher_is_better=True, unit="fraction") for name in names]
        items = list(map(self._item, itertools.count(), examples, variants[chosen]))
        said = Counter(item.predicted for item in items)
        total, right = len(items), round(measures["accuracy"] * len(items))
        low, high = wilson_interval(right, total)
        lines = [
            f"{100 * right / total:.1f} % right of {total:,} "
            f"({100 * low:.1f} to {100 * high:.1f}); "
            + ", ".join(f"{name} {100 * measures[f'accuracy_{name}']:.1f}" for name in variants)
        ]
        details: dict[str, Any] = {"dropped": prompter.dropped}
        if not self._is_choice:
            given = Counter(item.label for item in items)
            common, times = given.most_common(1)[0]
            often = ", ".join(f"{name} {count}" for name, count in said.most_common(SHOWN))
            lines.append(f"always saying {common!r} gets {100 * times / total:.1f}; said: {often}")
            details["said"] = dict(said)
        if bias_C is not None:
            details["bias"] = dict(zip(labels, bias_C.tolist(), strict=True))
        if prompter.dropped:
            lines.append(f"{prompter.dropped} examples were left out of prompts that were too long")
        about = {"name": self._task.name, "expected": self._task.expected}
        return Findings(
            self._split, measures, [*metrics, *others], items, lines, labels, about, tables, details
        )  # fmt: skip


def _typed_words(typed: Any) -> Mapping[str, object]:
    if typed is None:
        return {}
    if not isinstance(typed, dict):
        raise ConfigError(
            f"prompt.words: expected {{LABEL: WORD, ...}}, got {typed!r}; quote it for the shell"
        )
    return {str(name): word for name, word in typed.items()}


def _split(data: LabelledData, asked: str) -> str:
    """Return the split to score."""
    names = [name for name in ("test", "validation") if name in data.splits]
    chosen = names[0] if asked == "auto" and names else asked
    if chosen not in data.splits:
        raise DataError(
            f"split: this data has no {chosen} split; type split= with one of "
            f"{', '.join(data.splits)}"
        )
    return chosen


def _measures(
    shares_BC: Sequence[npt.NDArray[np.float64]], labels_B: npt.NDArray[np.int64], task: Task
) -> tuple[dict[str, float], dict[str, Any], Sequence[Metric]]:
    """Return the measures, tables and metrics that fine-tuned models of the task have."""
    most = max(len(each) for each in shares_BC)
    logits_BC = torch.full((len(shares_BC), most), -torch.inf, dtype=torch.float64)
    for row, shares_C in enumerate(shares_BC):
        # A share of exactly 0 stays the least likely of those that are there.
        logits_BC[row, : len(shares_C)] = torch.from_numpy(shares_C).clamp(min=1e-300).log()
    label_B = torch.from_numpy(labels_B)
    objective = MultipleChoice() if task.name == "choice" else Classification()
    objective.setup(TaskInfo(None, task.labels, task=task))  # type: ignore[arg-type]
    totals = objective.tallies(logits_BC, {"label": label_B})
    measures = objective.compute_metrics(totals, {"loss": len(labels_B)}, TextStats())
    return measures, objective.tables(totals), objective.declared_metrics()


def _with_start(rows: Sequence[Ending]) -> list[Ending]:
    """Return rows whose first token has one before it, as far as there are such tokens."""
    return [row if row.first else Ending(row.tokens, 1) for row in rows]


def _too_long(example: PromptExample, positions: int) -> str:
    return (
        f"The text {example.text[:80]!r} is longer with its prompt than the model's {positions} "
        "positions."
    )
