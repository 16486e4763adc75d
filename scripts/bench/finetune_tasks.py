"""Compare fine-tuning on tasks with a plain loop over transformers, by whole commands.

    python scripts/bench/finetune_tasks.py --model FOLDER [--peers PYTHON] [--data-dir DIR]
        [--tasks tags numbers] [--seeds 0] [--threads 2] [--quick] [--json FILE]

Both sides start from the same published model (`python scripts/published_weights.py minilm`), read
the same files, and train with AdamW, the same rate, warm-up and fall to 0, batch, epochs, dropout
and clipping; both are scored on the same test set with the weights of the last epoch. The plain
loop shuffles and pads each batch to its longest text, as transformers' examples do.

tags: WNUT-17, entity F1 of its test set. numbers: STS-B, Pearson's correlation on its test set.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
from measuring import Command, Figure, Goal, Report

RATE, BATCH, EPOCHS, WARMUP = 1e-4, 16, 3, 0.1
LABELLED = 200
"""Training examples of a trial."""

MOST_OF_PEER = 0.8
"""The goal: our share of the peer's time, and of its memory."""

FILES = {
    "tags": {
        "train": "wnut17/wnut17train.conll",
        "validation": "wnut17/emerging.dev.conll",
        "test": "wnut17/emerging.test.annotated",
    },
    "numbers": {
        "train": "stsb/stsb-train.csv",
        "validation": "stsb/stsb-dev.csv",
        "test": "stsb/stsb-test.csv",
    },
}
OURS = {
    "tags": ["data=conll", "objective=tagging"],
    "numbers": [
        *("data=numbers", "data.header=false", "data.text=1", "data.pair=2", "data.label=3"),
        "objective=regression",
    ],
}
MEASURES = {"tags": "entity_f1", "numbers": "pearson"}

_PEER = """
import csv, json, sys
import numpy as np
import torch
from transformers import (AutoModelForSequenceClassification, AutoModelForTokenClassification,
                          AutoTokenizer, get_linear_schedule_with_warmup)

asked = json.loads(sys.argv[1])
torch.manual_seed(asked["seed"])
tokenizer = AutoTokenizer.from_pretrained(asked["model"])


def conll(path):
    words, tags = [], []
    for line in open(path, encoding="utf-8"):
        cells = line.split()
        if not cells and words:
            yield words, tags
            words, tags = [], []
        elif cells:
            words.append(cells[0])
            tags.append(cells[-1])
    if words:
        yield words, tags


def pairs(path):
    with open(path, encoding="utf-8", newline="") as file:
        for one, other, score in csv.reader(file):
            yield one, other, float(score)


is_tags = asked["task"] == "tags"
rows = {name: list((conll if is_tags else pairs)(path)) for name, path in asked["files"].items()}
rows["train"] = rows["train"][: asked["labelled"]]
if is_tags:
    labels = sorted({tag for found in rows.values() for _, tags in found for tag in tags})
    model = AutoModelForTokenClassification.from_pretrained(asked["model"], num_labels=len(labels))
else:
    model = AutoModelForSequenceClassification.from_pretrained(
        asked["model"], num_labels=1, problem_type="regression")


def batch_of(some):
    if not is_tags:
        found = tokenizer([one for one, _, _ in some], [other for _, other, _ in some],
                          padding=True, truncation=True, return_tensors="pt")
        found["labels"] = torch.tensor([score for *_, score in some])
        return found
    found = tokenizer([words for words, _ in some], is_split_into_words=True, padding=True,
                      truncation=True, return_tensors="pt")
    target = torch.full_like(found["input_ids"], -100)
    for row, (_, tags) in enumerate(some):
        before = None
        for place, word in enumerate(found.word_ids(row)):
            if word is not None and word != before:
                target[row, place] = labels.index(tags[word])
            before = word
    found["labels"] = target
    return found


batch, epochs = asked["batch"], asked["epochs"]
decays = [p for p in model.parameters() if p.ndim >= 2]
others = [p for p in model.parameters() if p.ndim < 2]
optimizer = torch.optim.AdamW(
    [{"params": decays}, {"params": others, "weight_decay": 0.0}],
    lr=asked["rate"], weight_decay=0.01)
steps = epochs * -(-len(rows["train"]) // batch)
schedule = get_linear_schedule_with_warmup(optimizer, int(asked["warmup"] * steps), steps)
model.train()
for _ in range(epochs):
    order = torch.randperm(len(rows["train"])).tolist()
    for first in range(0, len(order), batch):
        loss = model(**batch_of([rows["train"][n] for n in order[first : first + batch]])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
model.eval()
said, given = [], []
with torch.no_grad():
    for first in range(0, len(rows["test"]), 64):
        some = rows["test"][first : first + 64]
        view = batch_of(some)
        target = view.pop("labels")
        logits = model(**view).logits
        if is_tags:
            # What was cut from a long sentence has no tag, and counts as one that was missed.
            for (_, tags), row, real in zip(some, logits.argmax(-1), target):
                found = [labels[n] for n in row[real != -100].tolist()]
                said.append(found + ["O"] * (len(tags) - len(found)))
                given.append(tags)
        else:
            said += logits[:, 0].tolist()
            given += target.tolist()
if is_tags:
    from seqeval.metrics import f1_score
    score = f1_score(given, said)
else:
    score = float(np.corrcoef(said, given)[0, 1])
with open(asked["out"], "w") as file:
    json.dump(float(score), file)
"""


