"""Compare fine-tuning on tasks with a plain loop over transformers, by whole commands.

    python scripts/bench/finetune_tasks.py --model FOLDER [--peers PYTHON] [--data-dir DIR]
        [--tasks labels lora tags numbers spans answers choices dialog] [--seeds 0] [--threads 2]
        [--device cpu] [--quick] [--json FILE]

Both sides start from the same published model (`python scripts/published_weights.py minilm`), read
the same files, and train with AdamW, the same rate, warm-up and fall to 0, batch, epochs, dropout
and clipping; both score the same split with the weights of the last epoch. The plain loop is
`plain_tasks.py`.

labels: TREC's six kinds of questions, accuracy on its test set. lora: the same with low-rank
updates and 100 labels; the peers' environment needs peft, and `--model` may be a Llama-like model
(`python scripts/published_weights.py smollm2`). tags: WNUT-17, entity F1 of its
test set. numbers: STS-B, Pearson's correlation on its test set. spans: the part of SQuAD 2.0, F1
of its validation questions, in percent; answers: the same of the questions that have an answer,
for both to train on and be scored by. choices, dialog: the embedded samples, from a small GPT-2
that has read the encyclopedia (it is made first); accuracy and hits at 1 of their test questions.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import measuring
from measuring import Command, Figure, Goal, Report

from transfer_cli.data import sample

WARMUP = 0.1
LABELLED = 100
"""Training examples of a trial, and of the task `lora`."""

MOST_OF_PEER = 0.8
"""The goal: our share of the peer's time, and of its memory."""

GPT2 = "gpt2"
"""The folder of the model that the samples start from."""

MARKS = ("What", "Why")
"""Words of the encyclopedia that stand for the speakers of the sample's dialogs."""


TREC = {"train": "trec/train_5500.label", "test": "trec/TREC_10.label"}
"""Latin-1: a label and a finer one, then the question."""
HELD_OUT = 10
"""Of so many training questions one is for validation."""


@dataclass
class Recipe:
    """A task, and how both sides learn it.

    Args:
        task: Its name.
        measure: What is compared, as our records call it.
        words: What is typed for it.
        files: Of each split, in the folder of data sets or of what is made.
        scored: The split that is scored.
        rate: The peak learning rate.
        batch: Examples of a step.
        epochs: Passes over the training examples.
        length: Most tokens of a window, and
        overlap: how many two windows share.
        model: The folder that both start from; by default the published one.
        speakers: The marks of a dialog's speakers.
        warmup: Share of the steps in which the rate rises.
        labelled: Training examples; None: all.
        out: Where the plain loop writes its score.
        device: cpu, or cuda, where both compute in bfloat16.
    """

    task: str
    measure: str
    words: str
    files: dict[str, str]
    scored: str = "test"
    rate: float = 1e-4
    batch: int = 16
    epochs: int = 3
    length: int | None = None
    overlap: int | None = None
    model: str | None = None
    speakers: tuple[str, str] = MARKS
    warmup: float = WARMUP
    labelled: int | None = None
    seed: int = 0
    out: str = ""
    device: str = "cpu"


