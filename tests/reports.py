"""Reports of made-up runs, with `metrics.jsonl` files to draw curves from."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transfer_cli.earlier_runs import UNDECLARED_METRICS
from transfer_cli.reports.best import best_run, criterion, learnt_runs
from transfer_cli.reports.compare import make_group
from transfer_cli.reports.contents import (
    FAILED,
    FINISHED,
    RUNNING,
    Comparison,
    Group,
    Report,
    Run,
    SharedError,
    SweepProgress,
    TaskRuns,
)
from transfer_cli.runs.results import Results

LABELS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
TRAINED = {"full": 11_995_786, "lora": 311_814, "adapters": 915_462, "frozen": 4_614}
ENVIRONMENT = {
    "versions": {"python": "3.11.7", "torch": "2.13.0", "transfer-cli": "0.1.0"},
    "machine": {"system": "Linux", "processor": "x86_64"},
    "threads": 4,
    "gpus": [],
}


def drawing(seed: object) -> random.Random:
    """Return a source of made-up numbers."""
    return random.Random(str(seed))


def curve(start: float, end: float, at: float, noise: float, draw: random.Random) -> float:
    """Return a value that falls from `start` to `end` while `at` goes from 0 to 1."""
    value = end + (start - end) * math.exp(-4 * at)
    return value * (1 + noise * draw.gauss(0, 1))


def write_metrics(
    folder: Path, end: float, *, measure: str, steps: int = 600, seed: int = 0
) -> None:
    """Write the records of a run whose measure falls to `end`; the last line is cut off."""
    draw = drawing(seed)
    start = {"error_rate": 80.0, "word_perplexity": 9000.0}[measure]
    lines = []
    for step in range(10, steps + 1, 10):
        at = step / steps
        loss = curve(2.2, 0.3 + end / 100, at, 0.06, draw)
        lines.append({"kind": "train", "step": step, "loss": loss, "rate/head.class": 1e-3 * at})
        if step % 50 == 0:
            measures = {"loss": curve(2.0, 0.35 + end / 90, at, 0.02, draw)}
            measures[measure] = curve(start, end, at, 0.02, draw)
            if measure == "error_rate":
                measures |= {"accuracy": 1 - measures[measure] / 100, "accuracy/ABBR": 0.5}
            lines.append({"kind": "validation", "step": step, **measures})
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(f'{text}{{"kind": "train", "st')


def confusion(error: float, labels: Sequence[str], draw: random.Random) -> list[list[int]]:
    """Return counts in which about `error` percent are beside the diagonal."""
    rows = []
    for label in range(len(labels)):
        row = [0] * len(labels)
        for _ in range(80):
            is_wrong = draw.random() < error / 100
            row[(label + draw.choice([1, 1, 2])) % len(labels) if is_wrong else label] += 1
        rows.append(row)
    return rows


def classifier(
    folder: Path,
    name: str,
    error: float,
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    steps: int = 600,
    labels: Sequence[str] = LABELS,
) -> Run:
    """Return a finished run of finetune."""
    draw = drawing(f"{name} {seed}")
    rate = max(0.5, error + draw.gauss(0, 0.4))
    write_metrics(folder / name, rate, measure="error_rate", steps=steps, seed=draw.randrange(999))
    trained = TRAINED.get(str(settings.get("adaptation")), 11_995_786)
    measures = {"error_rate": rate, "accuracy": 1 - rate / 100, "loss": rate / 30}
    return Run(
        folder / name, name, "finetune", FINISHED,
        settings={"data": "trec6", "loop.batch": 32, "model.width": 256, **settings, "seed": seed},
        results=Results.from_json({
            "measures": {"validation": measures, "test": measures},
            "tables": {"test": {"confusion": confusion(rate, labels, draw)}},
            "labels": list(labels),
            "examples": {"train": settings.get("data.labelled") or 4907},
            "parameters": {"trainable": trained},
            "cost": {"flops": int(steps * (4e9 + 700 * trained)), "flops_real": 1, "tokens": 1},
        }),
        timing={"seconds": 40 + 20 * draw.random(), "peak_memory_bytes": 7e8 + trained * 16},
        environment=ENVIRONMENT, sweep=folder,
    )  # fmt: skip


def group(settings: Mapping[str, Any], runs: Sequence[Run], **more: Any) -> Group:
    """Return a group of runs, with what their results hold."""
    label = " ".join(f"{key}={value}" for key, value in settings.items())
    return replace(make_group(label, settings, runs), **more)


def task(
    name: str, groups: Sequence[Group], measure: str = "test/error_rate", **more: Any
) -> TaskRuns:
    """Return a task with its groups sorted, the best marked, each compared to the last."""
    ranked = sorted(groups, key=lambda group: group.measures[measure].mean
                    if measure in group.measures else math.inf)  # fmt: skip
    varying = tuple(ranked[0].settings)
    last = ranked[-1].measures.get(measure)
    baseline = ranked[-1] if len(ranked) > 1 and last is not None else None
    done = []
    for at, known in enumerate(ranked):
        against = None
        if baseline is not None and known is not baseline and measure in known.measures:
            difference = known.measures[measure].mean - baseline.measures[measure].mean
            against = Comparison(
                measure, difference, difference - 1.3, difference + 1.3,
                min(1.0, math.exp(difference)), "McNemar", 500,
            )  # fmt: skip
        is_best = at == 0 and measure in known.measures
        done.append(replace(known, is_best=is_best, against=against))
    more = {"labels": LABELS} | more
    runs = [run for group in done for run in group.runs]
    choice = criterion(learnt_runs(runs))
    best = best_run(runs, choice) if len(runs) > 1 else None
    return TaskRuns(
        name, tuple(done), varying, measure, UNDECLARED_METRICS, choice=choice, best=best,
        baseline=baseline.label if baseline else None, **more,
    )  # fmt: skip


ERRORS = tuple(
    SharedError(text, label, predicted, sum(predicted.values()), 27)
    for text, label, predicted in (
        ("What is the esophagus used for ?", "DESC", {"ENTY": 21, "HUM": 3}),
        ("What does a spermologer collect ?", "ENTY", {"DESC": 22}),
        ("Mercury , what year was it discovered ?", "NUM", {"ENTY": 11, "DESC": 8}),
        ("What is the capital of Yugoslavia ?", "LOC", {"DESC": 14}),
    )
)


def sweep_of_schemes(folder: Path) -> Report:
    """Return 3 schemes x 3 rates x 3 seeds; two runs of them are not finished."""
    groups = []
    error = {"full": 8.0, "lora": 8.6, "adapters": 9.4}
    for scheme, base in error.items():
        for rate, worse in ((3e-4, 1.5), (1e-3, 0.0), (3e-3, 4.0)):
            settings = {"adaptation": scheme, "optimizer.lr": rate}
            runs = []
            for seed in range(3):
                name = f"{scheme}-{rate:g}-{seed}"
                run = classifier(folder, name, base + worse, settings, seed=seed)
                runs.append(run)
            if (scheme, rate) == ("full", 3e-3):
                runs[1] = unfinished(runs[1], FAILED, "the loss is not finite at step 120")
            if (scheme, rate) == ("adapters", 3e-3):
                runs[2] = unfinished(runs[2], RUNNING, None)
            groups.append(group(settings, runs))
    standing = SweepProgress(
        folder,
        "transfer finetune -m adaptation=full,lora,adapters optimizer.lr=3e-4,1e-3,3e-3 seed=0,1,2",
        25, 1, 0, ((7, "adaptation=full optimizer.lr=0.003 seed=1", "loss is not finite"),),
        seconds_left=42.0,
    )  # fmt: skip
    return Report((task("finetune on trec6", groups, errors=ERRORS),), (standing,), (), CREATED)


CREATED = "2026-03-01T09:30:00+00:00"


def unfinished(run: Run, status: str, reason: str | None) -> Run:
    """Return a run as it was before it had results."""
    return replace(run, status=status, reason=reason, results=Results(), timing={})


def few_labels(folder: Path) -> Report:
    """Return 3 schemes on 100, 500 and 2000 labelled examples and on all of them."""
    groups = []
    for scheme, base in {"full": 6.0, "lora": 7.0, "frozen": 14.0}.items():
        for labelled, worse in ((100, 26.0), (500, 12.0), (2000, 4.0), (None, 0.0)):
            settings = {"adaptation": scheme, "data.labelled": labelled}
            shrunk = worse * (0.7 if scheme == "lora" else 1.0)
            runs = [
                classifier(
                    folder, f"{scheme}-{labelled}-{seed}", base + shrunk, settings, seed=seed
                )
                for seed in range(3)
            ]
            groups.append(group(settings, runs))
    return Report((task("finetune on trec6", groups),), (), (), CREATED)


def search(folder: Path, trials: int = 40, steps: int = 600) -> Report:
    """Return a search over five settings, one run a trial."""
    draw = drawing(3)
    groups = []
    for trial in range(trials):
        settings = {
            "adaptation": draw.choice(["full", "lora", "adapters"]),
            "optimizer.lr": 10 ** draw.uniform(-5, -2),
            "optimizer.weight_decay": draw.uniform(0, 0.3),
            "loop.batch": draw.choice([16, 32, 64]),
            "schedule": draw.choice(["linear", "cosine"]),
        }
        error = 8 + 5 * abs(math.log10(settings["optimizer.lr"]) + 3) + 9 * draw.random()
        run = classifier(folder, str(trial), error, settings, steps=steps)
        groups.append(group(settings, [run]))
    return Report((task("finetune on trec6", groups),), (), (), CREATED)


def single(folder: Path) -> Report:
    """Return one finished run."""
    run = classifier(folder, "2026-03-01_09-00-00-finetune", 8.2, {"adaptation": "lora"})
    return Report((task("finetune on trec6", [group({}, [run])]),), (), (), CREATED)


def language_models(folder: Path) -> Report:
    """Return four language models of two seeds each."""
    groups = []
    for optimizer, base in {"adamw": 210.0, "muon": 165.0}.items():
        for width in (256, 512):
            settings = {"model.width": width, "optimizer": optimizer}
            runs = []
            for seed in range(2):
                draw = drawing(f"{settings} {seed}")
                end = base - width / 16 + draw.gauss(0, 3)
                path = folder / f"{optimizer}-{width}-{seed}"
                write_metrics(path, end, measure="word_perplexity", seed=draw.randrange(99))
                measures = {"word_perplexity": end, "bits_per_byte": math.log2(end) / 5}
                runs.append(Run(
                    path, path.name, "pretrain", FINISHED,
                    settings={"data": "wikitext2", **settings, "seed": seed},
                    results=Results.from_json({
                        "measures": {"validation": measures, "test": measures},
                        "tables": {}, "labels": [], "parameters": {"trainable": width * 20_000},
                    }),
                    timing={"seconds": 4000.0 + width, "peak_memory_bytes": 2.4e9},
                    environment=ENVIRONMENT,
                ))  # fmt: skip
            groups.append(group(settings, runs))
    made = task("pretrain on wikitext2", groups, "test/word_perplexity", labels=())
    return Report((made,), (), (), CREATED)


def without_results(folder: Path) -> Report:
    """Return runs none of which has finished."""
    runs = [
        unfinished(classifier(folder, "early", 20, {"adaptation": "full"}), RUNNING, None),
        Run(folder / "gone", "gone", "finetune", FAILED, "init_from: there is no folder runs/lm"),
    ]
    groups = [group({"adaptation": name}, [run]) for name, run in zip("ab", runs, strict=True)]
    standing = SweepProgress(
        folder, "transfer finetune -m adaptation=a,b", 0, 1, 1,
        ((1, "adaptation=b", "init_from: there is no folder runs/lm"),),
    )  # fmt: skip
    problems = (f"{folder / 'broken'}: config.yaml: line 3 is not YAML",)
    return Report((task("finetune on trec6", groups),), (standing,), problems, CREATED)


def nothing(_folder: Path | None = None) -> Report:
    """Return a report without runs."""
    return Report((), (), (), CREATED)


def many_runs(folder: Path, runs: int = 200) -> Report:
    """Return a search of many trials with long curves."""
    return search(folder, runs, steps=3000)
