"""Compare `transfer predict` with the pipeline of transformers, on the same weights and texts.

    python scripts/bench/predict.py [--weights FOLDER] [--data-dir DIR] [--peers PYTHON]
        [--threads 2] [--device cpu] [--rounds N] [--quick] [--json FILE]

The peers' interpreter writes a folder of `BertForSequenceClassification`: 6 blocks of width 384
with random weights (speed does not depend on them) and a vocabulary of the words that are asked
about, or the backbone and the vocabulary of `--weights`, a folder of a published BERT; the head is
random either way. Both label the test questions of TREC, which are looked for in DIR and fetched if
they are not there; without `--data-dir`, those of the embedded sample. A turn is all questions
once: ours from lines of text to JSON lines, theirs from a list to a list. Before the first turn the
probabilities are compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import measuring
from measuring import BenchmarkError, Figure, Goal, Report, Variant

SIZE = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 128,
}
TRIAL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
BATCH, LABELS = 32, 6
TOLERANCE = 1e-4
"""How far two probabilities may be apart."""

TITLE = "Labelling texts by a BertForSequenceClassification"
OURS = "transfer predict"
IN_BATCHES = f"pipeline, batch_size={BATCH}"
ONE_BY_ONE = "pipeline as it comes, batch_size=1"

_QUESTIONS = """
import json, sys
from pathlib import Path
from transfer_cli.tasks import samples, trec
folder = Path(sys.argv[1]).expanduser()
found = (trec.Trec() if sys.argv[1] else samples.Sample("questions")).load(folder, seed=0)
print(json.dumps([example.text for example in found.splits["test"]]))
"""


# -------------------------------------------------------------------------- what both start from


def make_folder(texts: str, size: str, weights: str, folder: str) -> None:
    """Write the model and its tokenizer with transformers; run by the peers' interpreter.

    Args:
        texts: A JSON file with the questions.
        size: Of the model, as JSON.
        weights: A folder with a backbone and its vocabulary; "": random ones.
        folder: Where to.
    """
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    if weights:
        model = BertForSequenceClassification.from_pretrained(weights, num_labels=LABELS)
        tokenizer = AutoTokenizer.from_pretrained(weights)
    else:
        vocabulary = _vocabulary(json.loads(Path(texts).read_text("utf-8")))
        tokenizer = BertTokenizer(vocab={piece: n for n, piece in enumerate(vocabulary)})
        config = BertConfig(vocab_size=len(vocabulary), num_labels=LABELS, **json.loads(size))
        model = BertForSequenceClassification(config)
    # A head fresh from its initialisation gives all labels nearly the same probability.
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _vocabulary(texts: Sequence[str]) -> list[str]:
    """Return special tokens, characters and words of the questions."""
    words = {word for text in texts for word in text.lower().split() if word.isalnum()}
    letters = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    pieces += [f"##{letter}" for letter in letters]
    return [*pieces, *sorted(words - set(pieces))]


# ------------------------------------------------------------------------------------- workers


def ours(arrive: Callable[[], None], folder: str, texts: str, answers: str, device: str) -> None:
    """Label the questions as `transfer predict` does, from lines to JSON lines.

    Args:
        arrive: The gate.
        folder: The model.
        texts: A JSON file with the questions.
        answers: Where to write the probabilities before the first turn.
        device: cpu or cuda.
    """
    import io
    import os

    import torch
    from transfer_cli.commands.predict.ensemble import Ensemble

    from transfer_cli.commands.predict import predict, reading
    from transfer_cli.commands.predict.reading import Columns
    from transfer_cli.commands.predict.writing import JsonLines
    from transfer_cli.data import any_table
    from transfer_cli.data.columns import Wanted
    from transfer_cli.data.layout import Layout
    from transfer_cli.engine.precision import Precision

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    questions = json.loads(Path(texts).read_text("utf-8"))
    lines = Path(answers).with_suffix(".txt")
    lines.write_text("".join(f"{question}\n" for question in questions), "utf-8")
    precision = Precision("fp32", torch.device(device))
    ensemble = Ensemble([folder], precision, base=None, batch=BATCH)
    wanted = Wanted(labelled=False, keys="")
    columns = Columns("text", None, keep=False, task=ensemble.task)

    def once(out: Any) -> None:
        written = JsonLines(out, columns)
        most = BATCH * predict.WINDOW_BATCHES
        with reading.opened(str(lines), "text", Layout(), wanted) as given:
            rows = reading.rows_of(given.table, columns, any_table.Refuse("errors"))
            for window in reading.windows(rows, most, given.is_there):
                found = ensemble.together([row.example for row in window])
                written.write_window(window, found)

    out = io.StringIO()
    once(out)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    Path(answers).write_text(json.dumps([each["probabilities"] for each in found]))
    with Path(os.devnull).open("w") as nowhere:
        while True:
            arrive()
            once(nowhere)


def theirs(
    arrive: Callable[[], None], folder: str, texts: str, answers: str, device: str, batch: int
) -> None:
    """Label the questions by the pipeline of transformers, as `ours`, with a batch."""
    import os

    import torch
    from transformers import pipeline

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    questions = json.loads(Path(texts).read_text("utf-8"))
    label = pipeline("text-classification", model=folder, device=device)
    found = label(questions, batch_size=batch, top_k=None)
    shares = [{one["label"]: one["score"] for one in each} for each in found]
    Path(answers).write_text(json.dumps(shares))
    while True:
        arrive()
        label(questions, batch_size=batch)


# ----------------------------------------------------------------------------------- who compares


def compare(asked: argparse.Namespace, folder: Path) -> Report:
    """Measure a pass over the questions by each.

    Raises:
        BenchmarkError: The answers differ.
    """
    peers = measuring.peers_of(asked.peers)
    if peers is None:  # they write the model, too
        return Report(TITLE, notes=[measuring.NO_PEERS])
    texts, model = folder / "texts.json", folder / "model"
    texts.write_text(_run(sys.executable, _QUESTIONS, str(asked.data_dir or "")), "utf-8")
    size = json.dumps(TRIAL if asked.quick else SIZE)
    words = [str(measuring.FOLDER), str(texts), size, str(asked.weights or ""), str(model)]
    _run(peers, _MAKE, *words)
    env = {"RAYON_NUM_THREADS": str(asked.threads)}

    def variant(name: str, function: str, python: str = "", **options: Any) -> Variant:
        given = {"folder": str(model), "texts": str(texts), "answers": str(folder / name)}
        given["device"] = asked.device
        return Variant(name, "predict", function, {**given, **options}, python, env)

    variants = [
        variant(OURS, "ours"),
        variant(IN_BATCHES, "theirs", peers, batch=BATCH),
        variant(ONE_BY_ONE, "theirs", peers, batch=1),
    ]
    rounds = asked.rounds or (1 if asked.quick else 7)
    figures = measuring.take_turns(variants, rounds=rounds, threads=asked.threads)
    apart = [_apart(folder / OURS, folder / name) for name in (IN_BATCHES, ONE_BY_ONE)]
    return _report(figures, len(json.loads(texts.read_text("utf-8"))), max(apart), asked)


_MAKE = """
import sys
sys.path.insert(0, sys.argv[1])
import predict
predict.make_folder(*sys.argv[2:])
"""


def _run(python: str, code: str, *words: str) -> str:
    ended = subprocess.run(  # noqa: S603 - our own words
        [python, "-c", code, *words], capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise BenchmarkError(f"{python}: exit code {ended.returncode}\n{ended.stderr[-2000:]}")
    return ended.stdout


def _apart(own: Path, peer: Path) -> float:
    """Return how far the probabilities are apart at most.

    Raises:
        BenchmarkError: Further than the tolerance, or the labels are others.
    """
    pairs = list(zip(_shares(own), _shares(peer), strict=True))
    if any(mine.keys() != other.keys() for mine, other in pairs):
        raise BenchmarkError(f"{peer.name}: gives other labels than we do")
    apart = max(abs(mine[label] - other[label]) for mine, other in pairs for label in mine)
    if apart > TOLERANCE:
        raise BenchmarkError(f"{peer.name}: probabilities are up to {apart:.2g} from ours")
    return apart


def _shares(path: Path) -> Iterator[dict[str, float]]:
    yield from json.loads(path.read_text("utf-8"))


def _report(
    figures: Sequence[Figure], texts: int, apart: float, asked: argparse.Namespace
) -> Report:
    own, batches, alone = figures
    rows = [["variant", "texts a second", "wall s", "CPU s", "its wall over ours", ""]]
    rows += [
        [
            figure.name,
            f"{texts / figure.wall_s:,.0f}",
            f"{figure.wall_s:.4g}",
            f"{figure.cpu_s:.4g}",
            f"{measuring.ratio(figure, own):.3g}",
            "disturbed" if figure.disturbed else "",
        ]
        for figure in figures
    ]
    goals: list[Goal] = [
        measuring.compare(f"wall time over that of {peer.name}", own, peer, 1.0)
        for peer in (batches, alone)
    ]
    source = "TREC" if asked.data_dir else "the embedded sample"
    notes = [f"{texts} questions of {source}; probabilities are at most {apart:.1g} apart."]
    model = f"weights of {asked.weights.name}" if asked.weights else "random weights"
    return Report(f"{TITLE}, {model}, {asked.threads} threads", figures, goals, rows, notes)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--weights", type=Path, help="folder of a published BERT")
    parser.add_argument("--data-dir", type=Path, help="where TREC lies or is fetched to")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = compare(asked, Path(folder))
    measuring.show([found], asked)


if __name__ == "__main__":
    main()