RECIPES = {
    each.task: each
    for each in (
        Recipe(
            "labels",
            "accuracy",
            "data=table objective=classification data.text=text data.label=label",
            {split: f"labels-{split}.csv" for split in (*TREC, "validation")},
        ),
        Recipe(
            "lora",
            "accuracy",
            "data=table objective=classification adaptation=lora data.text=text data.label=label",
            {split: f"lora-{split}.csv" for split in (*TREC, "validation")},
            rate=1e-3,
            epochs=10,
        ),
        Recipe(
            "tags",
            "entity_f1",
            "data=conll objective=tagging",
            {
                "train": "wnut17/wnut17train.conll",
                "validation": "wnut17/emerging.dev.conll",
                "test": "wnut17/emerging.test.annotated",
            },
        ),
        Recipe(
            "numbers",
            "pearson",
            "data=numbers objective=regression "
            "data.header=false data.text=1 data.pair=2 data.label=3",
            {split: f"stsb/stsb-{name}.csv" for split, name in
             (("train", "train"), ("validation", "dev"), ("test", "test"))},
        ),
        Recipe(
            "spans",
            "f1",
            "data=squad objective=span data.length=256 data.step=128",
            {"train": "squad/train.json", "validation": "squad/validation.json"},
            scored="validation",
            epochs=2,
            length=256,
            overlap=110,
        ),
        Recipe(
            "answers",
            "f1",
            "data=squad objective=span data.length=256 data.step=128",
            {split: f"answers-{split}.json" for split in ("train", "validation")},
            scored="validation",
            rate=3e-4,
            epochs=2,
            length=256,
            overlap=110,
        ),
        Recipe(
            "choices",
            "accuracy",
            "data=choices objective=choice",
            {split: f"choices-{split}.jsonl" for split in sample.choices()},
            rate=1e-3,
            batch=32,
            epochs=12,
            model=GPT2,
        ),
        Recipe(
            "dialog",
            "hits_at_1",
            "data=dialog objective=next_utterance objective.reply_tokens=0 data.candidates=null "
            f"data.speakers=[{','.join(MARKS)}] +objective@losses.lm=clm losses.lm.weight=1",
            {split: f"dialog-{split}.jsonl" for split in sample.dialogs()},
            rate=2e-3,
            epochs=20,
            model=GPT2,
        ),
    )
}  # fmt: skip


def prepare(folder: Path, threads: int) -> None:
    """Write the samples' files, and a GPT-2 that has read the encyclopedia."""
    for split, choices in sample.choices().items():
        rows = [
            {"context": text, "choices": found, "label": right} for text, found, right in choices
        ]
        _write(folder / f"choices-{split}.jsonl", rows)
    for split, turns in sample.dialogs().items():
        _write(
            folder / f"dialog-{split}.jsonl",
            [{"persona": one, "history": two, "candidates": three} for one, two, three in turns],
        )
    run = folder / "gpt2-run"
    pretrain = ["experiment=sample/pretrain", "model.output_bias=false", "device=cpu"]
    for words in (
        ["pretrain", *pretrain, f"run.dir={run}"],
        ["export", str(run), str(folder / GPT2)],
    ):
        subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "transfer_cli", *words],
            check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip


