"""Compare fine-tuning on tasks with a plain loop over transformers, by whole commands.

    python scripts/bench/finetune_tasks.py --model FOLDER
        [--tasks lora tags numbers spans answers choices dialog] [--seeds 0]

Both sides start from the same published model (`scripts/minilm.sh minilm`), read
the same files, and train with AdamW, the same rate, warm-up and fall to 0, batch, epochs, dropout
and clipping; both score the same split with the weights of the last epoch. The plain loop is
`plain_tasks.py`.

lora: TREC's six kinds of questions by low-rank updates from 100 labels, accuracy on its test set;
the peers' environment needs peft, and `--model` may be a Llama-like model.
tags: WNUT-17, entity F1 of its test set. numbers: STS-B, Pearson's correlation on its test set.
spans: the part of SQuAD 2.0, F1 of its validation questions, in percent; answers: the same of the
questions that have an answer, for both to train on and be scored by. choices, dialog: the embedded
samples, from a small GPT-2 that has read the encyclopedia (it is made first); accuracy and hits at
1 of their test questions.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Command, Figure, Goal, Report

LABELLED = 100
"""Training examples of a trial, and of the task `lora`."""

MAX_RATIO = 0.8
"""The goal: our share of the peer's time, and of its memory."""

MARKS = ("What", "Why")
"""Words of the encyclopedia that stand for the speakers of the sample's dialogs."""


@dataclass(frozen=True)
class Recipe:
    """A task, and how both sides learn it.

    Args:
        measure: What is compared, as our records call it.
        words: What is typed for it.
        files: Of each split, in the folder of data sets or of what is made.
        rate: The peak, after a `warmup` of that share of the steps.
        labelled: Examples that are trained on; None: all.
        length: Most tokens of a window; two windows share `overlap`.
        model: The folder that both start from; "": a GPT-2 that is made.
        out: Where the plain loop writes its score.
        device: cpu, or cuda, where both compute in bfloat16.
    """

    task: str
    measure: str
    words: str
    files: Mapping[str, str]
    scored: str = "test"
    rate: float = 1e-4
    warmup: float = 0.1
    batch: int = 16
    epochs: int = 3
    labelled: int | None = None
    length: int | None = None
    overlap: int | None = None
    model: str | None = None
    speakers: tuple[str, str] = MARKS
    seed: int = 0
    out: str = ""
    device: str = "cpu"


def _split_files(pattern: str, *splits: str) -> dict[str, str]:
    return {split: pattern.format(split) for split in splits or ("train", "validation", "test")}


_SQUAD = "data=squad objective=span data.length=256 data.step=128"
_WINDOWS: dict[str, Any] = {"scored": "validation", "epochs": 2, "length": 256, "overlap": 110}
_TRAINED = ("train", "validation")
RECIPES = {
    recipe.task: recipe
    for recipe in (
        Recipe("lora", "accuracy", "data=table objective=classification data.text=text "
               "data.label=label adaptation=lora", _split_files("made/lora-{}.csv"), rate=1e-3,
               epochs=10),
        Recipe("tags", "entity_f1", "data=conll objective=tagging", {
            "train": "wnut17/wnut17train.conll", "validation": "wnut17/emerging.dev.conll",
            "test": "wnut17/emerging.test.annotated",
        }),
        Recipe("numbers", "pearson", "data=numbers objective=regression data.header=false "
               "data.text=1 data.pair=2 data.label=3",
               {**_split_files("stsb/stsb-{}.csv"), "validation": "stsb/stsb-dev.csv"}),
        Recipe("spans", "f1", _SQUAD, _split_files("squad/{}.json", *_TRAINED), **_WINDOWS),
        Recipe("answers", "f1", _SQUAD, _split_files("made/answers-{}.json", *_TRAINED), rate=3e-4,
               **_WINDOWS),
        Recipe("choices", "accuracy", "data=choices objective=choice",
               _split_files("made/choices-{}.jsonl"), rate=1e-3, batch=32, epochs=12, model=""),
        Recipe("dialog", "hits_at_1",
               "data=dialog objective=next_utterance objective.reply_tokens=0 data.candidates=null "
               f"data.speakers=[{','.join(MARKS)}] +objective@losses.lm=clm losses.lm.weight=1",
               _split_files("made/dialog-{}.jsonl"), rate=2e-3, epochs=20, model=""),
    )
}  # fmt: skip