def compare(
    task: str, seed: int, asked: argparse.Namespace, folder: Path, peers: str | None
) -> tuple[list[Figure], list[str], list[Goal]]:
    """Return both figures, a row of the table, and the goals, of one task and seed."""
    files = {name: str(asked.data_dir / file) for name, file in FILES[task].items()}
    epochs = 1 if asked.quick else EPOCHS
    run, name = folder / f"{task}-{seed}", f"{task}, seed {seed}"
    words = [
        *OURS[task], *(f"data.{split}={path}" for split, path in files.items()),
        f"init_from={asked.model}", f"seed={seed}", f"optimizer.lr={RATE}", f"loop.batch={BATCH}",
        f"loop.epochs={epochs}", f"schedule.warmup={WARMUP}", "loop.clip=1", "device=cpu",
        f"checkpoint.every={epochs} epochs", f"loop.evaluate_every={epochs} epochs",
        *([f"data.labelled={LABELLED}"] if asked.quick else []),
    ]  # fmt: skip
    command = [sys.executable, "-m", "transfer_cli", "finetune", *words, f"run.dir={run}"]
    cache = {"TRANSFER_CACHE": str(folder / f"cache-{run.name}")}
    own = measuring.once(Command(name, command, cache), threads=asked.threads)
    results = json.loads((run / "results.json").read_text("utf-8"))
    score = results["measures"]["test"][MEASURES[task]]
    figures = [Figure.of(f"{name}, transfer", [own])]
    row = [name, MEASURES[task], f"{score:.4f}", f"{own.wall_s:.1f}", f"{own.peak_mib:.0f}"]
    if peers is None:
        return figures, [*row, "", "", "", "", ""], []
    said = folder / f"{run.name}.json"
    recipe: dict[str, Any] = {
        "task": task, "seed": seed, "model": str(asked.model), "files": files, "batch": BATCH,
        "epochs": epochs, "rate": RATE, "warmup": WARMUP, "out": str(said),
        "labelled": LABELLED if asked.quick else None,
    }  # fmt: skip
    command = [peers, "-c", _PEER, json.dumps(recipe)]
    peer = measuring.once(Command(f"{name}, transformers", command), threads=asked.threads)
    figures.append(Figure.of(f"{name}, transformers", [peer]))
    time, memory = own.wall_s / peer.wall_s, own.peak_mib / peer.peak_mib
    their_score = json.loads(said.read_text())
    row += [f"{their_score:.4f}", f"{peer.wall_s:.1f}", f"{peer.peak_mib:.0f}"]
    row += [f"{time:.2f}", f"{memory:.2f}"]
    disturbed = any(figure.disturbed for figure in figures)
    return figures, row, [
        Goal(f"{name}: time over the peer's", time, MOST_OF_PEER, disturbed=disturbed),
        Goal(f"{name}: memory over the peer's", memory, MOST_OF_PEER),
    ]  # fmt: skip


def measure(asked: argparse.Namespace) -> Report:
    """Compare on all tasks and seeds."""
    peers = measuring.peers_of(asked.peers) or sys.executable
    header = ["task", "measure", "transfer", "s", "MiB", "transformers", "s", "MiB"]
    table, figures, goals = [[*header, "time ratio", "memory ratio"]], list[Figure](), list[Goal]()
    with tempfile.TemporaryDirectory(prefix="tasks-") as made:
        for task in asked.tasks:
            for seed in asked.seeds:
                found, row, own = compare(task, seed, asked, Path(made), peers)
                table.append(row)
                figures += found
                goals += own
    return Report("Fine-tuning on tasks", figures, goals, table)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison from the command line."""
    parser: Any = measuring.parser(__doc__)
    parser.add_argument("--model", required=True, type=Path, help="a published BERT")
    parser.add_argument("--tasks", nargs="+", choices=[*FILES], default=[*FILES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("TRANSFER_DATA", "~/.cache/transfer")).expanduser(),
        help="where data sets lie",
    )
    asked = parser.parse_args(argv)
    measuring.show([measure(asked)], asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
