"""`transfer score`: what a language model says of sentences and prompts, without training.

Prompts ask for the label, or the choice, whose words it finds likeliest.

Legend: B examples, C labels or choices.
"""

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.finished_run import TrainedModel, check_one_stack, open_trained
from transfer_cli.assembly.language_models import sentence_scorer
from transfer_cli.commands.score.sentence_scores import (
    Findings,
    WordAsker,
    score_cloze,
    score_pairs,
)
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.literal import text_of
from transfer_cli.config.schema import PromptConfig, ScoreConfig
from transfer_cli.config.stored import as_yaml
from transfer_cli.data.cloze import ClozeTexts, PairsOfSentences
from transfer_cli.data.labelled import LabelledData, TaskData
from transfer_cli.data.split import TextStats
from transfer_cli.data.text import TextData
from transfer_cli.engine.evaluation import inference_batch_size
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import CheckpointError, ConfigError, DataError, at_least, count_or_auto
from transfer_cli.generation.filling import encode_with_gaps
from transfer_cli.generation.likelihood import Ending, Gap, PrefixScorer, Row, score_rows
from transfer_cli.generation.prompts import (
    CONTENT_FREE,
    Template,
    calibrate_probabilities,
    draw_shots,
    encode_ending,
    label_probabilities,
    normalised_score,
)
from transfer_cli.metrics import Metric, wilson_interval
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.progress import progress
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.environment import environment, versions
from transfer_cli.runs.items import Item, shortened, write_items
from transfer_cli.runs.results import Parameters, Results
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.cloze.pattern import label_words
from transfer_cli.terminal import print_line
from transfer_cli.training.measurements import peak_memory

log = logging.getLogger(__name__)


def score(config: ScoreConfig) -> None:
    """Score sentences, gaps or prompts; print the results, and write them as a run or several."""
    count_or_auto("batch", config.batch)
    source = build(config.data, "data", PairsOfSentences | ClozeTexts | TaskData | TextData)
    if isinstance(source, TextData):
        raise ConfigError(
            "data: this is text; score takes pairs of sentences, texts with a gap and labelled "
            "data, and transfer evaluate measures a text's perplexity"
        )
    if not isinstance(source, TaskData) and config.prompt != PromptConfig():
        log.warning(
            "prompt: sentences and gaps are scored as they stand; its keys are for labelled data"
        )
    shots = _shots(config)
    if config.output is not None:
        RunDirectory.check_free(Path(config.output).expanduser())
    precision = device_and_precision(config.device, config.precision)
    trained = open_trained(config.run, precision, config.base)
    check_one_stack(trained)
    if not isinstance(trained.objective, LanguageModel):
        raise CheckpointError(
            f"run: {config.run} is no language model ({type(trained.objective).__name__}); score "
            "needs one, such as the run that this was adapted from"
        )
    batch = inference_batch_size(config.batch, trained.model, precision.device)
    config = replace(config, batch=batch)
    typed = CommandLine.current()
    runs = [
        (count, order) for count in shots for order in range(config.prompt.orders if count else 1)
    ]
    with torch.inference_mode(), precision.context():
        findings_of = _scoring_function(config, source, trained)
        for count, order in runs if isinstance(source, TaskData) else runs[:1]:
            began = time.perf_counter()
            findings = findings_of(count, config.seed + order)
            seconds = time.perf_counter() - began
            prompt = replace(config.prompt, shots=count)
            run_config = replace(config, prompt=prompt, seed=config.seed + order)
            part = (count, order) if isinstance(source, TaskData) and len(runs) > 1 else None
            directory = _new_directory(config, typed, part)
            _write_run(directory, run_config, typed, findings, trained, seconds)
            _print_findings(directory.path, findings, part)