def make_samples(folder: Path, threads: int) -> None:
    """Write the samples' files, and a GPT-2 that has read the encyclopedia."""
    from transfer_cli.data import sample

    for name, splits, keys in (
        ("choices", sample.choices(), ("context", "choices", "label")),
        ("dialog", sample.dialogs(), ("persona", "history", "candidates")),
    ):
        for split, rows in splits.items():
            lines = (json.dumps(dict(zip(keys, row, strict=True))) for row in rows)
            (folder / f"{name}-{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    run, words = folder / "run", ["model.output_bias=false", "device=cpu"]
    pretrain = ["pretrain", "experiment=sample/pretrain", *words, f"run.dir={run}"]
    for command in (pretrain, ["export", run, folder / "gpt2"]):
        measuring.run_once(Command("gpt2", measuring.transfer_command(*command)), threads=threads)


def make_tables(data_dir: Path, folder: Path) -> None:
    """Write TREC's questions as tables: of all kinds alike, few to learn from and to validate."""
    for split, rows in product.read_trec(data_dir).items():
        few = sorted(rows)[:: max(1, len(rows) // LABELLED)][:LABELLED]
        product.write_table(folder / f"lora-{split}.csv", rows if split == "test" else few)


def make_answers(data_dir: Path, folder: Path) -> None:
    """Write the questions of SQuAD that have an answer, as SQuAD 1.1 has them alone."""
    for split in _TRAINED:
        content = json.loads((data_dir / "squad" / f"{split}.json").read_text("utf-8"))
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                paragraph["qas"] = [qa for qa in paragraph["qas"] if qa["answers"]]
        (folder / f"answers-{split}.json").write_text(json.dumps(content), "utf-8")


def compare_task(
    recipe: Recipe, args: argparse.Namespace, folder: Path
) -> tuple[list[Figure], list[str], list[Goal]]:
    """Return both figures, a row of the table, and the goals, of one task and seed."""
    run, name = folder / f"{recipe.task}-{recipe.seed}", f"{recipe.task}, seed {recipe.seed}"
    words = [
        *recipe.words.split(), *(f"data.{split}={path}" for split, path in recipe.files.items()),
        f"init_from={recipe.model}", f"seed={recipe.seed}", f"optimizer.lr={recipe.rate}",
        f"loop.batch={recipe.batch}", f"loop.epochs={recipe.epochs}",
        f"schedule.warmup={recipe.warmup}", "loop.clip=1", f"device={recipe.device}",
        f"checkpoint.every={recipe.epochs} epochs", f"loop.evaluate_every={recipe.epochs} epochs",
        *([f"data.labelled={recipe.labelled}"] if recipe.labelled else []), f"run.dir={run}",
    ]  # fmt: skip
    plain = measuring.FOLDER / "plain_tasks.py"
    script = [args.peers or sys.executable, str(plain), json.dumps(asdict(recipe))]
    cache = {"TRANSFER_CACHE": str(folder / f"cache-{run.name}")}
    ours, peer = (
        Figure.of(command.name, [measuring.run_once(command, threads=args.threads)])
        for command in (
            Command(f"{name}, transfer", measuring.transfer_command("finetune", *words), cache),
            Command(f"{name}, transformers", script),
        )
    )
    measures = json.loads((run / "results.json").read_text("utf-8"))["measures"]
    scores = measures[recipe.scored][recipe.measure], json.loads(Path(recipe.out).read_text())
    goals = [
        measuring.ratio_goal(f"{name}: {what} over the peer's", ours, peer, MAX_RATIO, of=of)
        for what, of in (("wall time", "wall_s"), ("CPU time", "cpu_s"), ("memory", "peak_mib"))
    ]
    row = [name, recipe.measure, *(f"{score:.4f}" for score in scores)]
    return [ours, peer], [*row, *(f"{goal.value:.2f}" for goal in goals)], goals


def prepare_recipes(args: argparse.Namespace, folder: Path) -> Iterator[Recipe]:
    """Yield what is compared, its files made and named."""
    made = folder / "made"
    made.mkdir()
    chosen = [RECIPES[task] for task in args.tasks]
    if any(recipe.model == "" for recipe in chosen):
        make_samples(made, args.threads)
    if "lora" in args.tasks:
        make_tables(args.data_dir, made)
    if "answers" in args.tasks:
        make_answers(args.data_dir, made)
    trial: dict[str, Any] = {"epochs": 1, "labelled": LABELLED} if args.quick else {}
    for recipe in chosen:
        files = {
            split: str((folder if name.startswith("made/") else args.data_dir) / name)
            for split, name in recipe.files.items()
        }
        model = str(made / "gpt2" if recipe.model == "" else args.model)
        for seed in args.seeds:
            out = str(folder / f"{recipe.task}-{seed}.json")
            yield replace(recipe, files=files, model=model, seed=seed, out=out,
                          device=args.device, **trial)  # fmt: skip


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Compare on all tasks and seeds."""
    table: list[Sequence[str]] = [
        ["task", "measure", "transfer", "transformers", "wall ratio", "CPU ratio", "memory ratio"]
    ]
    figures, goals = list[Figure](), list[Goal]()
    for recipe in prepare_recipes(args, folder):
        both, row, goals_of_task = compare_task(recipe, args, folder)
        table.append(row)
        figures += both
        goals += goals_of_task
    yield Report("Fine-tuning on tasks", figures, goals, table)


if __name__ == "__main__":
    tasks = {"nargs": "+", "choices": [*RECIPES], "default": [*RECIPES]}
    seeds = {"nargs": "+", "type": int, "default": [0]}
    measuring.main(__doc__, measure, {**measuring.MODEL, "--tasks": tasks, "--seeds": seeds})
