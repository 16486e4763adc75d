"""Compare `transfer finetune experiment=quick` with scikit-learn on the same frozen features.

    python scripts/bench/frozen_head.py --model FOLDER [--peers PYTHON] [--data-dir DIR]
        [--threads 2] [--quick] [--json FILE]

Whole commands, from a table to a stored model that has been scored, from a published model such as
all-MiniLM-L6-v2 (`python scripts/published_weights.py minilm`), with an empty cache. Then
scikit-learn fits its logistic regression, with its defaults (C = 1), to the very features that the
command had, on the same training rows, and is scored on the same test rows.

Sets: TREC's questions with 6 and with 50 labels, and 10,000 sentences of the English Wikipedia: of
the 40 articles with the most sentences of 5 to 20 words, the label being the article, 250 from each
to learn from and 50 to test on, evenly spread. What is missing in DIR is left out.
"""

import argparse
import csv
import itertools
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import measuring
from measuring import Command, Figure, Goal, Report

ARTICLES, TO_LEARN, TO_TEST = 40, 250, 50
TRIAL = (3, 20, 5)
WORDS = range(5, 21)
WORST_RATIO = 1.1
MOST_SECONDS = 120.0

_MISSING = "scikit-learn is missing there: PYTHON -m pip install scikit-learn, or name --peers"

_FEATURES = """
import sys
import numpy as np
from transfer_cli.assembly.run import build_run
from transfer_cli.config import compose, flags
from transfer_cli.engine.features.cached import CachedFeatures
words = sys.argv[2:]
run = build_run(compose.compose("finetune", flags.parse(words, "finetune")), "finetune")
found = {}
for name in ("train", "test"):
    data = run.data.splits[name].data
    if not isinstance(data, CachedFeatures):
        pooling = run.blueprint.losses[0].objective.pooling_of(run.model)
        data = CachedFeatures(
            data, run.model, run.blueprint.precision, batch=64, layers=(-1,), pooling=pooling
        )
    batch = data.batch(np.arange(len(data)))
    found |= {f"{name}_x": batch["pooled"].numpy(), f"{name}_y": batch["label"].numpy()}
np.savez(sys.argv[1], **found)
"""

_FIT = """
import json, sys, time
import numpy as np
from sklearn.linear_model import LogisticRegression
found = np.load(sys.argv[1])
began = time.perf_counter()
model = LogisticRegression(max_iter=10_000).fit(found["train_x"], found["train_y"])
seconds = time.perf_counter() - began
wrong = float((model.predict(found["test_x"]) != found["test_y"]).mean())
print(json.dumps({"error": 100 * wrong, "seconds": seconds, "rows": len(found["train_y"])}))
"""


