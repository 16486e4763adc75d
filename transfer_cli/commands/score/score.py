"""`transfer score`: what a language model says of sentences and prompts, without training."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.assembly.language_models import sentence_scorer
from transfer_cli.commands.score.prompted import PromptedData
from transfer_cli.commands.score.sentence_scores import (
    Findings,
    WordAsker,
    score_cloze,
    score_pairs,
)
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.schema import ScoreConfig
from transfer_cli.config.stored import as_yaml
from transfer_cli.data.cloze import ClozeTexts
from transfer_cli.data.labelled import TaskData
from transfer_cli.data.minimal_pairs import PairsOfSentences
from transfer_cli.data.text import TextData
from transfer_cli.engine.evaluation import batch_of
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import CheckpointError, ConfigError, at_least, count_or_auto
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.environment import environment, versions
from transfer_cli.runs.items import write_items
from transfer_cli.runs.results import Parameters, Results
from transfer_cli.terminal import print_line
from transfer_cli.training.measurements import peak_memory


def score(config: ScoreConfig) -> None:
    """Score sentences, gaps or prompts; print what came of it, and write it as a run or several."""
    count_or_auto("batch", config.batch)
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
    config = replace(config, batch=batch_of(config.batch, trained.model, precision.device))
    typed = CommandLine.of_this_command()
    runs = [
        (count, order) for count in shots for order in range(config.prompt.orders if count else 1)
    ]
    with torch.inference_mode(), precision.context():
        findings_of = _findings_of(config, source, trained)
        for count, order in runs if isinstance(source, TaskData) else runs[:1]:
            began = time.perf_counter()
            findings = findings_of(count, config.seed + order)
            seconds = time.perf_counter() - began
            prompt = replace(config.prompt, shots=count)
            own = replace(config, prompt=prompt, seed=config.seed + order)
            part = (count, order) if isinstance(source, TaskData) and len(runs) > 1 else None
            directory = _directory(config, typed, part)
            _write(directory, own, typed, findings, trained, seconds)
            _say(directory.path, findings, part)


def _findings_of(
    config: ScoreConfig, source: PairsOfSentences | ClozeTexts | TaskData, trained: Trained
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
    """Return the numbers of shots, each 0 or more."""
    at_least("prompt.orders:", config.prompt.orders, 1, ConfigError)
    typed = config.prompt.shots
    found = [typed] if isinstance(typed, int) else typed if isinstance(typed, list) else []
    if not found or not all(type(each) is int and each >= 0 for each in found):
        raise ConfigError(
            f"prompt.shots: expected a number, or a list such as [0,1,4]; got {typed}"
        )
    return list(dict.fromkeys(found))


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
    findings: Findings,
    trained: Trained,
    seconds: float,
) -> None:
    """Write a run that has ended."""
    model = trained.model
    parameters = sum(each.numel() for each in model.parameters())
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
        directory.start("score", as_yaml(config), typed.overrides, typed.presets, environment())
        write_items(directory.items, findings.items)
        write_json(
            directory.timing,
            {"seconds": round(seconds, 3), "peak_memory_bytes": peak_memory(device)},
        )
        results.write(directory.results)


def _say(path: Path, findings: Findings, part: tuple[int, int] | None) -> None:
    """Print the measures of a run, and where it is."""
    if part is not None:
        print_line(f"shots {part[0]}, order {part[1]}")
    for line in findings.lines:
        print_line(line)
    for name, value in findings.measures.items():
        if "/" not in name:
            print_line(f"{findings.split:10s} {name:24s} {value:.6g}")
    print_line(f"files      {path}")