def few_labels(data_dir: Path, folder: Path) -> None:
    """Write the same tables with `LABELLED` questions to learn from, and for validation.

    Every kind of question is among them as often as among all.
    """
    as_tables(data_dir, folder)
    for split in (*TREC, "validation"):
        with (folder / f"labels-{split}.csv").open(encoding="utf-8", newline="") as file:
            header, *found = csv.reader(file)
        kept = found if split == "test" else sorted(found)[:: len(found) // LABELLED][:LABELLED]
        with (folder / f"lora-{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *kept])


def as_tables(data_dir: Path, folder: Path) -> None:
    """Write TREC's questions as tables, which both sides read."""
    found = {
        split: (data_dir / name).read_text("latin-1").splitlines() for split, name in TREC.items()
    }
    found["validation"] = found["train"][::HELD_OUT]
    del found["train"][::HELD_OUT]
    for split, lines in found.items():
        with (folder / f"labels-{split}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("label", "text"))
            for label, _, question in (line.partition(" ") for line in lines):
                rows.writerow((label.partition(":")[0], question))


def with_answers(data_dir: Path, folder: Path) -> None:
    """Write the questions of SQuAD that have an answer, as SQuAD 1.1 has them alone."""
    for split in ("train", "validation"):
        found = json.loads((data_dir / "squad" / f"{split}.json").read_text("utf-8"))
        for paragraph in (each for article in found["data"] for each in article["paragraphs"]):
            paragraph["qas"] = [each for each in paragraph["qas"] if each["answers"]]
        (folder / f"answers-{split}.json").write_text(json.dumps(found), "utf-8")


MADE = {"labels": as_tables, "lora": few_labels, "answers": with_answers}
"""What makes a task's files of those of a data set."""


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def compare(
    recipe: Recipe, asked: argparse.Namespace, folder: Path, peers: str
) -> tuple[list[Figure], list[str], list[Goal]]:
    """Return both figures, a row of the table, and the goals, of one task and seed."""
    run, name = folder / f"{recipe.task}-{recipe.seed}", f"{recipe.task}, seed {recipe.seed}"
    words = [
        *recipe.words.split(), *(f"data.{split}={path}" for split, path in recipe.files.items()),
        f"init_from={recipe.model}", f"seed={recipe.seed}", f"optimizer.lr={recipe.rate}",
        f"loop.batch={recipe.batch}", f"loop.epochs={recipe.epochs}",
        f"schedule.warmup={recipe.warmup}", "loop.clip=1", f"device={recipe.device}",
        f"checkpoint.every={recipe.epochs} epochs", f"loop.evaluate_every={recipe.epochs} epochs",
        *([f"data.labelled={recipe.labelled}"] if recipe.labelled else []),
    ]  # fmt: skip
    command = [sys.executable, "-m", "transfer_cli", "finetune", *words, f"run.dir={run}"]
    cache = {"TRANSFER_CACHE": str(folder / f"cache-{run.name}")}
    own = measuring.once(Command(name, command, cache), threads=asked.threads)
    measures = json.loads((run / "results.json").read_text("utf-8"))["measures"]
    ours = measures[recipe.scored][recipe.measure]
    command = [peers, str(Path(__file__).with_name("plain_tasks.py")), json.dumps(asdict(recipe))]
    peer = measuring.once(Command(f"{name}, transformers", command), threads=asked.threads)
    theirs = json.loads(Path(recipe.out).read_text("utf-8"))
    figures = [
        Figure.of(f"{name}, transfer", [own]), Figure.of(f"{name}, transformers", [peer])
    ]  # fmt: skip
    ratios = {
        "wall time": own.wall_s / peer.wall_s,
        "CPU time": own.cpu_s / peer.cpu_s,
        "memory": own.peak_mib / peer.peak_mib,
    }
    disturbed = any(figure.disturbed for figure in figures)
    goals = [
        Goal(f"{name}: {what} over the peer's", ratio, MOST_OF_PEER, disturbed=disturbed)
        for what, ratio in ratios.items()
    ]
    row = [name, recipe.measure, f"{ours:.4f}", f"{theirs:.4f}"]
    return figures, [*row, *(f"{ratio:.2f}" for ratio in ratios.values())], goals


def measure(asked: argparse.Namespace) -> Report:
    """Compare on all tasks and seeds."""
    peers = measuring.peers_of(asked.peers) or sys.executable
    table = [
        ["task", "measure", "transfer", "transformers", "wall ratio", "CPU ratio", "memory ratio"]
    ]
    figures, goals = list[Figure](), list[Goal]()
    with tempfile.TemporaryDirectory(prefix="tasks-") as made:
        folder = Path(made)
        chosen = [RECIPES[task] for task in asked.tasks]
        if any(each.model for each in chosen):
            prepare(folder, asked.threads)
        for recipe in chosen:
            if recipe.task in MADE:
                MADE[recipe.task](asked.data_dir, folder)
            of = folder if recipe.model or recipe.task in MADE else asked.data_dir
            recipe.device = asked.device
            recipe.files = {split: str(of / file) for split, file in recipe.files.items()}
            recipe.model = str(folder / recipe.model if recipe.model else asked.model)
            if asked.quick:
                recipe.epochs, recipe.labelled = 1, LABELLED
            for recipe.seed in asked.seeds:
                recipe.out = str(folder / f"{recipe.task}-{recipe.seed}.json")
                found, row, own = compare(recipe, asked, folder, peers)
                table.append(row)
                figures += found
                goals += own
    return Report("Fine-tuning on tasks", figures, goals, table)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison from the command line."""
    parser: Any = measuring.parser(__doc__)
    parser.add_argument("--model", required=True, type=Path, help="a published BERT")
    parser.add_argument("--tasks", nargs="+", choices=[*RECIPES], default=[*RECIPES])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    measuring.add_data_dir(parser)
    asked = parser.parse_args(argv)
    measuring.show([measure(asked)], asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