def sentences(source: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each article's title and its short sentences, each once."""
    title, found = "", dict[str, None]()
    with lzma.open(source, "rt", encoding="utf-8") as file:
        for line in itertools.chain(file, ["= end =\n"]):
            heading = re.fullmatch(r"= (.+) =\n", line)
            if heading:
                if title:
                    yield title, list(found)
                title, found = heading[1], {}
                continue
            for sentence in re.split(r"(?<=[.?!]) (?=[A-Z])", line.strip()):
                if len(sentence.split()) in WORDS:
                    found[sentence] = None


def write_articles(source: Path, folder: Path, sizes: tuple[int, int, int]) -> list[str]:
    """Write the sentences of some articles as two tables; return the overrides that name them."""
    articles, to_learn, to_test = sizes
    longest = sorted(sentences(source), key=lambda found: (-len(found[1]), found[0]))[:articles]
    count = to_learn + to_test
    every = count // to_test
    tables: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for title, found in longest:
        if len(found) < count:
            raise measuring.BenchmarkError(f"{title}: {len(found)} sentences, not {count}")
        for number in range(count):
            sentence = found[number * len(found) // count]
            tables["train" if number % every else "test"].append((sentence, title))
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    return ["data=table", *(f"data.{name}={folder / name}.csv" for name in tables)]


def data_sets(data_dir: Path, folder: Path, *, trial: bool) -> dict[str, list[str]]:
    """Return the overrides that name each data set that can be had."""
    found = {}
    if (data_dir / "trec").is_dir():
        few = ["data.labelled=200"] if trial else []
        found = {
            f"TREC, {labels} labels": [f"data=trec{labels}", f"data_dir={data_dir}", *few]
            for labels in (6, 50)
        }
    source = data_dir / "enwiki-2015" / "train.txt.xz"
    if source.exists():
        sizes = TRIAL if trial else (ARTICLES, TO_LEARN, TO_TEST)
        found[f"Wikipedia, {sizes[0]} labels"] = write_articles(source, folder, sizes)
    return found


def compare(
    name: str, data: Sequence[str], asked: argparse.Namespace, folder: Path, peers: str | None
) -> tuple[Figure, list[str], list[Goal]]:
    """Return the command's figure, a row of the table, and the goals, of one data set."""
    run, features = folder / re.sub(r"\W+", "-", name), folder / "features.npz"
    words = ["experiment=quick", *data, f"init_from={asked.model}", "device=cpu"]
    cache = {"TRANSFER_CACHE": str(folder / f"cache-{run.name}")}
    command = [sys.executable, "-m", "transfer_cli", "finetune", *words, f"run.dir={run}"]
    turn = measuring.once(Command(name, command, cache), threads=asked.threads)
    results = json.loads((run / "results.json").read_text("utf-8"))
    error, by_words = results["measures"]["test"]["error_rate"], results["by_words"]
    wrong_by_words = 100 * (1 - by_words["right"] / by_words["scored"])
    figure, rows = Figure.of(name, [turn]), results["by_words"]["of"]
    row = [name, f"{rows:,}", f"{turn.wall_s:.1f}", f"{turn.cpu_s:.1f}", f"{error:.2f}"]
    disturbed = figure.disturbed
    goals = [Goal(f"{name}: seconds in all", turn.wall_s, MOST_SECONDS, disturbed=disturbed)]
    theirs = ["", "", ""]
    if peers is not None:
        _python(sys.executable, _FEATURES, str(features), *words, env=cache)
        threads = {"OMP_NUM_THREADS": str(asked.threads)}
        found = json.loads(_python(peers, _FIT, str(features), env=threads))
        ratio = error / max(found["error"], 1e-9)
        theirs = [f"{found['error']:.2f}", f"{ratio:.3f}", f"{found['seconds']:.1f}"]
        goals.append(Goal(f"{name}: error over that of scikit-learn", ratio, WORST_RATIO))
    return figure, [*row, *theirs, f"{wrong_by_words:.2f}"], goals


def _python(interpreter: str, code: str, *words: str, env: dict[str, str]) -> str:
    ended = subprocess.run(  # noqa: S603 - our own words
        [interpreter, "-c", code, *words],
        env={**os.environ, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        raise measuring.BenchmarkError(ended.stderr[-2000:])
    return ended.stdout


def _has_sklearn(interpreter: str) -> bool:
    words = [interpreter, "-c", "import sklearn"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0  # noqa: S603 - ours


def measure(asked: argparse.Namespace) -> Report:
    """Compare on all data sets."""
    peers = measuring.peers_of(asked.peers) or sys.executable
    notes = [f"load of the machine when it began: {os.getloadavg()[0]:.1f}"]
    if not _has_sklearn(peers):
        peers, notes = None, [*notes, _MISSING]
    header = ["data", "train", "wall s", "CPU s", "error %"]
    header += ["sklearn error %", "ratio", "sklearn fit s", "words error %"]
    table, figures, goals = [header], list[Figure](), list[Goal]()
    with tempfile.TemporaryDirectory(prefix="frozen-") as made:
        folder = Path(made)
        for name, data in data_sets(asked.data_dir, folder, trial=asked.quick).items():
            figure, row, own = compare(name, data, asked, folder, peers)
            table.append(row)
            figures.append(figure)
            goals += own
    if not figures:
        raise measuring.BenchmarkError(f"{asked.data_dir} has neither trec nor enwiki-2015")
    return Report("A linear head on frozen features", figures, goals, table, notes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison from the command line."""
    parser: Any = measuring.parser(__doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a published model")
    measuring.add_data_dir(parser)
    asked = parser.parse_args(argv)
    measuring.show([measure(asked)], asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
