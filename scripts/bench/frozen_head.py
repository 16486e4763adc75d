"""Compare `transfer finetune experiment=quick` with scikit-learn on the same frozen features.

    python scripts/bench/frozen_head.py --model FOLDER

Whole commands, from a table to a stored model that has been scored, from a published model such as
all-MiniLM-L6-v2 (`scripts/minilm.sh minilm`), with an empty cache. Then
scikit-learn fits its logistic regression, with its defaults (C = 1), to the very features that the
command had, on the same training rows, and is scored on the same test rows.

Sets: TREC's questions with 6 and with 50 labels, and 10,000 sentences of the English Wikipedia: of
the 40 articles with the most sentences of 5 to 20 words, the label being the article, 250 from each
to learn from and 50 to test on, evenly spread. What is missing in DIR is left out.
"""

import argparse
import itertools
import json
import lzma
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import measuring
import product
from measuring import BenchmarkError, Command, Figure, Goal, Report

ARTICLES, TO_LEARN, TO_TEST = 40, 250, 50
TRIAL = (3, 20, 5)
WORDS = range(5, 21)
WORST_RATIO = 1.1
MOST_SECONDS = 120.0


def features(path: str, *words: str) -> None:
    """Write the features and labels that `transfer finetune WORDS` has."""
    import numpy as np

    from transfer_cli.engine.features.cached import CachedFeatures

    run = product.built(words)
    pooling = run.blueprint.network.losses[0].objective.pooling_of(run.model)
    precision, arrays = run.blueprint.precision, {}
    for name in ("train", "test"):
        data = run.data.splits[name].data
        if not isinstance(data, CachedFeatures):
            data = CachedFeatures(
                data, run.model, precision, batch=64, layers=(-1,), pooling=pooling
            )
        batch = data.batch(np.arange(len(data)))
        arrays |= {f"{name}_x": batch["pooled"].numpy(), f"{name}_y": batch["label"].numpy()}
    np.savez(path, **arrays)


def fit(path: str) -> None:
    """Print the error and the seconds of scikit-learn on such features."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    arrays, began = np.load(path), time.perf_counter()
    model = LogisticRegression(max_iter=10_000).fit(arrays["train_x"], arrays["train_y"])
    seconds = time.perf_counter() - began
    wrong = float((model.predict(arrays["test_x"]) != arrays["test_y"]).mean())
    print(json.dumps({"error": 100 * wrong, "seconds": seconds}))


def sentences(source: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each article's title and its short sentences, each once."""
    title, texts = "", dict[str, None]()
    with lzma.open(source, "rt", encoding="utf-8") as file:
        for line in itertools.chain(file, ["= end =\n"]):
            if heading := re.fullmatch(r"= (.+) =\n", line):
                if title:
                    yield title, list(texts)
                title, texts = heading[1], {}
                continue
            for sentence in re.split(r"(?<=[.?!]) (?=[A-Z])", line.strip()):
                if len(sentence.split()) in WORDS:
                    texts[sentence] = None


def write_articles(source: Path, folder: Path, sizes: tuple[int, int, int]) -> list[str]:
    """Write the sentences of some articles as two tables; return the overrides that name them."""
    articles, to_learn, to_test = sizes
    longest = sorted(sentences(source), key=lambda article: (-len(article[1]), article[0]))
    count = to_learn + to_test
    tables: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for title, texts in longest[:articles]:
        if len(texts) < count:
            raise BenchmarkError(f"{title}: {len(texts)} sentences, not {count}")
        for number in range(count):
            split = "train" if number % (count // to_test) else "test"
            tables[split].append((title, texts[number * len(texts) // count]))
    for name, rows in tables.items():
        product.write_table(folder / f"{name}.csv", rows)
    return ["data=table", *(f"data.{name}={folder / name}.csv" for name in tables)]


def data_sets(asked: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the overrides that name each data set that can be had."""
    source = asked.data_dir / "enwiki-2015" / "train.txt.xz"
    has_trec = (asked.data_dir / "trec").is_dir()
    if not has_trec and not source.exists():
        raise BenchmarkError(f"{asked.data_dir} has neither trec nor enwiki-2015")
    few = ["data.labelled=200"] if asked.quick else []
    for labels in (6, 50) if has_trec else ():
        yield f"TREC, {labels} labels", [f"data=trec{labels}", f"data_dir={asked.data_dir}", *few]
    if source.exists():
        sizes = TRIAL if asked.quick else (ARTICLES, TO_LEARN, TO_TEST)
        yield f"Wikipedia, {sizes[0]} labels", write_articles(source, folder, sizes)


def compare(
    name: str, data: Sequence[str], asked: argparse.Namespace, folder: Path, sklearn: str | None
) -> tuple[Figure, list[str], list[Goal]]:
    """Return the command's figure, a row of the table, and the goals, of one data set."""
    run, stored = folder / re.sub(r"\W+", "-", name), folder / "features.npz"
    words = ["experiment=quick", *data, f"init_from={asked.model}", "device=cpu"]
    cache = {"TRANSFER_CACHE": str(folder / f"cache-{run.name}")}
    command = Command(name, measuring.transfer("finetune", *words, f"run.dir={run}"), cache)
    figure = Figure.of(name, [measuring.once(command, threads=asked.threads)])
    results = json.loads((run / "results.json").read_text("utf-8"))
    error, by_words = results["measures"]["test"]["error_rate"], results["by_words"]
    wrong_by_words = 100 * (1 - by_words["right"] / by_words["scored"])
    times = [f"{figure.wall_s:.1f}", f"{figure.cpu_s:.1f}"]
    row = [name, f"{by_words['of']:,}", *times, f"{error:.2f}"]
    goals = [Goal(f"{name}: seconds", figure.wall_s, MOST_SECONDS, disturbed=figure.disturbed)]
    theirs = ["", "", ""]
    if sklearn is not None:
        compute, learn = (measuring.calling("frozen_head", of) for of in ("features", "fit"))
        measuring.python(sys.executable, compute, stored, *words, **cache)
        fitted = json.loads(
            measuring.python(sklearn, learn, stored, OMP_NUM_THREADS=str(asked.threads))
        )
        ratio = error / max(fitted["error"], 1e-9)
        theirs = [f"{fitted['error']:.2f}", f"{ratio:.3f}", f"{fitted['seconds']:.1f}"]
        goals.append(Goal(f"{name}: error over that of scikit-learn", ratio, WORST_RATIO))
    return figure, [*row, *theirs, f"{wrong_by_words:.2f}"], goals


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Compare on all data sets."""
    peers = asked.peers or sys.executable
    sklearn = peers if measuring.can_import(peers, "sklearn") else None
    notes = [] if sklearn else [f"scikit-learn is missing: {peers} -m pip install scikit-learn"]
    table = [[
        "data", "train", "wall s", "CPU s", "error %", "sklearn error %", "ratio", "sklearn fit s",
        "words error %",
    ]]  # fmt: skip
    figures, goals = list[Figure](), list[Goal]()
    for name, data in data_sets(asked, folder):
        figure, row, of_set = compare(name, data, asked, folder, sklearn)
        table.append(row)
        figures.append(figure)
        goals += of_set
    yield Report("A linear head on frozen features", figures, goals, table, notes)


if __name__ == "__main__":
    measuring.main(__doc__, measure, measuring.MODEL)