def _scoring_function(
    config: ScoreConfig, source: PairsOfSentences | ClozeTexts | TaskData, trained: TrainedModel
) -> Callable[[int, int], Findings]:
    """Return what scores the data, with a number of shots and a seed where there are prompts."""
    if isinstance(source, TaskData):
        return PromptedData(config, source, trained).findings
    if isinstance(source, ClozeTexts):
        asker = WordAsker(trained, int(config.batch), source.words())
        return lambda shots, seed: score_cloze(asker, source.load())
    scorer = sentence_scorer(
        trained, batch=int(config.batch), scores_first=config.first == "scored",
        within_word=config.within_word,
    )  # fmt: skip
    return lambda shots, seed: score_pairs(scorer, source.load())


def _shots(config: ScoreConfig) -> list[int]:
    at_least("prompt.orders:", config.prompt.orders, 1, ConfigError)
    typed = config.prompt.shots
    shots = [typed] if isinstance(typed, int) else typed if isinstance(typed, list) else []
    if not shots or not all(type(count) is int and count >= 0 for count in shots):
        raise ConfigError(
            f"prompt.shots: expected a number, or a list such as [0,1,4]; got {typed}"
        )
    return list(dict.fromkeys(shots))


def _new_directory(
    config: ScoreConfig, typed: CommandLine, part: tuple[int, int] | None
) -> RunDirectory:
    """Return a new run directory: `output`, or one below it for each of several runs."""
    if config.output is None:
        return RunDirectory.create_new(Path("runs/score"), typed.presets.get("data", "data"))
    path = Path(config.output).expanduser()
    return RunDirectory.create(path if part is None else path / "shots-{}-order-{}".format(*part))


def _write_run(
    directory: RunDirectory,
    config: ScoreConfig,
    typed: CommandLine,
    findings: Findings,
    trained: TrainedModel,
    seconds: float,
) -> None:
    model = trained.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    task = findings.task or {}
    results = Results(
        command="score",
        presets=typed.presets,
        seed=config.seed,
        measures={findings.split: findings.measures},
        metrics=tuple(findings.metrics),
        tables={findings.split: findings.tables} if findings.tables else {},
        labels=tuple(findings.labels),
        task=task.get("name"),
        expected=task.get("expected"),
        parameters=Parameters(parameters, 0),
        more={"prompts": findings.details, "versions": versions()},
    )
    device = model.backbone.token_embedding.weight.device
    with directory.written_at_once():
        directory.write_start(
            "score", as_yaml(config), typed.overrides, typed.presets, environment()
        )
        write_items(directory.items, findings.items)
        write_json(
            directory.timing,
            {"seconds": round(seconds, 3), "peak_memory_bytes": peak_memory(device)},
        )
        results.write(directory.results)


def _print_findings(path: Path, findings: Findings, part: tuple[int, int] | None) -> None:
    """Print the measures of a run, and where it is."""
    if part is not None:
        print_line(f"shots {part[0]}, order {part[1]}")
    for line in findings.lines:
        print_line(line)
    for name, value in findings.measures.items():
        if "/" not in name:
            print_line(f"{findings.split:10s} {name:24s} {value:.6g}")
    print_line(f"files      {path}")


SHOWN = 5
"""Most labels for which it is shown how often they were said."""


@dataclass(frozen=True)
class PromptExample:
    """An example as a prompt asks for it."""

    text: str
    pair: str | None
    words: Sequence[Sequence[str]]
    label: int
    shown: str


