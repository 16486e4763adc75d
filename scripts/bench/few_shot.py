"""Few labels: `experiment=few_shot`, `experiment=quick` and SetFit on the same texts.

Of each class so many training texts are drawn by the seed. All start from the same
sentence-transformers folder and learn from these alone, but `quick` chooses its weight decay on 500
others. Accuracy on the test texts; seconds are those of the whole command, CPU seconds beside.

Needs `setfit` in the Python of `--setfit`. One line of JSON for each run.
"""

import argparse
import csv
import json
import random
import resource
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

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
print(json.dumps({"accuracy": right / len(tests)}))
"""


def main() -> None:
    """Run the three systems on each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--train", type=Path, required=True, help="CSV of text and label, or TREC's"
    )
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--model", required=True, help="folder of a sentence-transformers model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--labels", type=int, default=8, help="of each class")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--setfit", help="a Python that has setfit")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    whole, test = (_read(file) for file in (args.train, args.test))
    _write(args.out / "test.csv", test)
    for seed in range(args.seeds):
        few, others = _draw_few(whole, args.labels, seed)
        _write(args.out / f"few{seed}.csv", few)
        _write(args.out / f"others{seed}.csv", others[:500])
        for system in ("few_shot", "quick", *(["setfit"] if args.setfit else [])):
            measures = _run_system(system, seed, args)
            print(json.dumps({"system": system, "seed": seed, **measures}), flush=True)


def _run_system(system: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    files = {name: str(args.out / f"{name}{seed}.csv") for name in ("few", "others")}
    test, run = str(args.out / "test.csv"), args.out / f"{system}{seed}"
    words = [
        sys.executable, "-m", "transfer_cli", "finetune", f"experiment={system}", "data=table",
        f"data.train={files['few']}", f"data.validation={files['others']}", f"data.test={test}",
        f"init_from={args.model}", f"run.dir={run}", f"seed={seed}", "device=cpu", "logger=null",
    ]  # fmt: skip
    if system == "setfit":
        words = [
            args.setfit, "-c", SETFIT, files["few"], test, args.model, str(seed), str(run)
        ]  # fmt: skip
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if system == "setfit":
        accuracy = json.loads(process.stdout.splitlines()[-1])["accuracy"]
    else:
        results = json.loads((run / "results.json").read_text())
        accuracy = results["measures"]["test"]["accuracy"]
    used = sum(getattr(after, key) - getattr(before, key) for key in ("ru_utime", "ru_stime"))
    return {"accuracy": accuracy, "seconds": round(seconds, 1), "cpu_seconds": round(used, 1)}


def _draw_few(
    rows: list[tuple[str, str]], count: int, seed: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return so many rows of each label, and the others in random order."""
    order = random.Random(seed).sample(rows, len(rows))  # noqa: S311 - not for cryptography
    seen: dict[str, int] = defaultdict(int)
    few, others = [], []
    for row in order:
        (few if seen[row[1]] < count else others).append(row)
        seen[row[1]] += 1
    return few, others


def _read(path: Path) -> list[tuple[str, str]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [(row["text"], row["label"]) for row in csv.DictReader(file)]
    lines = path.read_text("latin-1").splitlines()
    split = (line.split(" ", 1) for line in lines)
    return [(text, label.partition(":")[0]) for label, text in split]


def _write(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


if __name__ == "__main__":
    main()
