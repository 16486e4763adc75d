"""Run directories that no run has written: small, and with whatever result a test needs."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from transfer_cli.runs.items import Item, write_items
from transfer_cli.runs.sweep import SweepDirectory, SweepJob, SweepRequest

LABELS = ("city", "person")
ITEMS = 40


def config(seed: int = 0, **changed: Any) -> dict[str, Any]:
    """Return a config; a changed key is dotted with double underscores: `optimizer__lr`."""
    settings: dict[str, Any] = {
        "seed": seed,
        "data": {
            "_target_": "transfer_cli.tasks.samples.EmbeddedSample",
            "sample": "questions",
            "labelled": None,
        },
        "objective": {"_target_": "transfer_cli.objectives.classification.Classification"},
        "optimizer": {"_target_": "transfer_cli.optim.eager.AdamW", "lr": 0.001},
        "adaptation": {"_target_": "transfer_cli.adaptation.adaptation.Adaptation", "store": "all"},
        "run": {"dir": None, "root": "runs"},
    }
    for name, value in changed.items():
        *folders, last = name.split("__")
        node = settings
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = value
    return settings


def write_run(
    path: Path,
    *,
    seed: int = 0,
    adaptation: str = "full",
    wrong: Collection[int] = (),
    status: str = "finished",
    reason: str | None = None,
    failed: str | None = None,
    validation: Mapping[str, float] | None = None,
    command: str = "finetune",
    typed: Collection[str] = ("adaptation=full", "seed=0"),
    results: Mapping[str, Any] | None = None,
    items: Collection[Item] | None = None,
    **changed: Any,
) -> Path:
    """Write a run of a task of two labels, that is wrong on some of its 40 test items.

    It does as well on validation, but for what `validation` says.
    """
    path.mkdir(parents=True)
    content = config(seed, **changed)
    if adaptation != "full":
        content["adaptation"] |= {"store": "trained", "edits": {adaptation: {"rank": 8}}}
    (path / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (path / "overrides.txt").write_text("".join(f"{word}\n" for word in typed))
    _write(path / "presets.json", {"adaptation": adaptation, "data": "sample_questions"})
    _write(path / "environment.json", {"command": command, "versions": {"torch": "2.13.0"}})
    _write(path / "status.json", {"status": status} | ({"reason": reason} if reason else {}))
    if status == "finished":
        made = results or _results(len(wrong), failed, adaptation, validation)
        _write(path / "results.json", made)
        _write(path / "timing.json", {"seconds": 10.0 + seed, "peak_memory_bytes": 3 * 2**20})
        write_items(path / "items.jsonl", labelled(wrong) if items is None else items)
    return path


def labelled(wrong: Collection[int], *, count: int = ITEMS, split: str = "test") -> list[Item]:
    """Return the items of a classifier that is wrong on some."""
    return [
        Item(
            split=split,
            index=place,
            label=LABELS[place % 2],
            predicted=LABELS[(place + (place in wrong)) % 2],
            probability=0.75,
            text=f"question {place} ?",
            loss=1.5 if place in wrong else 0.25,
            targets=1,
        )
        for place in range(count)
    ]


def blocks(losses: Collection[float], *, targets: int = 10) -> list[Item]:
    """Return the items of a language model."""
    return [
        Item("test", place, "", "", 0.0, "", loss, targets) for place, loss in enumerate(losses)
    ]


def write_sweep(path: Path, *jobs: SweepJob, trials: int | None = None) -> SweepDirectory:
    """Write the files of a sweep, without its runs."""
    sweep = SweepDirectory(path)
    sweep.write_request(
        SweepRequest("finetune", ("adaptation=full,lora",), "2026-01-02T03:04:05+00:00", trials)
    )
    for job in jobs:
        sweep.write_job(job)
    return sweep


def _results(
    wrong: int, failed: str | None, adaptation: str, validation: Mapping[str, float] | None
) -> dict[str, Any]:
    error = 100 * wrong / ITEMS
    measures = {"loss": 0.5 + error / 100, "accuracy": 1 - error / 100, "error_rate": error}
    return {
        "command": "finetune",
        "measures": {
            "validation": {**measures, **(validation or {})},
            "test": {**measures, "accuracy/city": 0.5},
        },
        "tables": {"test": {"confusion": [[ITEMS - wrong, wrong], [0, 0]]}},
        "labels": list(LABELS),
        "failed": failed,
        "parameters": {"total": 1000, "trainable": 1000 if adaptation == "full" else 80},
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content))