@dataclass
class Prompter:
    """Asks a language model which of some words goes on with a prompt.

    Args:
        shots: The items that stand before each one, the first ones left out where all are too long.
        batch: Texts that pass through a masked model at once.

    Attributes:
        dropped: How many items were left out of all prompts.
        is_causal: Whether the model goes on with a prompt, or fills a gap in it.
    """

    trained: TrainedModel
    template: Template
    shots: Sequence[str]
    norm: str
    batch: int
    dropped: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.is_causal = isinstance(self.trained.objective, CausalLM)
        self._layout = self.trained.start.prompt_layout
        if self.is_causal:
            self.template.check_order()
            begun = self.template.join(self.shots)
            room = self.trained.start.description.shape.positions
            self._read = PrefixScorer(self.trained.model, self._layout.encode(begun)[: room - 1])
            self._alone = PrefixScorer(self.trained.model, [])

    def ask(self, examples: Sequence[PromptExample]) -> list[dict[str, npt.NDArray[np.float64]]]:
        """Return the probabilities `[C]` of each example's labels, plain and by the norm."""
        if not self.is_causal:
            return self._fill(examples)
        with progress("asking", len(examples), "prompts") as more:
            probabilities = []
            for example in examples:
                probabilities.append(self._score_answers(example))
                more(1)
        return probabilities

    def _score_answers(self, example: PromptExample) -> dict[str, npt.NDArray[np.float64]]:
        """Return what a causal model says of an example."""

        def endings(prompt: str) -> list[Ending]:
            return [
                encode_ending(self._layout, prompt, answer) for answer in self._answers(example)
            ]

        rows = self._with_room(
            example, self.shots,
            lambda shots: endings(self.template.prompt(shots, example.text, example.pair)),
        )  # fmt: skip
        is_compared = self.norm == "unconditional"
        alone = self._alone.score(endings(self.template.bare_prompt)) if is_compared else ()
        return self._probabilities(example, self._read.score(rows), alone)

    def _answers(self, example: PromptExample) -> list[str]:
        return [self.template.answer(word) for words in example.words for word in words]

    def _probabilities(
        self, example: PromptExample, conditional: Sequence[Tensor], alone: Sequence[Tensor] = ()
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return those of an example's labels, by the log-probabilities of the words' tokens."""
        answers, probabilities = self._answers(example), {}
        without = alone or [torch.empty(0)] * len(answers)
        for norm in dict.fromkeys(("none", self.norm)):
            scores = (
                normalised_score(logs_N.tolist(), answer, norm, alone_N.tolist())
                for logs_N, answer, alone_N in zip(conditional, answers, without, strict=True)
            )
            by_label = [[next(scores) for _ in words] for words in example.words]
            probabilities[norm] = label_probabilities(by_label)
        return probabilities

    def _with_room(
        self,
        example: PromptExample,
        shots: Sequence[str],
        read: Callable[[Sequence[str]], list[Row]],
    ) -> list[Row]:
        """Return what is read of an example after as many items as there is room."""
        positions = self.trained.start.description.shape.positions
        for left in range(len(shots) + 1):
            rows = read(shots[left:])
            if max(len(row.tokens) for row in rows) <= positions:
                self.dropped += left
                return rows
        raise DataError(
            f"The text {example.text[:80]!r} is longer with its prompt than the model's "
            f"{positions} positions."
        )

    def _fill(self, examples: Sequence[PromptExample]) -> list[dict[str, npt.NDArray[np.float64]]]:
        """Return what a masked model says of examples, whose label it sees as a gap."""
        rows = [self._gap(example, self.shots) for example in examples]
        if self.norm == "unconditional":
            rows += [self._gap(replace(example, text="", pair=None), []) for example in examples]
        scored = score_rows(self.trained.model, rows, self.trained.start.tokenizer.pad, self.batch)
        logs = [[*logs_N.unsqueeze(1)] for logs_N in scored]
        alone = logs[len(examples) :] or [[]] * len(examples)
        return [*map(self._probabilities, examples, logs, alone)]

    def _gap(self, example: PromptExample, shots: Sequence[str]) -> Gap:
        """Return an example's prompt with a gap where the label stands."""
        start, words = self.trained.start, [*map(self._single_token, self._answers(example))]
        question = self.template.fill(example.text, example.pair, "[MASK]")

        def gaps(shots: Sequence[str]) -> list[Gap]:
            text = self.template.join([*shots, question])
            tokens = encode_with_gaps(text, start.tokenizer, start.around)
            if tokens.count(start.tokenizer.mask) != 1:
                raise DataError(f"The prompt of {example.text[:80]!r} holds [MASK] more than once.")
            return [Gap(tokens, tokens.index(start.tokenizer.mask), words)]

        return self._with_room(example, shots, gaps)[0]

    def _single_token(self, answer: str) -> int:
        tokenizer = self.trained.start.tokenizer
        tokens = tokenizer.encode(answer)
        if len(tokens) != 1 or tokens[0] == tokenizer.unk:
            raise ConfigError(
                f"prompt.words: {answer.strip()!r} is no single token of this vocabulary, and a "
                "masked model fills a gap with one; transfer fill shows which words it knows"
            )
        return tokens[0]


class PromptedData:
    """Labelled examples that are asked for by prompts: those of a split, after some of training."""

    def __init__(self, config: ScoreConfig, source: TaskData, trained: TrainedModel) -> None:
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
        self._split = _scored_split(self._data, config.split)
        item, head = text_of(asked.item, "prompt.item"), text_of(asked.head, "prompt.head")
        self._template = Template(item.replace("\\n", "\n"), head.replace("\\n", "\n"))
        words = _typed_words(asked.words)
        self._words: Sequence[Sequence[str]] = ()
        if not self._is_choice:
            self._words = label_words(words, self._data.labels, "prompt.words")
        elif words:
            raise ConfigError("prompt.words: are for labels; choices are their own words")

    def findings(self, shots: int, seed: int) -> Findings:
        """Return how often the right label, or choice, is the likeliest."""
        rows = self._data.splits["train"] if shots else []
        train = [self._prompt_example(row) for row in rows]
        labels = [0 if self._is_choice else example.label for example in train]
        shown = [
            self._template.fill(example.text, example.pair, example.words[example.label][0])
            for example in (train[number] for number in draw_shots(labels, shots, seed))
        ]
        prompter = Prompter(self._trained, self._template, shown, self._asked.norm, self._batch)
        examples = [self._prompt_example(example) for example in self._data.splits[self._split]]
        return self._findings(prompter, examples)

    def _prompt_example(self, example: Any) -> PromptExample:
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

    def _findings(self, prompter: Prompter, examples: Sequence[PromptExample]) -> Findings:
        norm, labels = self._asked.norm, self._data.labels
        probabilities = prompter.ask(examples)
        bias_C = None
        variants = {name: [one[name] for one in probabilities] for name in probabilities[0]}
        if self._asked.calibrate:
            # Another [MASK] would be a second gap.
            texts = [text for text in CONTENT_FREE if prompter.is_causal or text != "[MASK]"]
            nothing = [replace(examples[0], text=text, pair=None) for text in texts]
            bias_C = np.mean([by_norm[norm] for by_norm in prompter.ask(nothing)], axis=0)
            variants["calibrated"] = [
                calibrate_probabilities(shares_C, bias_C) for shares_C in variants[norm]
            ]
        chosen = "calibrated" if self._asked.calibrate else norm
        labels_B = np.array([example.label for example in examples])
        scored = {name: _task_measures(of, labels_B, self._task) for name, of in variants.items()}
        measures, tables, metrics = scored[chosen]
        accuracies = {f"accuracy_{name}": of["accuracy"] for name, (of, *_) in scored.items()}
        measures |= accuracies
        others = [Metric(name, higher_is_better=True, unit="fraction") for name in accuracies]
        items = list(map(self._item, itertools.count(), examples, variants[chosen]))
        predicted = Counter(item.predicted for item in items)
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
            often = ", ".join(f"{name} {count}" for name, count in predicted.most_common(SHOWN))
            lines.append(f"always saying {common!r} gets {100 * times / total:.1f}; said: {often}")
            details["said"] = dict(predicted)
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


def _scored_split(data: LabelledData, asked: str) -> str:
    names = [name for name in ("test", "validation") if name in data.splits]
    chosen = names[0] if asked == "auto" and names else asked
    if chosen not in data.splits:
        raise DataError(
            f"split: this data has no {chosen} split; type split= with one of "
            f"{', '.join(data.splits)}"
        )
    return chosen


def _task_measures(
    shares_BC: Sequence[npt.NDArray[np.float64]], labels_B: npt.NDArray[np.int64], task: Task
) -> tuple[dict[str, float], dict[str, Any], Sequence[Metric]]:
    """Return the measures, tables and metrics that fine-tuned models of the task have."""
    most = max(map(len, shares_BC))
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
