"""Few labels: `experiment=few_shot`, `experiment=quick` and SetFit on the same texts.

    python scripts/bench/few_shot.py --model FOLDER [--train FILE --test FILE] [--setfit PYTHON]

Of each class so many of TREC's questions, or texts of a table, are drawn by the seed. All start
from the same sentence-transformers folder and learn from these alone, but `quick` chooses its
weight decay on 500 others. Accuracy on the test texts; seconds are those of the whole command.
"""

import argparse
import csv
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import measuring
import product
from measuring import Command, Figure, Report

SETFIT = """
import csv, json, sys
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments
train, test, model, seed, out = sys.argv[1:]
read = lambda path: [*csv.DictReader(open(path, encoding="utf-8"))]
rows, tests = read(train), read(test)
model = SetFitModel.from_pretrained(model, device="cpu")
arguments = TrainingArguments(seed=int(seed), report_to="none", output_dir=out, save_strategy="no")
Trainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows)).train()
predicted = model.predict([row["text"] for row in tests])
right = sum(str(label) == row["label"] for label, row in zip(predicted, tests))
results = {"measures": {"test": {"accuracy": right / len(tests)}}}
open(f"{out}/results.json", "w").write(json.dumps(results))
"""

Rows = list[tuple[str, str]]
"""Labels and texts."""


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Run the systems on each seed."""
    test, figures, accuracies = folder / "test.csv", list[Figure](), dict[str, str]()
    if args.train is None:
        trec = product.read_trec(args.data_dir)
    else:
        trec = {"train": _read(args.train), "validation": [], "test": _read(args.test)}
    whole = [*trec["train"], *trec["validation"]]
    product.write_table(test, trec["test"])
    for seed in range(args.seeds):
        few, others = folder / f"few{seed}.csv", folder / f"others{seed}.csv"
        for path, rows in zip((few, others), _draw_few(whole, args.labels, seed), strict=True):
            product.write_table(path, rows)
        words = [
            "data=table", f"data.train={few}", f"data.validation={others}",
            f"data.test={test}", f"init_from={args.model}", f"seed={seed}", "device=cpu",
        ]  # fmt: skip
        for system in ("few_shot", "quick", *(["setfit"] if args.setfit else [])):
            name, run = f"{system}, seed {seed}", folder / f"{system}{seed}"
            typed = ["finetune", f"experiment={system}", *words, f"run.dir={run}"]
            command = measuring.transfer_command(*typed)
            if system == "setfit":
                files = map(str, (few, test, args.model, seed, run))
                command = [args.setfit, "-c", SETFIT, *files]
            turn = measuring.run_once(Command(name, command), threads=args.threads)
            figures.append(Figure.of(name, [turn]))
            measures = json.loads((run / "results.json").read_text())["measures"]
            accuracies[name] = f"{measures['test']['accuracy']:.3f}"
    shown = measuring.figure_rows(figures, {"accuracy": lambda figure: accuracies[figure.name]})
    yield Report(f"{args.labels} texts of each label", figures, rows=shown)


def _draw_few(rows: Rows, count: int, seed: int) -> tuple[Rows, Rows]:
    """Return so many rows of each label, and 500 others."""
    order = random.Random(seed).sample(rows, len(rows))  # noqa: S311 - not for cryptography
    seen, few, others = Counter[str](), list[tuple[str, str]](), list[tuple[str, str]]()
    for row in order:
        (few if seen[row[0]] < count else others).append(row)
        seen[row[0]] += 1
    return few, others[:500]


def _read(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["label"], row["text"]) for row in csv.DictReader(file)]


if __name__ == "__main__":
    table = {"type": Path, "help": "a table with the columns text and label"}
    setfit = {"help": "a Python that has setfit"}
    numbers = {"--labels": {"type": int, "default": 8, "help": "of each class"},
               "--seeds": {"type": int, "default": 5}}  # fmt: skip
    options = {"--train": table, "--test": table, "--setfit": setfit, **numbers}
    measuring.main(__doc__, measure, {**measuring.MODEL, **options})
