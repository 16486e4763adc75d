"""`transfer score`: what a language model says of sentences and prompts, without training."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.assembly.language_models import sentence_scorer
from transfer_cli.commands.score.prompted import Prompter, PromptExample, score_prompts
from transfer_cli.commands.score.sentences import Findings, WordAsker, score_cloze, score_pairs
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.literal import text_of
from transfer_cli.config.schema import ScoreConfig
from transfer_cli.config.stored import as_yaml
from transfer_cli.data.cloze import ClozeTexts
from transfer_cli.data.labelled import LabelledData, TaskData
from transfer_cli.data.minimal_pairs import PairsOfSentences
from transfer_cli.data.text import TextData
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import CheckpointError, ConfigError, DataError, at_least
from transfer_cli.generation.prompts import Template, draw_shots
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.environment import environment, versions
from transfer_cli.runs.items import write_items
from transfer_cli.runs.results import Parameters, Results
from transfer_cli.tasks.cloze.pattern import words_of_labels
from transfer_cli.terminal import print_line
from transfer_cli.training.measurements import peak_memory


def score(config: ScoreConfig) -> None:
    """Score sentences, gaps or prompts; print what came of it, and write it as a run or several."""
    at_least("batch:", config.batch, 1, ConfigError)
    source = build(config.data, "data", PairsOfSentences | ClozeTexts | TaskData | TextData)
    if isinstance(source, TextData):
        raise ConfigError(
            "data: this is text; score takes pairs of sentences, texts with a gap and labelled "
            "data, and transfer evaluate measures a text's perplexity"
        )
    shots = _shots(config)
    if config.output is not None:
        RunDirectory.check_free(Path(config.output).expanduser())
    precision = device_and_precision(config.device, config.precision)
    trained = open_trained(config.run, precision, config.base)
    if not isinstance(trained.objective, LanguageModel):
        raise CheckpointError(
            f"run: {config.run} is no language model ({type(trained.objective).__name__}); score "
            "needs one, such as the run that this was adapted from"
        )
    typed = CommandLine.of_this_command()
    runs = [
        (count, order) for count in shots for order in range(config.prompt.orders if count else 1)
    ]
    with torch.inference_mode(), precision.context():
        if isinstance(source, PairsOfSentences | ClozeTexts):
            runs = runs[:1]
        else:
            prompted = _Prompted(config, source, trained)
        for count, order in runs:
            began = time.perf_counter()
            if isinstance(source, PairsOfSentences):
                scorer = sentence_scorer(
                    trained, batch=config.batch, scores_first=config.first == "scored",
                    within_word=config.within_word,
                )  # fmt: skip
                outcome = score_pairs(scorer, source.load())
            elif isinstance(source, ClozeTexts):
                asker = WordAsker(trained, config.batch, source.words())
                outcome = score_cloze(asker, source.load())
            else:
                outcome = prompted.outcome(count, config.seed + order)
            seconds = time.perf_counter() - began
            prompt = replace(config.prompt, shots=count)
            own = replace(config, prompt=prompt, seed=config.seed + order)
            directory = _directory(config, typed, (count, order) if len(runs) > 1 else None)
            _write(directory, own, typed, outcome, trained, seconds)
            _say(directory.path, outcome, (count, order) if len(runs) > 1 else None)


def _shots(config: ScoreConfig) -> list[int]:
    """Return the numbers of shots, each 0 or more."""
    at_least("prompt.orders:", config.prompt.orders, 1, ConfigError)
    typed = config.prompt.shots
    found = [typed] if isinstance(typed, int) else typed if isinstance(typed, list) else []
    if not found or not all(type(each) is int and each >= 0 for each in found):
        raise ConfigError(
            f"prompt.shots: expected a number, or a list such as [0,1,4]; got {typed}"
        )
    return list(dict.fromkeys(found))


def _words(typed: Any) -> Mapping[str, object]:
    """Return the words that were typed, by label."""
    if typed is None:
        return {}
    if not isinstance(typed, dict):
        raise ConfigError(
            f"prompt.words: expected {{LABEL: WORD, ...}}, got {typed!r}; quote it for the shell"
        )
    return {str(name): word for name, word in typed.items()}


class _Prompted:
    """The examples of a split, to be asked for by prompts."""

    def __init__(self, config: ScoreConfig, source: TaskData, trained: Trained) -> None:
        place = DataPlace(config.data_dir, config.seed)
        self._config, self._trained = config, trained
        self._data = source.load(place.folder, place.seed)
        self._task = datasets.task_of_data(self._data)
        if self._task.name not in ("classification", "choice"):
            raise ConfigError(
                f"data: it holds examples of the task {self._task.name}; prompts are for texts "
                "with one label each, and for choices"
            )
        self._is_choice = self._task.name == "choice"
        if self._is_choice and config.prompt.calibrate:
            raise ConfigError(
                "prompt.calibrate: is for labels; each question has choices of its own"
            )
        self._split = _split(self._data, config.split)
        item, head = (
            text_of(getattr(config.prompt, key), f"prompt.{key}").replace("\\n", "\n")
            for key in ("item", "head")
        )
        self._template = Template(item, head)
        words = _words(config.prompt.words)
        self._words: Sequence[Sequence[str]] = ()
        if not self._is_choice:
            self._words = words_of_labels(words, self._data.labels, "prompt.words")
        elif words:
            raise ConfigError("prompt.words: are for labels; choices are their own words")

    def outcome(self, shots: int, seed: int) -> Findings:
        """Return what comes of prompts with so many examples of each label before each item."""
        train = [self._asked(each) for each in self._data.splits["train"]] if shots else []
        labels = [0 if self._is_choice else each.label for each in train]
        items = [
            self._template.filled(each.text, each.pair, each.words[each.label][0])
            for each in (train[number] for number in draw_shots(labels, shots, seed))
        ]
        config = self._config
        prompter = Prompter(self._trained, self._template, items, config.prompt.norm, config.batch)
        examples = [self._asked(each) for each in self._data.splits[self._split]]
        return score_prompts(
            prompter, self._data, self._task, self._split, examples,
            calibrate=config.prompt.calibrate,
        )  # fmt: skip

    def _asked(self, example: Any) -> PromptExample:
        shown = " / ".join(self._task.texts(example))
        if self._is_choice:
            text = f"{example.context} {example.question}".strip()
            words = [[choice] for choice in example.choices]
            return PromptExample(text, None, words, example.label, shown)
        return PromptExample(example.text, example.pair, self._words, example.label, shown)


def _split(data: LabelledData, asked: str) -> str:
    """Return the split to score."""
    names = [name for name in ("test", "validation") if name in data.splits]
    found = names[0] if asked == "auto" and names else asked
    if found not in data.splits:
        raise DataError(
            f"split: this data has no {found} split; type split= with one of "
            f"{', '.join(data.splits)}"
        )
    return found


def _directory(
    config: ScoreConfig, typed: CommandLine, part: tuple[int, int] | None
) -> RunDirectory:
    """Return a new run directory: `output`, or one below it for each of several runs."""
    if config.output is None:
        return RunDirectory.create_new(Path("runs/score"), typed.presets.get("data", "data"))
    path = Path(config.output).expanduser()
    return RunDirectory.create(path if part is None else path / "shots-{}-order-{}".format(*part))


def _write(
    directory: RunDirectory,
    config: ScoreConfig,
    typed: CommandLine,
    outcome: Findings,
    trained: Trained,
    seconds: float,
) -> None:
    """Write a run that has ended."""
    model = trained.model
    parameters = sum(each.numel() for each in model.parameters())
    task = outcome.task or {}
    results = Results(
        command="score",
        presets=typed.presets,
        seed=config.seed,
        measures={outcome.split: outcome.measures},
        metrics=tuple(outcome.metrics),
        tables={outcome.split: outcome.tables} if outcome.tables else {},
        labels=tuple(outcome.labels),
        task=task.get("name"),
        expected=task.get("expected"),
        parameters=Parameters(parameters, 0),
        more={"prompts": outcome.details, "versions": versions()},
    )
    device = model.backbone.token_embedding.weight.device
    with directory.written_at_once():
        directory.start("score", as_yaml(config), typed.overrides, typed.presets, environment())
        write_items(directory.items, outcome.items)
        write_json(
            directory.timing,
            {"seconds": round(seconds, 3), "peak_memory_bytes": peak_memory(device)},
        )
        results.write(directory.results)


def _say(path: Path, outcome: Findings, part: tuple[int, int] | None) -> None:
    """Print the measures of a run, and where it is."""
    if part is not None:
        print_line(f"shots {part[0]}, order {part[1]}")
    for line in outcome.lines:
        print_line(line)
    for name, value in outcome.measures.items():
        if "/" not in name:
            print_line(f"{outcome.split:10s} {name:24s} {value:.6g}")
    print_line(f"files      {path}")
